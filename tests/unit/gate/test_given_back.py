"""A row given back, for whatever reason, keeps its place: its session waits for it, other sessions go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from onqueue import acceptor, message
from played import CONFIG, CRASH, OK, on_manager

from hostguard.core.clock import now_ms
from hostguard.core.errors import Problem
from hostguard.core.model import State
from hostguard.core.outcome import Ending
from hostguard.core.reasons import Reason
from hostguard.gate.recovery import keeps_place
from hostguard.store import deliveries
from hostguard.store.writer import Unavailable

REFUSED = Ending("refused", "the mind did not accept it: HTTP 500", failed=True)
NO_DESCRIPTOR = Ending("dismissed", "the guard cannot start a process", back=True, pause_ms=1_000)
DOWN = Ending("down", "nobody listens", back=True)


async def settled(manager):
    for _ in range(3):
        await manager.settled(5)
        await manager.queue.write(lambda db: None)


async def sent(manager, session="s", **more):
    (row,) = (await acceptor(manager).store(message("a", session=session, **more))).rows
    await settled(manager)
    return row


def live(manager):
    return [turn.delivery.id for turn in manager.live]


async def ended(manager, row, ending):
    turn = next(turn for turn in manager.live if turn.delivery.id == row)
    manager.runner.end(turn, ending)
    await settled(manager)


def mind_missing(manager, monkeypatch):
    """As in a reload, while the row is being read."""
    fetch = manager.ledger.fetch

    async def fetched(id_):
        found = await fetch(id_)
        if id_ == 1:
            monkeypatch.setattr(manager.ledger, "fetch", fetch)
            manager.policy.config = replace(CONFIG, minds={})
        return found

    monkeypatch.setattr(manager.ledger, "fetch", fetched)


def unreadable(manager, monkeypatch):
    fetch = manager.ledger.fetch

    async def fetched(id_):
        if id_ == 1:
            raise Unavailable("disk I/O error")
        return await fetch(id_)

    monkeypatch.setattr(manager.ledger, "fetch", fetched)


def live_already(manager, monkeypatch):
    begin = manager._starter.begin
    monkeypatch.setattr(manager._starter, "begin", lambda row, now: row.id != 1 and begin(row, now))


@pytest.mark.parametrize("spoil", [mind_missing, unreadable, live_already])
def test_one_that_could_not_start_stays_first(tmp_path, monkeypatch, spoil):
    async def work(manager):
        manager.ready = False
        for session in ("s", "s", "t"):
            await sent(manager, session)
        spoil(manager, monkeypatch)
        manager.ready = True
        manager.pump()
        await settled(manager)
        manager.policy.config = CONFIG
        manager.parts.control.redrive()
        await settled(manager)
        assert live(manager) == [3], "only the other session goes on"
        await ended(manager, 3, OK)
        assert live(manager) == []
        first = manager.backlog.paused("a", "s")
        assert first.id == 1
        assert 0 < first.not_before - now_ms() <= 1_000
        assert manager.parts.gate.hold(first).reason is Reason.RETRY
        row = await manager.queue.read(lambda db: deliveries.get(db, 1))
        assert (row.state, row.not_before, row.attempts) == (State.QUEUED, 0, 0), "no pause is stored"

    on_manager(tmp_path, work)


@pytest.mark.parametrize(("ending", "pause"), [(REFUSED, 5_000), (NO_DESCRIPTOR, 1_000)])
def test_one_whose_turn_did_not_come_to_be_stays_first(tmp_path, ending, pause):
    async def work(manager):
        rows = [await sent(manager, session) for session in ("s", "s", "t")]
        await ended(manager, 1, ending)
        assert live(manager) == [3]
        await ended(manager, 3, OK)
        assert live(manager) == []
        at = now_ms()
        due = manager.backlog.paused("a", "s").not_before
        assert pause - 3_000 < due - at <= pause
        stored = await manager.queue.read(lambda db: deliveries.get(db, 1))
        assert (stored.not_before == due) == ending.failed, "only that of a failure is stored"
        assert keeps_place(stored) == ending.failed
        later = await sent(manager)
        held = [e for e in manager.parts.recent.kept(0) if e["type"] == "held" and e["delivery"] == later.id]
        assert [event["reason"] for event in held] == ["retry"]

        manager.parts.recovery._clock.passed += pause
        manager.pump()
        await settled(manager)
        assert live(manager) == [1]
        for row in (1, rows[1].id, later.id):
            assert live(manager) == [row]
            await ended(manager, row, OK)

    on_manager(tmp_path, work)


def test_one_whose_mind_is_down_is_due_at_once_and_first(tmp_path):
    async def work(manager):
        for _ in range(2):
            await sent(manager)
        manager.parts.availability.note("a", "nobody listens")
        await ended(manager, 1, DOWN)
        assert live(manager) == []
        assert manager.backlog.first_in("a", "s").id == 1
        manager.parts.residents.up("a")
        await settled(manager)
        assert live(manager) == [1]

    on_manager(tmp_path, work)


def test_a_crash_lets_its_session_go_on(tmp_path):
    async def work(manager):
        for _ in range(2):
            await sent(manager)
        await ended(manager, 1, replace(CRASH, overtaken=True))
        assert live(manager) == [2]
        assert (manager.backlog.later, manager.backlog.paused("a", "s")) == (1, None)
        stored = await manager.queue.read(lambda db: deliveries.get(db, 1))
        assert not keeps_place(stored), "also after a restart"

    on_manager(tmp_path, work)


async def refused_first(manager, **more):
    for given in (more, {}, {}):
        await sent(manager, **given)
    await ended(manager, 1, REFUSED)
    assert live(manager) == []


def test_the_next_one_starts_once_it_is_cancelled(tmp_path):
    async def work(manager):
        await refused_first(manager)
        await manager.parts.deliveries.cancel(1)
        await settled(manager)
        assert live(manager) == [2]
        with pytest.raises(Problem, match="1 is cancelled already"):
            await manager.parts.deliveries.cancel(1)

    on_manager(tmp_path, work)


def test_the_next_one_starts_once_it_has_expired(tmp_path):
    async def work(manager):
        expires = now_ms() + 2_000
        await refused_first(manager, expires_at=expires)
        manager.parts.recovery._clock.passed += 2_000
        manager.pump()
        await settled(manager)
        assert live(manager) == [2]
        assert (await manager.queue.read(lambda db: deliveries.get(db, 1))).state is State.EXPIRED

    on_manager(tmp_path, work)


def test_the_next_one_starts_once_it_is_a_dead_letter_and_a_retry_takes_its_old_place(tmp_path):
    async def work(manager):
        for _ in range(3):
            await sent(manager)
        (turn,) = manager.live
        turn.delivery = replace(turn.delivery, attempts=9)
        await ended(manager, 1, REFUSED)
        assert live(manager) == [2]
        assert (await manager.queue.read(lambda db: deliveries.get(db, 1))).state is State.DEAD
        await manager.parts.deliveries.retry(1)
        await ended(manager, 2, OK)
        assert live(manager) == [1], "before all that still wait"
        await ended(manager, 1, OK)
        assert live(manager) == [3]

    on_manager(tmp_path, work)


def test_a_live_turn_takes_what_waited_behind_one_that_is_cancelled_at_a_full_cap(tmp_path):
    """A row that folds needs no slot: it must not wait for one that would let others start."""

    async def work(manager):
        row, refused = [await sent(manager) for _ in range(2)]
        other = (await acceptor(manager).store(message("b"))).rows[0]
        behind = await sent(manager)
        (turn,) = manager.live
        taking = replace(turn.live, takes_input=True)
        turn.live = manager.live._minds["a"][taking.unit] = taking
        fed = []
        manager.parts.drivers.exec.feed = lambda turn: fed.append(manager.parts.rows.first(turn.live))
        manager.parts.rows.take(refused.row)
        manager.parts.rows.give_back(refused.row, 5_000)
        await settled(manager)
        assert {*fed} <= {None}, "nothing overtakes it"
        await manager.parts.deliveries.cancel(refused.id)
        await settled(manager)
        assert fed[-1] == behind.row
        assert live(manager) == [row.id]
        assert manager.parts.gate.hold(other.row).reason is Reason.GLOBAL_CAP

    on_manager(tmp_path, work, replace(CONFIG, global_concurrent_turns=1))
