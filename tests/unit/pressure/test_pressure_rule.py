"""The rule of pressure: what happens to the disk in, level and cap over time out."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from hostguard.core.settings import Level, Settings
from hostguard.pressure.rule import State, step
from hostguard.pressure.sample import Disk, Psi, Sample
from tests.unit.simulated import World, between

SETTINGS = Settings()


def caps(world: World, until: float) -> list[int | None]:
    """The caps shown, one after another."""
    seen: list[int | None] = []
    for _, _, cap in world.run(until):
        if not seen or seen[-1] != cap:
            seen.append(cap)
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_a_card_that_is_merely_slow_settles_at_the_floor(seed: int) -> None:
    """0.5 to 4 s a write, whoever writes. Turns that pause for 30 s now and then do not make it flap."""
    dice = random.Random(seed)
    world = World(service=lambda _: dice.uniform(0.5, 4), turns=lambda at: 8 * (at % 90 < 60), turn=25)
    world.run(1800)
    late = [state for sample, state in zip(world.samples, world.states, strict=True) if sample.at > 300]
    assert {state.cap for state in late} == {1}


def test_no_tick_is_wanted_while_nothing_runs_and_all_is_calm() -> None:
    """And while something does, a second at most; a quarter where a stall may begin."""
    world = World(cap=2, turns=lambda at: 2 * (at < 30), turn=10, stops=[(20, 40)])
    world.run(120)
    waits = {(sample.live > 0, state.wait) for sample, state in zip(world.samples, world.states, strict=True)}
    assert world.states[-1].wait == math.inf
    assert not [wait for live, wait in waits if live and wait > 1]
    assert 0.25 in {wait for live, wait in waits if live}


# Cases of cases.md, by their numbers.


def test_25_another_program_that_keeps_the_pressure_up_leaves_the_floor_its_turn() -> None:
    world = World(service=lambda _: 0.1, outside=10, think=0, turn=20)
    assert caps(world, 1200) == [None, 4, 2, 1]
    assert {sample.live for sample in world.samples[-600:]} == {1}, "one turn ran all the time"
    assert {state.admit for state in world.states[-600:]} == {1}


def test_26_a_cold_start_with_no_turn_live_lets_the_floor_start() -> None:
    """Nothing of ours runs, so that there is nothing to halve; what starts beyond the floor waits."""
    for cap in (None, 8, 1):
        world = World(cap=cap, turns=lambda at: 3 * (at > 10), outside=1, stops=[(0, 60)])
        world.run(60)
        before = [state for sample, state in zip(world.samples, world.states, strict=True) if sample.at < 10]
        assert {state.cap for state in before} == {None}
        assert before[-1].level is Level.STALLED
        assert before[-1].admit == 1
        assert world.samples[-1].live == 1


def test_27_pressure_that_swings_around_a_threshold_changes_the_cap_less_than_4_times_a_minute() -> None:
    for seconds in (1, 2, 5, 6, 8, 13, 21):
        for psi in ("honest", None):
            world = World(
                psi=psi, think=0, service=lambda at, s=seconds: 0.3 if at % (2 * s) < s else 0.012
            )  # fmt: skip
            world.run(200)
            changed = [
                sample.at
                for sample, old, new in zip(world.samples[1:], world.states, world.states[1:], strict=False)
                if old.cap != new.cap
            ]
            assert all(later - first >= 60 for first, later in zip(changed, changed[3:], strict=False)), (
                seconds
            )


def test_28_the_guard_was_stopped_for_30_s() -> None:
    """Nothing completed meanwhile, as far as its two looks tell: but the second one is no tick of its own."""
    stalled = Disk(0, 100, 0, 1200, 1200, 3, 0)
    state = State()
    for at in (0.0, 0.25, 0.5):
        state = step(state, Sample(at, 4, 4, stalled, None, None), SETTINGS)
    woken = step(state, Sample(30.5, 4, 4, replace(stalled, busy_ms=31_200), None, None), SETTINGS)
    assert (woken.level, woken.cap, woken.evidence) == (Level.CALM, None, "idle, last sample 30 s ago")
    again = step(woken, Sample(31.5, 4, 4, replace(stalled, busy_ms=32_200), None, None), SETTINGS)
    assert again.level is Level.CALM, "the clock starts when it wakes"
    assert (
        step(again, Sample(32.0, 4, 4, stalled, None, None), SETTINGS).evidence
        == "the disk's counters ran backwards"
    )


@pytest.mark.parametrize("seconds", [2, 4, 7])
@pytest.mark.parametrize("turns", [1, 2, 8])
def test_29_one_slow_write_among_quiet_ones(seconds: float, turns: int) -> None:
    """It is reported, and the cap is cut at most once and comes back."""
    world = World(turns=turns, service=between(50, 50.05, seconds))
    seen = caps(world, 360)
    assert len([1 for old, new in pairwise(seen) if (new or 8) < (old or 8)]) == 1
    assert seen[-1] is None
    assert any(f"completed for {1.5:.1f} s" in state.evidence for state in world.states)
    assert re.search(r"; slowest recent request [0-9.]+ s, [0-9]+ s ago$", world.states[400].evidence)


def test_29_a_spike_of_800_ms_is_reported_and_changes_nothing() -> None:
    world = World(turns=1, service=between(50, 50.05, 0.8))
    assert world.run(60)[1:] == []
    assert re.search(r"; slowest recent request [0-9]+ ms, [0-9]+ s ago$", world.states[-1].evidence)


@pytest.mark.parametrize("phase", [i / 10 for i in range(10)])
def test_30_nothing_completes_for_120_s(phase: float) -> None:
    world = World(stops=[(20 + phase, 140 + phase)])
    shown = world.run(160)
    assert shown[1].level is Level.STALLED
    assert shown[1].at - (20 + phase) <= 2, "seconds from the stop until it is seen"
    assert {state.level for state, s in zip(world.states, world.samples, strict=True) if 23 < s.at < 140} == {
        "stalled"
    }
    assert shown[-1][1:] == (Level.CALM, 1)


def test_34_counters_that_go_backwards_and_a_disk_that_vanishes_for_one_look() -> None:
    """Neither a cut nor a raise, in any state; the looks around it are not compared."""
    for fault in ({"resets": (36.0,)}, {"gone": [(36, 36.9)]}):
        world = World(stops=[(20, 24)], cap=2, **fault)
        plain = World(stops=[(20, 24)], cap=2)
        assert [cap for _, _, cap in plain.run(90)] == [None, 1, 1, None]
        assert [cap for _, _, cap in world.run(90)] == [None, 1, 1, None]
        raised = [
            next(s.at for s, t in zip(w.samples, w.states, strict=True) if s.at > 30 and t.cap is None)
            for w in (plain, world)
        ]
        assert raised[1] - raised[0] == pytest.approx(8, abs=1.5), "the calm window began again"


def test_a_rise_that_always_fails_is_tried_every_five_minutes_at_last() -> None:
    """320 s of calm, however often it failed: the card may have been changed for a better one."""
    state, at, cuts, stuck = State(), 0.0, [0.0], Disk(0, 5, 0, 50, 50, 1, 0)
    while len(cuts) < 9:
        disk = replace(stuck, in_flight=0) if state.cap == 1 or state.level is not Level.CALM else stuck
        state, before, at = step(state, Sample(at, 2, 2, disk, None, None), SETTINGS), state, at + 1
        if state.cap == 1 and before.cap is None:
            cuts.append(at)
    apart = [later - first for first, later in pairwise(cuts[1:])]
    assert [round(pause, -1) for pause in apart] == pytest.approx([30, 50, 90, 170, 330, 330, 330], abs=10)


# What the kernel may do, and what a reload may change.


def samples(*disks: Disk, tick: float = 1.0, live: int = 4, cap: int | None = 4) -> State:
    """The state after looks at these disks."""
    state = State()
    for number, disk in enumerate(disks):
        state = step(state, Sample(number * tick, live, cap, disk, None, None), SETTINGS)
    return state


def test_busy_time_that_jumps_is_bounded() -> None:
    """Before Linux 6.10 it may grow by 10 s in a second (facts.md): the request is no older than the last look."""
    state = samples(Disk(0, 5, 0, 50, 50, 0, 0), Disk(0, 5, 0, 50, 10_050, 1, 0))
    assert state.quiet_since == 0.0
    assert state.level is Level.CALM


def test_busy_time_that_stands_still_only_makes_it_later() -> None:
    """Before Linux 5.17 it grows when I/O ends."""
    stuck = Disk(0, 5, 0, 50, 50, 1, 0)
    quiet = replace(stuck, in_flight=0)
    assert samples(quiet, stuck, stuck).level is Level.CALM
    assert samples(quiet, stuck, stuck, stuck).level is Level.STALLED


def test_a_long_discard_is_no_stall() -> None:
    """fstrim: requests in flight and no read or write completes, but discards do."""
    disks = [Disk(0, 5, 0, 50, 50 + 1000 * i, 1, 0, discards=i) for i in range(20)]
    assert samples(*disks).level is Level.CALM


def test_a_cache_that_is_slow_to_flush_is_strained() -> None:
    """An eMMC, or an SSD: the writes take no time, the fsync does."""
    state = samples(
        *[Disk(0, 9 * i, 0, 9 * i, 1000 * i, 0, 0, flushes=i, flush_ms=800 * i) for i in range(8)]
    )
    assert (state.level, state.evidence) == (Level.STRAINED, "requests take 800 ms")


def test_just_under_a_second_is_shown_as_a_second() -> None:
    assert samples(Disk(0, 0, 0, 0, 0, 0, 0), Disk(3, 0, 2999, 0, 0, 0, 0)).evidence == "requests take 1.0 s"


def test_one_request_of_many_is_not_quiet() -> None:
    assert samples(*[Disk(i, 5, 10 * i, 50, 1000 * i, 9, 0) for i in range(20)]).level is Level.CALM


def test_reads_count_as_writes_do() -> None:
    state = samples(*[Disk(i, 5, 900 * i, 50, 1000 * i, 1, 0) for i in range(8)])
    assert (state.level, state.cap) == (Level.STRAINED, 2)
    assert state.evidence == "requests take 900 ms"


def test_without_psi_of_the_host_that_of_the_slice_counts() -> None:
    state = State()
    for i in range(8):
        disk = Disk(0, i, 0, 900 * i, 1000 * i, 1, 0)
        state = step(state, Sample(float(i), 4, 4, disk, None, Psi(200_000 * i)), SETTINGS)
    assert (state.level, state.evidence) == (
        Level.CALM,
        "requests take 900 ms, tasks wait for I/O 20 % of the time",
    )


def test_a_configured_cap_that_is_lowered_below_what_pressure_allows_is_the_limit() -> None:
    world = World(stops=[(20, 24)])
    world.run(30)
    assert world.states[-1].cap == 4
    last = world.samples[-1]
    for cap, allowed in ((5, 4), (4, None), (2, None), (0, None), (None, 4)):
        assert step(world.states[-1], replace(last, at=last.at + 1, cap=cap), SETTINGS).cap == allowed


def test_a_floor_that_is_raised_holds_at_once() -> None:
    world = World(stops=[(20, 80)])
    world.run(70)
    last, raised = world.samples[-1], Settings(floor=3)
    state = step(world.states[-1], replace(last, at=last.at + 1), raised)
    assert (world.states[-1].cap, state.cap, state.admit) == (1, 3, 3)


def test_a_floor_above_the_configured_cap_is_that_cap() -> None:
    world = World(stops=[(20, 80)], cap=2, settings=Settings(floor=5))
    world.run(70)
    last = world.states[-1]
    assert (last.level, last.cap, last.admit) == (Level.STALLED, None, 2)


def test_the_next_step_comes_when_it_was_said() -> None:
    world = World(stops=[(20, 80)])
    world.run(300)
    said = None
    for sample, old, new in zip(world.samples[1:], world.states, world.states[1:], strict=False):
        if old.cap is not None and (new.cap or 8) > old.cap:
            assert said is not None
            assert said <= sample.at < said + 1.3
        said = new.next_step_at
    assert said is None
