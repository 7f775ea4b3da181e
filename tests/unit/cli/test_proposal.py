"""What limits suit which host."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from hostguard.cli.doctor.proposal import RATE_MIN, SLOW_RATE, Facts, file_lines, propose, slice_weight
from hostguard.config.load import load
from hostguard.linux.disk import Device
from hostguard.linux.limits import Kernel

CARD = Device("/dev/mmcblk0", "mmcblk0", "it is on the disk mmcblk0")
ALL = Kernel(CARD, "179:0", frozenset({"io", "memory", "pids"}), "bfq")
PI = replace(ALL, scheduler="mq-deadline", controllers=frozenset({"io", "pids"}))  # as Raspberry Pi OS is


def values(facts: Facts) -> dict[str, Any]:
    return {setting.path[-1]: setting.value for setting in propose(facts)}


@pytest.mark.parametrize(
    ("facts", "proposed"),
    [
        (Facts(ALL, True, 4), {"global_concurrent_turns": 2}),
        (Facts(ALL, True, 4, 8_000_000.0), {"global_concurrent_turns": 2, "write_bandwidth": "3000K"}),
        # It took next to nothing: a stall, and no limit to live with.
        (Facts(ALL, True, 4, RATE_MIN - 1.0), {"global_concurrent_turns": 2}),
        (Facts(ALL, False, 4), {"global_concurrent_turns": 4}),
        (Facts(ALL, False, 1), {"global_concurrent_turns": 2}),
        (Facts(ALL, False, 4, 400e6), {"global_concurrent_turns": 4}),
        # No card by its name, but as slow as one: a virtual disk on a card.
        (Facts(ALL, False, 4, SLOW_RATE - 1.0), {"global_concurrent_turns": 2, "write_bandwidth": "7499K"}),
    ],
)
def test_the_proposal(facts: Facts, proposed: dict[str, Any]) -> None:
    assert values(facts) == proposed


def test_the_turns_leave_a_quarter_of_the_disk() -> None:
    found = propose(Facts(ALL, True, 4, 10_000_000.0))
    assert 2 * int(str(found[1].value).removesuffix("K")) * 1000 == 7_500_000


def text(facts: Facts, elsewhere: dict[tuple[str, ...], str] | None = None) -> str:
    return "\n".join([*file_lines("head", propose(facts), elsewhere or {}), ""])


def test_the_file_is_a_configuration(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "50-setup.toml"
    file.write_text(text(Facts(PI, True, 4, 8_000_000.0)))
    found = load([file])
    assert (found.global_concurrent_turns, found.turn.write_bandwidth) == (2, 3_000_000)


def test_the_file_says_what_the_kernel_does_not_apply() -> None:
    said = text(Facts(PI, True, 4, 8_000_000.0))
    assert "# On this host it is partial: cgroup version 2 has no memory controller here" in said
    assert "partial" not in text(Facts(ALL, True, 4, 8_000_000.0))


@pytest.mark.parametrize(
    ("facts", "weight"),
    [
        (Facts(ALL, True, 4), (50, "half of the weight of another slice, applied by BFQ")),
        (
            Facts(replace(ALL, scheduler="none", iocost=True), True, 4),
            (50, "half of the weight of another slice, applied by iocost"),
        ),
        (Facts(PI, True, 4), (None, "the scheduler of mmcblk0, mq-deadline, does not support weights")),
        (
            Facts(replace(ALL, controllers=frozenset()), True, 4),
            (None, "cgroup version 2 has no io controller on this host"),
        ),
        (Facts(ALL, False, 4), (None, "the disk is fast")),
    ],
)
def test_the_weight_of_all_turns(facts: Facts, weight: tuple[int | None, str]) -> None:
    assert slice_weight(facts) == weight


def test_a_host_whose_disk_is_not_known() -> None:
    unknown = Kernel(Device(None, None, "it is on overlay"), None, frozenset())
    assert "the disk that they use is unknown" in text(Facts(unknown, False, 4))


def test_what_another_file_sets_is_left_out() -> None:
    said = text(Facts(ALL, True, 4), {("limits", "global_concurrent_turns"): "/etc/x.toml"})
    assert "# Left out, as /etc/x.toml sets it:\n#global_concurrent_turns = 2\n" in said
    assert tomllib.loads(said) == {"limits": {}}
