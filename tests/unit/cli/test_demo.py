"""The demo: what it counts and judges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from demo_turns import GOOD, STOP, STORY, phase, turn
from hypothesis import given
from hypothesis import strategies as st

from hostguard.cli.demo.plan import CAP
from hostguard.cli.demo.results import (
    Phase,
    Turn,
    Write,
    failures,
    felt,
    most_at_once,
    overtakings,
    percentile,
    stop_failures,
)

# -- figures


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(0, 50, 0), (1, 50, 1), (1, 99, 1), (2, 50, 1), (3, 50, 2), (4, 50, 2), (100, 50, 50), (100, 99, 99),
     (101, 99, 100), (1000, 99, 990), (13, 99, 13), (10, 100, 10)],
)  # fmt: skip
def test_a_percentile_is_the_nearest_rank(count: int, percent: float, expected: float) -> None:
    assert percentile([float(i) for i in range(1, count + 1)], percent) == expected


@given(st.lists(st.floats(0, 1e6)))
def test_percentiles_are_measured_values_in_order(took: list[float]) -> None:
    figures = felt(took)
    assert figures.count == len(took)
    assert figures.p50 <= figures.p99 <= figures.max
    if took:
        assert {figures.p50, figures.p99, figures.max} <= set(took)
        assert figures.max == max(took)
        assert sum(value <= figures.p50 for value in took) * 2 >= len(took)


def test_a_bystander_s_writes_count_until_the_last_turn_ends() -> None:
    writes = (Write(0.0, 0.1), Write(3.9, 0.3), Write(4.1, 9.0))
    assert Phase("p", STORY[:1], writes).felt == felt([0.1, 0.3])


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(None, None)], 0),
        ([(0, 2), (2, 4)], 1),
        ([(0, 2), (1, 4)], 2),
        ([(0, 9), (1, 2), (2, 3), (3, None), (3.5, 4)], 3),
        ([(0, None), (5, None)], 2),
    ],
)
def test_most_at_once(spans: list[tuple[float | None, float | None]], most: int) -> None:
    assert most_at_once(turn(i, "pip", *span) for i, span in enumerate(spans)) == most


# -- promises


def overtaken(*turns: Turn) -> list[tuple[int, int]]:
    return [(early.id, late.id) for early, late in overtakings(turns)]


def test_order_is_by_id_among_minds_that_are_not_busy() -> None:
    assert overtaken(*STORY) == []
    assert overtaken(turn(1, "a", 3, 4), turn(2, "b", 1, 2)) == [(1, 2)]
    assert overtaken(turn(1, "a", None, None), turn(2, "b", 1, 2)) == [(1, 2)]
    assert overtaken(turn(1, "a", 1, 2), turn(2, "b", 1, 2)) == []


def test_a_busy_mind_may_be_overtaken() -> None:
    busy = turn(1, "a", 0, 2)
    waiting = turn(2, "a", 2, 3)
    assert overtaken(busy, waiting, turn(3, "b", 1, 2)) == []
    assert overtaken(busy, replace(waiting, started=4), turn(3, "b", 3, 4)) == [(2, 3)]


def test_the_turn_that_overtakes_its_own_mind_s_does_not_excuse_itself() -> None:
    assert overtaken(turn(1, "a", 5, 6), turn(2, "a", 1, 9)) == [(1, 2)]


def test_a_turn_that_was_not_due_yet_is_not_overtaken() -> None:
    assert overtaken(turn(1, "a", 6, 7, due=5.0), turn(2, "b", 1, 2)) == []


def test_no_failure_if_all_went_well() -> None:
    assert failures(phase("unguarded", *GOOD), phase("guarded", *GOOD, scopes=CAP)) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (phase("guarded", *GOOD, turn(4, "d", 2, 3, exit=1, outcome="exit status 1")), "guarded: d message: exit status 1"),
        (phase("guarded", *GOOD, turn(4, "d", None, None)), "guarded: d message: did not end"),
        (phase("guarded", *GOOD, turn(4, "d", 0.5, 3)), "guarded: 3 turns ran at once, the cap was 2"),
        (phase("guarded", *GOOD, scopes=3), "guarded: 3 scopes lived at once, the cap was 2"),
        (phase("guarded", *GOOD, turn(4, "d", 4, 5), turn(5, "e", 3, 4)), "guarded: e message (5) started before d message (4)"),
        (phase("guarded", *GOOD, writes=()), "guarded: the bystander wrote nothing"),
    ],
)  # fmt: skip
def test_each_broken_promise_is_told(bad: Phase, said: str) -> None:
    assert failures(phase("unguarded", *GOOD), bad)[0] == said


def test_a_plain_turn_that_fails_is_told_too() -> None:
    bad = phase("unguarded", *GOOD, turn(4, "d", 2, 3, exit=-9, outcome="exit status -9"))
    assert failures(bad, phase("guarded", *GOOD)) == ["unguarded: d message: exit status -9"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"told": None, "cap": None}, "the guard did not report the stall"),
        ({"told": 3.14}, "the guard reported the stall only after 3.1 s"),
        ({"cap": None}, "the cap was None while the card stalled, not 1"),
        ({"cap": 2}, "the cap was 2 while the card stalled, not 1"),
        ({"started": 3}, "3 turns started while the card stalled"),
        ({"answers": felt([1.25])}, "the status took 1.2 s while the card stalled"),
        ({"back": None}, "the cap did not come back"),
    ],
)  # fmt: skip
def test_each_broken_promise_for_a_card_that_stops_is_told(change: dict[str, Any], said: str | None) -> None:
    assert stop_failures(replace(STOP, **change)) == ([] if said is None else [f"stopped: {said}"])


def test_a_third_phase_is_judged_as_the_second() -> None:
    third = phase("stopped", *GOOD, turn(4, "d", None, None))
    assert failures(phase("unguarded", *GOOD), phase("guarded", *GOOD), third) == [
        "stopped: d message: did not end"
    ]
