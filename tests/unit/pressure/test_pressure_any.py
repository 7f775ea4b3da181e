"""The rule of pressure, for anything that a kernel may show: what holds always."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from searches import sized

from hostguard.core.settings import Level, Settings
from hostguard.pressure.rule import GAP, State, step
from hostguard.pressure.sample import Disk, Psi, Sample

COUNT = st.integers(0, 10**6) | st.sampled_from([0, 0, 1, 2])
# What happens from one look to the next, runs of the same first: it takes seconds until anything is decided.
MOMENT = st.fixed_dictionaries(
    {
        "ticks": st.integers(1, 25),
        "pause": st.sampled_from([0.05, 0.25, 0.25, 1.0, 1.0, 1.0, 3.0, 6.0, 30.0, 0.0]),
        "done": st.sampled_from([0, 0, 1, 10, 1000]) | COUNT,
        "each_ms": st.sampled_from([0, 12, 150, 300, 600, 600, 5000]) | COUNT,
        "in_flight": st.sampled_from([0, 1, 3]),
        "busy_ms": st.sampled_from([0, 250, 1000, 10_000]),
        "share": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        "live": st.integers(0, 30),
        "fault": st.sampled_from([*[None] * 12, "reset", "gone", "no psi"]),
    }
)
SETTINGS = st.builds(
    Settings,
    floor=st.integers(1, 4),
    hold_off=st.sampled_from([1.0, 5.0, 15.0]),
    calm_window=st.sampled_from([1.0, 5.0, 20.0]),
    strained_after=st.sampled_from([1.0, 5.0]),
)
CAP = st.none() | st.integers(0, 20)
MOMENTS = st.lists(MOMENT, min_size=1, max_size=8)
WORK = {
    "ticks": 1,
    "pause": 1.0,
    "done": 20,
    "each_ms": 12,
    "in_flight": 0,
    "busy_ms": 240,
    "share": 0.2,
    "fault": None,
}

STALL = {**WORK, "ticks": 4, "done": 0, "in_flight": 1, "busy_ms": 1000}


def looks(moments: list[dict[str, Any]], cap: int | None, start: float = 0.0) -> Iterator[Sample]:
    at, some, disk = start, 0.0, Disk(0, 0, 0, 0, 0, 0, 0)
    for moment in moments:
        for tick in range(moment["ticks"]):
            at += moment["pause"]
            some += 1e6 * moment["pause"] * moment["share"]
            done = moment["done"]
            disk = Disk(
                0, disk.writes + done, 0, disk.write_ms + done * moment["each_ms"],
                disk.busy_ms + moment["busy_ms"], moment["in_flight"], 0,
            )  # fmt: skip
            if moment["fault"] == "reset" and tick == 0:
                disk = replace(disk, writes=done, write_ms=0)
            psi = None if moment["fault"] == "no psi" else Psi(int(some))
            yield Sample(at, moment["live"], cap, None if moment["fault"] == "gone" else disk, psi, psi)


def run(samples: list[Sample], chosen: Settings, state: State | None = None) -> list[State]:
    states = [state or State()]
    for sample in samples:
        states.append(step(states[-1], sample, chosen))
    return states[1:]


@settings(deadline=None)
@given(MOMENTS, CAP, SETTINGS)
def test_the_cap_stays_between_the_floor_and_the_ceiling(
    moments: list[dict[str, Any]], cap: int | None, chosen: Settings
) -> None:
    for state in run([*looks(moments, cap)], chosen):
        if state.cap is not None:
            assert chosen.floor <= state.cap
            assert cap is None or state.cap < cap
        floor = chosen.floor if cap is None else min(chosen.floor, cap)
        assert state.admit == (floor if state.level is Level.STALLED else state.cap)
        assert state.wait == math.inf or 0.05 <= state.wait <= 1
        assert 0 <= state.strain <= chosen.strained_after
        assert state.calm >= 0
        assert state.evidence


@settings(deadline=None)
@given(MOMENTS, CAP, SETTINGS)
def test_fewer_than_4_changes_a_minute_whatever_comes(
    moments: list[dict[str, Any]], cap: int | None, chosen: Settings
) -> None:
    """Whatever the settings, too."""
    samples = [*looks(moments, cap)]
    caps = [None, *(state.cap for state in run(samples, chosen))]
    changed = [sample.at for sample, (old, new) in zip(samples, pairwise(caps), strict=True) if old != new]
    assert all(fourth - first >= 60 - 1e-6 for first, fourth in zip(changed, changed[3:], strict=False))


@settings(deadline=None)
@given(MOMENTS, CAP, SETTINGS)
def test_a_cut_follows_the_last_one_after_hold_off_and_lets_the_floor_run(
    moments: list[dict[str, Any]], cap: int | None, chosen: Settings
) -> None:
    samples = [*looks(moments, cap)]
    states = [State(), *run(samples, chosen)]
    cuts = []
    for sample, (old, new) in zip(samples, pairwise(states), strict=True):
        before, after = (math.inf if s.cap is None else s.cap for s in (old, new))
        if after < before:
            cuts.append(sample.at)
            assert new.level is not Level.CALM, "a cut in the calm"
            assert after == max(chosen.floor, min(sample.live, before, math.inf if cap is None else cap) // 2)
        elif after > before:
            assert new.level is Level.CALM, "a rise without calm"
            assert after in (before + 1, math.inf)
    assert all(later - first >= chosen.hold_off for first, later in pairwise(cuts))


@settings(deadline=None)
@given(MOMENTS, CAP, SETTINGS, MOMENT, st.sampled_from(["gap", "reset", "gone", "back", "clock"]))
def test_a_sample_that_cannot_be_compared_changes_nothing(
    moments: list[dict[str, Any]], cap: int | None, chosen: Settings, last: dict[str, Any], fault: str
) -> None:
    samples = [*looks([*moments, {**last, "ticks": 1, "pause": 1.0, "fault": None}], cap)]
    before, odd = run(samples[:-1], chosen)[-1], samples[-1]
    assert odd.disk is not None
    if fault == "gap":
        odd = replace(odd, at=odd.at + GAP)
    elif fault == "reset":
        before = replace(
            before, last=replace(odd, at=odd.at - 1, disk=replace(odd.disk, writes=odd.disk.writes + 1))
        )
    elif fault == "gone":
        before = replace(before, last=replace(odd, at=odd.at - 1))
        odd = replace(odd, disk=None)
    elif fault == "back":
        before = replace(before, last=replace(odd, at=odd.at - 1, disk=None))
    else:
        odd = replace(odd, at=odd.at - 5)
    after = step(before, odd, chosen)
    assert (after.level, after.since, after.cap) == (before.level, before.since, before.cap)
    assert (after.strain, after.calm) == (0, 0)


@settings(deadline=None, max_examples=sized(13))
@given(MOMENTS, CAP, SETTINGS)
@example([{**STALL, "live": 1}], None, Settings(floor=3))
def test_full_again_after_calm(moments: list[dict[str, Any]], cap: int | None, chosen: Settings) -> None:
    """With as many turns at work as may be, if no cap is configured; else however many there are."""
    samples = [*looks(moments, cap)]
    state = run(samples, chosen)[-1]
    live = 0 if cap is not None else max(chosen.floor, *(moment["live"] for moment in moments)) + 1
    rises = (cap if cap is not None else live) + 2
    patience = 60 + chosen.hold_off + rises * max(30.0, chosen.calm_window) + 16 * chosen.calm_window
    calm = {**WORK, "live": live, "ticks": int(patience) + 10}
    assert run([*looks([calm], cap, start=samples[-1].at)], chosen, state)[-1].cap is None


@settings(deadline=None)
@given(MOMENTS, CAP, SETTINGS)
def test_a_disk_that_always_completes_fast_is_never_cut(
    moments: list[dict[str, Any]], cap: int | None, chosen: Settings
) -> None:
    """Whatever PSI says."""
    good = [{**m, "done": m["done"] + 1, "each_ms": m["each_ms"] % 200} for m in moments]
    assert {(state.level, state.cap) for state in run([*looks(good, cap)], chosen)} == {(Level.CALM, None)}


@settings(deadline=None)
@given(MOMENTS, CAP)
def test_a_disk_that_nobody_waits_for_is_strained_only_without_psi(
    moments: list[dict[str, Any]], cap: int | None
) -> None:
    idle = [
        {**m, "done": m["done"] + 1, "share": 0.39, "fault": None if m["fault"] == "no psi" else m["fault"]}
        for m in moments
    ]
    assert {state.level for state in run([*looks(idle, cap)], Settings())} <= {Level.CALM}
