"""The mounts, as /proc/PID/mountinfo has them."""

from __future__ import annotations

from hostguard.linux import mounts
from hostguard.linux.mounts import Mount

TEXT = r"""36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/ro\134ot rw,errors=continue
40 35 0:44 / /proc ro,nosuid shared:13 shared:14 - proc proc rw
41 35 0:45 / /bare rw - tmpfs  rw
"""


def test_fields_escapes_and_options_of_both():
    first, second, third = mounts.parse(TEXT)
    assert first == Mount(
        "36", "98:0", "/mnt 2", "ext3", "/dev/ro\\ot", frozenset(("rw", "noatime", "errors=continue"))
    )
    assert (second.place, second.options) == ("/proc", frozenset(("ro", "nosuid", "rw")))
    assert (third.place, third.source) == ("/bare", "")


def test_this_machine_has_a_root():
    assert "/" in {mount.place for mount in mounts.read()}
