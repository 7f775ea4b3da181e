"""A stop that comes while its turn is being started holds also where the start fails. No scope comes up here."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from onqueue import message, on_queue, put
from played import CONFIG, Played, managed, parts

from hostguard.core import paths
from hostguard.core.clock import Now
from hostguard.core.model import Delivery, Limits, State
from hostguard.core.payload import describe
from hostguard.core.signals import SessionChanged
from hostguard.gate.dispatcher import Dispatcher
from hostguard.store import deliveries
from hostguard.store.writer import Queue
from hostguard.systemd.fork_client import Stub
from hostguard.turns.live import Phase

Spoil = Callable[[Dispatcher, Path], None]


def card_lost(manager: Dispatcher, folder: Path) -> None:
    """Nothing can be read from the database."""
    manager.queue._reader.close()


def mind_gone(manager: Dispatcher, folder: Path) -> None:
    """A reload took it away."""
    manager.policy.config = replace(CONFIG, minds={})


def no_room(manager: Dispatcher, folder: Path) -> None:
    """No record can be made of a turn."""
    (folder / "turns").touch()


def no_process(manager: Dispatcher, folder: Path) -> None:
    """No process can be had. Played: of a real limit, the test itself would suffer first."""

    async def take() -> Stub:
        raise OSError(errno.EAGAIN, "")

    manager.runner._forks.take = take


SPOILS = pytest.mark.parametrize("spoil", [card_lost, mind_gone, no_room, no_process])


def started(folder: Path, spoil: Spoil, stop: bool) -> tuple[Delivery, int]:
    """The row of a turn whose start `spoil` makes fail, and how many of its mind wait then."""

    async def work(queue: Queue) -> tuple[Delivery, int]:
        manager = managed(queue)
        manager.ready = True
        _, (row,) = await put(queue, message("a"))
        manager.admit([row])
        (turn,) = manager.runner.live
        assert turn.phase is Phase.STARTING
        spoil(manager, folder)
        if stop:
            await manager.parts.control.stop(turn.live.unit)
        await manager.settled(5)
        assert len(manager.runner.live) == 0
        return await queue.write(lambda db: deliveries.get(db, row.id)), manager.backlog.total("a")

    return on_queue(folder, work)


@SPOILS
def test_a_turn_that_was_stopped_does_not_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil
) -> None:
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    row, waiting = started(tmp_path, spoil, stop=True)
    assert (row.state.final, row.attempts, waiting) == (True, 0, 0)
    assert row.result is not None
    assert row.result["reason"] == "stopped on request before it began"


@SPOILS
def test_any_other_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> None:
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    row, waiting = started(tmp_path, spoil, stop=False)
    assert (row.state.final, row.attempts, waiting) == (False, 0, 1)


class Noting(Played):
    """Notes what it is to start; `fails` is raised instead."""

    takes_input = True

    def __init__(self, scopes):
        super().__init__(scopes)
        self.started, self.fails, self.prepared = [], None, True

    def prepare(self, turn):
        return self.prepared

    async def start(self, turn, mind, row, raw):
        self.started.append((turn, mind, row, raw))
        if self.fails is not None:
            raise self.fails
        turn.phase = Phase.RUNNING
        return True


def begun(folder, work):
    """Run `await work(guard, row)` with a stored row of a that failed twice, and is not begun yet."""

    async def main(queue):
        guard = parts(queue)
        guard.driver = guard.drivers.exec = Noting(guard.scopes)
        limits = Limits(max_turn=9)
        guard.policy.config = replace(CONFIG, minds={"a": replace(CONFIG.minds["a"], limits=limits)})
        _, (row,) = await put(queue, message("a", sender="ann"))
        row = replace(row, attempts=2)
        guard.ledger.remember(row)
        await work(guard, row)

    on_queue(folder, main)


def test_a_turn_takes_its_slot_and_then_its_row(tmp_path):
    async def work(guard, row):
        changes = []
        guard.session_changed.subscribe(changes.append)
        guard.backlog.add(row.row, Now(0))
        assert guard.starter.begin(row.row, Now(123_456))
        (turn,) = guard.live
        assert (turn.live.id, turn.live.unit) == ("1.2", "hostguard-turn-a-1.2.scope")
        assert (turn.phase, turn.since, turn.driver) == (Phase.STARTING, 123_456, guard.driver)
        assert turn.live.takes_input
        assert (turn.live.mind, turn.live.session) == ("a", "main")
        assert changes == [SessionChanged("a", "main", True)]
        assert guard.backlog.count("a") == 0
        assert not guard.starter.begin(row.row, Now(0)), "a unit of that name is live"
        await guard.tasks.settled(5)
        [(_, mind, stored, raw)] = guard.driver.started
        assert (mind.name, stored.id, stored.attempts, raw) == ("a", 1, 2, b'{"content":"x"}')
        assert turn.delivery is stored
        assert (turn.max_turn, turn.phase) == (9, Phase.RUNNING)
        assert turn.description == describe(stored, raw)
        assert turn.waited == (0, None, None, 0)
        now = await guard.queue.write(lambda db: deliveries.get(db, 1))
        assert (now.state, now.turn, now.started_at) == (State.DELIVERING, "1.2", now.started_at)
        [event] = [event for event in guard.recent.kept(0) if event["type"] == "started"]
        assert (event["turn"], event["delivery"], event["unit"]) == ("1.2", 1, turn.live.unit)
        assert event["waited_ms"] == turn.waited.ms
        assert 0 <= event["handoff_ms"] < 5_000

    begun(tmp_path, work)


@pytest.mark.parametrize("error", [RuntimeError("a fault"), asyncio.CancelledError()])
def test_a_driver_that_fails_ends_the_turn_as_failed(tmp_path, error):
    async def work(guard, row):
        guard.driver.fails = error
        guard.starter.begin(row.row, Now(1))
        await guard.tasks.settled(5)
        assert len(guard.live) == 0
        now = await guard.queue.write(lambda db: deliveries.get(db, 1))
        assert (now.state, now.attempts) == (State.QUEUED, 3)
        assert "a bug in hostguard" in now.result["reason"]
        assert guard.backlog.paused("a", "main").id == 1

    begun(tmp_path, work)


def test_a_fault_before_the_row_is_read_leaves_it_as_it_was(tmp_path):
    async def work(guard, row):
        async def fetch(id_):
            raise RuntimeError("a fault")

        guard.ledger.fetch = fetch
        guard.starter.begin(row.row, Now(1))
        await guard.tasks.settled(5)
        assert (len(guard.live), guard.driver.started) == (0, [])
        assert guard.backlog.paused("a", "main").id == 1
        now = await guard.queue.write(lambda db: deliveries.get(db, 1))
        assert (now.state, now.turn, guard.ledger.attempts(1)) == (State.QUEUED, None, 2)

    begun(tmp_path, work)


def test_one_that_fails_once_its_turn_runs_is_left_to_run(tmp_path):
    async def work(guard, row):
        guard.driver.fails = RuntimeError("late")
        guard.starter.begin(row.row, Now(1))
        (turn,) = guard.live
        await asyncio.sleep(0)
        turn.phase = Phase.RUNNING
        await guard.tasks.settled(5)
        assert turn in guard.live

    begun(tmp_path, work)


def test_a_start_that_is_cancelled_as_the_guard_stops_is_the_next_ones(tmp_path):
    async def work(guard, row):
        guard.driver.fails = asyncio.CancelledError()
        guard.dispatcher.close()
        guard.starter.begin(row.row, Now(1))
        await guard.tasks.settled(5)
        assert len(guard.live) == 1
        now = await guard.queue.write(lambda db: deliveries.get(db, 1))
        assert (now.state, now.attempts) == (State.DELIVERING, 0)

    begun(tmp_path, work)


def test_a_row_that_ended_meanwhile_starts_nothing(tmp_path):
    async def work(guard, row):
        await guard.queue.write(lambda db: deliveries.close(db, [1], State.CANCELLED, 1, ""))
        guard.starter.begin(row.row, Now(1))
        await guard.tasks.settled(5)
        assert (len(guard.live), guard.driver.started, guard.backlog.total("a")) == (0, [], 0)

    begun(tmp_path, work)


def test_without_a_record_the_row_comes_again_unmarked(tmp_path):
    async def work(guard, row):
        guard.driver.prepared = False
        guard.starter.begin(row.row, Now(1))
        await guard.tasks.settled(5)
        now = await guard.queue.write(lambda db: deliveries.get(db, 1))
        assert (now.state, now.turn, guard.backlog.paused("a", "main").id) == (State.QUEUED, None, 1)
        assert 0 < guard.backlog.due_in(guard.recovery._clock.now()) <= 1_000

    begun(tmp_path, work)
