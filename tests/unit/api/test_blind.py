"""When the guard says that it is blind."""

from __future__ import annotations

import pytest

from hostguard.api.app import blind
from hostguard.linux.disk import Device
from hostguard.linux.psi import OK

CARD = Device("/dev/mmcblk0", "mmcblk0", "it is on the disk mmcblk0")
NO_NODE = Device(None, "mmcblk0", "it is on the disk mmcblk0, but there is no /dev/mmcblk0 here")
NONE = Device(None, None, "it is on overlay")


@pytest.mark.parametrize(
    ("path", "device", "read", "said"),
    [
        ("auto", CARD, OK, None),
        ("none", NONE, "it is on overlay", None),  # as somebody wants it
        ("auto", NONE, "it is on overlay", "unknown, so it is not watched and has no limits: it is on overlay"),
        ("/dev/mmcblk0", NONE, "it is on overlay", "unknown, so it is not watched and has no limits: it is on overlay"),
        ("auto", NO_NODE, OK, f"watched, but no limits can be set: {NO_NODE.reason}"),
        ("auto", CARD, "the kernel no longer has mmcblk0", "not watched: the kernel no longer has mmcblk0"),
    ],
)  # fmt: skip
def test_why_the_guard_is_blind(path: str, device: Device, read: str, said: str | None) -> None:
    assert blind(path, device, read) == said
