"""The bench of the promises, in short: nothing is lost, nothing runs twice but in the documented window."""

from __future__ import annotations

from pathlib import Path

from searches import sized

from tests.bench.promises import CAP, measure


def test_nothing_is_lost_or_doubled(tree: Path, tmp_path: Path) -> None:
    kills, reboots, cuts = measure(tree, tmp_path, kills=sized(6), reboots=sized(2), cuts=sized(2))
    assert (kills.lost, kills.again, kills.doubled, kills.attempts) == (0, 0, 0, 0)
    assert (reboots.lost, reboots.doubled, reboots.attempts) == (0, 0, 0)
    assert (cuts.lost, cuts.doubled) == (0, 0)
    assert cuts.attempts <= CAP * cuts.times, "one for each turn that was cut short"
    assert min(kills.rows, reboots.rows, cuts.rows) > 0
