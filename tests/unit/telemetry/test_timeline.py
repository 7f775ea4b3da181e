"""What the history tells of each span, and of incidents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from searches import sized

from hostguard.telemetry.timeline import (
    APART_MS,
    GRAIN,
    Incident,
    Point,
    Seen,
    Timeline,
    Trouble,
    coarse,
    steps,
)

TEN = 600_000
T0 = 1_800_000_000_000 - 1_800_000_000_000 % TEN
FINE = Trouble("requests come back", 4)

LOOKS = st.builds(
    Seen,
    level=st.sampled_from([0, 0, 1, 2]),
    cap=st.sampled_from([None, 1, 4]),
    turns=st.integers(0, 2),
    held=st.integers(0, 2),
    await_ms=st.sampled_from([None, 3, 900]),
)
# Pauses between looks: many in a grain, and hours without one.
NOTES = st.lists(
    st.tuples(st.sampled_from([500, 20_000, GRAIN, 7 * GRAIN, 90 * GRAIN]), LOOKS), min_size=1, max_size=12
)


def noted(notes: list[tuple[int, Seen]]) -> tuple[Timeline, list[tuple[int, Seen]]]:
    history, at, told = Timeline(), T0, []
    for pause, seen in notes:
        at += pause
        history.note(at, seen, FINE)
        told.append((at, seen))
    return history, told


def truly(told: list[tuple[int, Seen]], begin: int, width: int, count: int) -> list[Seen | None]:
    """The worst of each span, looked for among all grains."""
    found: list[Seen | None] = []
    for start in range(begin, begin + width * count, width):
        worst: Seen | None = None
        for grain in range(start, start + width, GRAIN):
            before = [seen for at, seen in told if at < grain]
            here = [seen for at, seen in told if grain <= at < grain + GRAIN]
            for seen in ([replace(before[-1], await_ms=None)] if before else []) + here:
                worst = seen if worst is None else worst.worst(seen)
        found.append(worst)
    return found


@settings(deadline=None, max_examples=sized(20))
@given(NOTES)
@example([(900_000, Seen(held=1)), (900_000, Seen()), (500, Seen(await_ms=3))])
def test_the_points_tell_the_worst_of_each_span(notes: list[tuple[int, Seen]]) -> None:
    history, told = noted(notes)
    count = (told[-1][0] - T0) // TEN + 2
    expected = truly(told, T0, TEN, count)
    assert steps(history.known(), T0, TEN, count) == expected
    assert steps(list(coarse(history.known(), TEN)), T0, TEN, count) == expected
    late = T0 + 3 * TEN  # what was before the span is carried into it
    assert steps(history.known(), late, TEN, count) == truly(told, late, TEN, count)


def test_there_is_no_point_while_nothing_changes_and_few_when_it_is_coarse() -> None:
    history, _ = noted([(1000, Seen(cap=4))] * 5000)
    assert len(history.points) == 1
    busy, _ = noted([(10_000, Seen(cap=4, turns=i % 3, await_ms=i % 50)) for i in range(60 * 6 * 3)])
    assert len(busy.points) == pytest.approx(1080, abs=2)
    assert len([*coarse(busy.known(), TEN)]) <= 20


def test_nothing_is_held_to_run_while_the_guard_was_down() -> None:
    before, after = Point(T0, Seen(2, 1, 3, 7, 900)), Point(T0 + 5 * TEN, Seen(cap=4), first=True)
    found = steps([before, after], T0 - TEN, TEN, 8)
    assert found[0] is None
    assert found[1] == before.seen
    assert found[2:6] == [Seen(cap=1)] * 4 or found[2:5] == [Seen(cap=1)] * 3
    assert found[7] == Seen(cap=4)


def test_a_clock_that_is_set_back_leaves_no_point_in_the_future() -> None:
    history, _ = noted([(TEN, Seen(turns=i)) for i in range(5)])
    history.note(T0 + 2 * TEN, Seen(turns=9), FINE)
    assert [point.at for point in history.points] == [T0 + TEN, T0 + 2 * TEN]


# -- incidents


def stall(history: Timeline, begin: int, seconds: int, **more: Any) -> None:
    history.note(begin, Seen(1, 2), Trouble("a request took 0.6 s", 4))
    history.note(begin + 1000, Seen(2, 1), Trouble("3 in flight", 4, **more))
    history.note(begin + seconds * 1000, Seen(0, 1), FINE)


def test_an_incident_tells_its_worst_moment_and_what_was_done() -> None:
    history = Timeline()
    history.note(T0, Seen(0, 4), FINE)
    stall(history, T0 + 5000, 16, frozen=2, tightened=1_000_000)
    assert [*history.incidents] == [
        Incident(T0 + 5000, T0 + 21_000, 2, "3 in flight", 1, 4, frozen=2, tightened=1_000_000)
    ]


def test_what_is_said_of_a_stall_that_is_over_is_not_its_evidence() -> None:
    history = Timeline()
    history.note(T0, Seen(2, 1), Trouble("none completed for 1.5 s", 4))
    history.note(T0 + 9000, Seen(2, 1), Trouble("none completed for 10.5 s", 4))
    history.note(T0 + 12_000, Seen(2, 1), Trouble("", 4))
    history.note(T0 + 15_000, Seen(1, 1), Trouble("requests take 0.6 s", 4))
    assert [one.evidence for one in history.incidents] == ["none completed for 10.5 s"]


def test_trouble_that_comes_back_at_once_is_the_same_incident() -> None:
    history = Timeline()
    stall(history, T0, 10)
    stall(history, T0 + 10_000 + APART_MS - 1, 10)
    assert len(history.incidents) == 1
    assert history.incidents[0].until == T0 + 20_000 + APART_MS - 1
    stall(history, T0 + 30_000 + 2 * APART_MS, 10)
    assert len(history.incidents) == 2


def test_an_incident_that_lasts_has_no_end_yet() -> None:
    history = Timeline()
    history.note(T0, Seen(1, 2), Trouble("slow", None))
    assert history.incidents[0].until is None
