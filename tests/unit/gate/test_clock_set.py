"""What the guard times itself does not follow the wall clock when that is set; dates that were asked for do."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from onqueue import acceptor, message, on_queue, put
from played import CRASH, OK, playing, views_of
from set_clock import SetClock

from hostguard.core import paths
from hostguard.core.clock import Clock, Now
from hostguard.core.model import Kind, Row, State
from hostguard.gate import run_clients
from hostguard.gate.run_clients import RunClients
from hostguard.gate.times import waits_since
from hostguard.store import deliveries
from hostguard.turns.drivers.exec_driver import ExecDriver

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
OTHER_BOOT = "ffffff00-0000-4000-8000-000000000000"


@pytest.fixture(autouse=True)
def turns(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    paths.TURNS.mkdir()
    return paths.TURNS


def guard_on(queue, clock=None):
    guard = playing(queue, clock=clock or SetClock())
    guard.ready = True
    return guard


async def again(queue, clock):
    """Another guard takes over, as after a restart."""
    guard = playing(queue, clock=clock)
    guard.parts.drivers.exec.end = ExecDriver(guard.runner).end
    await guard.parts.recovery.run()
    guard.open()
    await guard.settled(5)
    return guard


def test_the_two_clocks():
    clock, before = Clock("5c1d0e77-0000-4000-8000-000000000000"), time.clock_gettime(time.CLOCK_BOOTTIME)
    now = clock.now()
    assert before * 1000 - 1 <= now.ticks <= time.clock_gettime(time.CLOCK_BOOTTIME) * 1000
    assert abs(now.date - time.time() * 1000) < 10_000
    assert 0 < now.stamp < 1 << 63, "SQLite's largest integer"
    assert (now.of_this_boot(now.stamp), Now(now.date, now.ticks, 1).of_this_boot(now.stamp)) == (True, False)


@pytest.mark.parametrize(
    ("stamp", "ms"),
    [
        (Now(0, 9_000, 7).stamp, 1_000),  # of this boot
        (Now(0, 11_000, 7).stamp, 0),  # never negative
        (Now(0, 9_000, 8).stamp, 0),  # of another boot: its date is to be asked for
        (-4_000, 6_000),  # a date
        (-14_000, 0),  # a date that is to come by the clock as it is set now
        (0, 0),
    ],
)
def test_how_long_ago_a_stamp_was(stamp, ms):
    assert Now(10_000, 10_000, 7).since(stamp) == ms


@pytest.mark.parametrize(
    ("since", "date"),
    [
        (0, 15_000),
        (1, 15_000),  # neither clock was read at the start of its millisecond
        (-3, 15_000),  # it is slewed
        (HOUR, 15_000 + HOUR),  # it was set
    ],
)
def test_the_date_that_a_coming_stamp_was_given_with_is_its_date_unless_the_clock_was_set(since, date):
    stamp, given = Now(10_000, 2_000, 7).in_(5_000), 15_000
    assert Now(11_000 + since, 3_000, 7).date_again(stamp, given) == date


def test_the_date_of_a_stamp_is_by_the_clock_as_it_is_set_now():
    then, now = Now(10_000, 5_000, 7), Now(10_000 + HOUR, 6_000, 7)
    assert now.date_of(then.stamp) == now.date - 1_000
    assert now.date_of(-123) == 123
    assert now.known(then.stamp, 10_000) == then.stamp
    assert replace(now, boot=8).known(then.stamp, 10_000) == -10_000
    assert now.stamp_of(now.date - 1_000) == then.stamp
    assert now.stamp_of(10_000) == -10_000, "before this boot"


@pytest.mark.parametrize(
    ("accepted", "skew", "asked_in", "waits"),
    [
        (MINUTE, 0, 0, MINUTE),
        (MINUTE, 0, 20 * SECOND, 40 * SECOND),
        (MINUTE, 6 * HOUR, 3 * HOUR, MINUTE),
        (MINUTE, 10 * MINUTE, 9 * MINUTE, MINUTE),
        (None, 0, 20 * SECOND, 40 * SECOND),
        (None, 6 * HOUR, 3 * HOUR, 3 * HOUR + MINUTE),
    ],
    ids=[
        "now",
        "later",
        "set by hours",
        "set by minutes",
        "an earlier boot",
        "an earlier boot, set by hours",
    ],
)
def test_a_row_that_came_due_because_the_clock_was_set_waits_no_longer_than_it_is_there(
    accepted, skew, asked_in, waits
):
    """One that was accepted a minute ago read 3 h, if the host had been up for less than that."""
    ticks = 5 * MINUTE
    now = Now(1_790_000_000_000 + skew, ticks, 1)
    created = 1_790_000_000_000 - MINUTE
    stamp = now.of(ticks - accepted) if accepted else 0
    not_before = created + asked_in if asked_in else 0
    assert now.since(waits_since(created, stamp, not_before, 0, now)) == waits


@pytest.mark.parametrize("skew", [-6 * HOUR, 6 * HOUR])
def test_a_turn_and_a_wait_during_which_the_clock_is_set(tmp_path, skew):
    async def work(queue):
        clock = SetClock()
        guard = guard_on(queue, clock)
        await acceptor(guard).store(message("a"))
        await acceptor(guard).store(message("a"))
        await guard.settled(5)
        (turn,) = guard.runner.live
        clock.passed += 4 * SECOND
        clock.skew = skew
        row = await guard.parts.deliveries.find(2)
        views = views_of(guard)
        [shown] = [one for one in views.minds() if one["name"] == "a"]
        waits = [views.why(row)["waited_ms"], views.delivery(row)["hold"]["waited_ms"]]
        waits += [shown["oldest_wait_ms"], shown["hold"]["waited_ms"], views.delivery(row)["age_ms"]]
        spans = [*waits, shown["sessions"][0]["ran_ms"], views.turns()[0]["ran_ms"]]
        assert all(4 * SECOND <= ms < 10 * SECOND for ms in spans), spans
        assert "waited 4 s:" in views.why(row)["text"]
        guard.runner.end(turn, OK)
        await guard.settled(5)
        await queue.write(lambda db: None)
        ran = (await guard.parts.deliveries.find(1)).result["run_ms"]
        begun = (await guard.parts.deliveries.find(2)).result
        assert 4 * SECOND <= ran < 10 * SECOND
        assert 4 * SECOND <= begun["held_ms"] < 10 * SECOND
        assert begun["held_for"] == "session_busy"

    on_queue(tmp_path, work)


def test_a_pause_after_a_failure_has_its_length_and_a_time_that_was_asked_for_follows_the_clock(tmp_path):
    async def work(queue):
        clock = SetClock()
        guard = guard_on(queue, clock)
        await acceptor(guard).store(message("a"))
        await acceptor(guard).store(message("b", not_before=clock.date() + HOUR))
        await guard.settled(5)
        guard.runner.end(next(iter(guard.runner.live)), CRASH)
        for skew in (-HOUR, HOUR - SECOND, 0):
            clock.skew = skew
            guard.pump()
            assert not len(guard.runner.live), f"the pause is 5 s with the clock set by {skew}"
        clock.skew = -HOUR
        clock.passed = 5 * SECOND
        guard.pump()
        await guard.settled(5)
        assert [turn.live.mind for turn in guard.runner.live] == ["a"]
        clock.skew = HOUR
        guard.pump()
        await guard.settled(5)
        assert [turn.live.mind for turn in guard.runner.live] == ["a", "b"]

    on_queue(tmp_path, work)


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_a_pause_goes_on_over_a_restart_as_long_as_it_was(tmp_path, skew):
    async def work(queue):
        clock = SetClock()
        guard = guard_on(queue, clock)
        await acceptor(guard).store(message("a"))
        await guard.settled(5)
        guard.runner.end(next(iter(guard.runner.live)), CRASH)
        await queue.write(lambda db: None)
        guard.close()
        clock.skew, clock.passed = skew, 2 * SECOND
        guard = await again(queue, clock)
        assert not len(guard.runner.live)
        clock.passed += 3 * SECOND
        guard.pump()
        await guard.settled(5)
        assert [turn.live.mind for turn in guard.runner.live] == ["a"]

    on_queue(tmp_path, work)


@pytest.mark.parametrize(("ahead", "left"), [(HOUR, 300), (30 * SECOND, 30), (-HOUR, 0)])
def test_a_pause_of_an_earlier_boot_goes_on_by_its_date_but_is_no_longer_than_any(tmp_path, ahead, left):
    async def work(queue):
        clock = SetClock()
        paused = Row(0, "", "", clock.date() + ahead, due=SetClock(boot=OTHER_BOOT).now().stamp)
        await put(queue, message("a"))
        await queue.write(lambda db: deliveries.mark_delivering(db, 1, "1", Now(1), {}))
        await queue.write(lambda db: deliveries.give_back(db, 1, "1", 2, paused, {}))
        guard = await again(queue, clock)
        if left:
            assert not len(guard.runner.live)
            clock.passed = left * SECOND - 900
            guard.pump()
            assert not len(guard.runner.live)
        clock.passed = left * SECOND
        guard.pump()
        await guard.settled(5)
        assert [turn.live.mind for turn in guard.runner.live] == ["a"]

    on_queue(tmp_path, work)


@pytest.mark.parametrize(
    ("skew", "boot", "waited", "said"),
    [
        (0, None, 7, ""),
        (6 * HOUR, None, 7, ""),
        (-6 * HOUR, None, 7, ""),
        (0, OTHER_BOOT, 7, " (by the clock: the host was restarted since)"),
        (-6 * HOUR, OTHER_BOOT, 0, " (by the clock: the host was restarted since)"),
    ],
)
def test_after_a_restart_the_wait_is_the_whole_one_and_its_reason_the_true_one(
    tmp_path, turns, skew, boot, waited, said
):
    """Row 2 waits behind the turn of row 1, which another guard finds over."""

    async def work(queue):
        clock = SetClock()
        guard = guard_on(queue, clock)
        for _ in range(3):
            await acceptor(guard).store(replace(message("a"), created_at=clock.date()))
        await guard.settled(5)
        await queue.write(lambda db: None)
        guard.close()
        (turns / "1").write_text("started\nexit 0\n")
        later = SetClock(boot=boot) if boot else clock
        later.skew, later.passed = skew, 7 * SECOND
        guard = await again(queue, later)
        why = views_of(guard).why(await guard.parts.deliveries.find(3))
        assert waited <= why["waited_ms"] / SECOND < waited + 5
        assert f"waited {why['waited_ms'] // SECOND} s{said}:" in why["text"]
        assert why["measured"] == (not said)
        await queue.write(lambda db: None)
        result = (await guard.parts.deliveries.find(2)).result
        assert waited <= result["held_ms"] / SECOND < waited + 5
        assert (result["held_for"], result["held_behind"]) == ("session_busy", "hostguard-turn-a-1.scope")
        assert (await guard.parts.deliveries.find(1)).result["run_ms"] is None, "nobody knows when it ended"

    on_queue(tmp_path, work)


def test_a_row_that_only_the_guards_absence_held_says_so(tmp_path):
    async def work(queue):
        clock = SetClock()
        due = clock.date() + 5 * SECOND
        await put(queue, replace(message("a", not_before=due), created_at=clock.date()))
        clock.passed = 9 * SECOND
        guard = await again(queue, clock)
        await queue.write(lambda db: None)
        row = await guard.parts.deliveries.find(1)
        assert row.state is State.DELIVERING
        assert row.result["held_for"] == "restart"
        assert 4 * SECOND <= row.result["held_ms"] < 8 * SECOND, "since it came due"

    on_queue(tmp_path, work)


@pytest.mark.parametrize(
    ("record", "run_ms"),
    [
        ("started {started}\nended {ended}\nexit 0\n", 1_500),
        ("started {started}\nended {ended}\nsignal 15\n", 1_500),
        ("started\nended {ended}\nexit 0\n", 2_000),  # by the row's own start
        ("started {started}\nexit 0\n", None),
        ("started {started}\nended 1\nexit 0\n", 0),  # the mind's user wrote it
    ],
)
@pytest.mark.parametrize("skew", [0, -6 * HOUR, 6 * HOUR])
def test_a_turn_that_ended_while_no_guard_ran_has_the_time_of_its_record(
    tmp_path, turns, record, run_ms, skew
):
    async def work(queue):
        clock = SetClock(1_900_000_000_000)
        begun = clock.now()
        await put(queue, message("a"))
        await queue.write(lambda db: deliveries.mark_delivering(db, 1, "1", begun, {}))
        (turns / "1").write_text(record.format(started=begun.ticks + 500, ended=begun.ticks + 2_000))
        clock.passed, clock.skew = 8_300, skew
        guard = await again(queue, clock)
        await queue.write(lambda db: None)
        row = await guard.parts.deliveries.find(1)
        assert row.state is State.DONE
        assert row.result["run_ms"] == run_ms
        if run_ms:
            assert row.ended_at == clock.date() - 6_300, "not when it was noticed"

    on_queue(tmp_path, work)


@pytest.mark.parametrize("kind", [Kind.RUN, Kind.MESSAGE])
def test_a_run_waits_as_long_as_it_may_and_a_message_until_its_date(tmp_path, kind):
    async def work(queue):
        clock = SetClock()
        guard = guard_on(queue, clock)
        await guard.parts.control.pause(None, True)
        guard.gate._run_clients.waits = lambda id_: True
        new = message("a", kind=kind, key="k", expires_at=clock.date() + 10 * SECOND)
        await acceptor(guard).store(replace(new, created_at=clock.date()))
        clock.skew = HOUR
        guard.pump()
        await queue.write(lambda db: None)
        state = (await guard.parts.deliveries.find(1)).state
        assert state is (State.QUEUED if kind is Kind.RUN else State.EXPIRED)
        clock.skew, clock.passed = -HOUR, 11 * SECOND
        guard.pump()
        await queue.write(lambda db: None)
        assert (await guard.parts.deliveries.find(1)).state is State.EXPIRED

    on_queue(tmp_path, work)


def test_a_run_has_its_time_to_come_back_whatever_the_clock_says(monkeypatch):
    monkeypatch.setattr(run_clients, "AWAY_S", 0.2)
    away = RunClients()
    row = Row(1, "a", "main", kind=Kind.RUN)
    away.park(row)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert away.lost() == []
    assert 0 < (away.lost_in() or 0) <= 0.2
    asyncio.run(asyncio.sleep(0.25))
    assert away.lost() == [row]
