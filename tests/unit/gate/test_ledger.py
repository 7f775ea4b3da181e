"""What is remembered of a row beside its place in line, on a real queue."""

from __future__ import annotations

import asyncio
import os
from dataclasses import fields, replace

import pytest
from onqueue import acceptor, message, on_queue, put, to
from played import CRASH, OK, on_manager, parts
from set_clock import SetClock

from hostguard.core import paths
from hostguard.core.clock import Now, now_ms
from hostguard.core.model import NOT_HELD, Hold, Kind, LiveTurn, Row, State, Waited
from hostguard.core.outcome import Ending, Record
from hostguard.core.outcome import turn_id as turn_id_of
from hostguard.core.reasons import Reason
from hostguard.gate.run_clients import RunClient
from hostguard.store import deliveries
from hostguard.store.deliveries import New
from hostguard.turns import exit_record
from hostguard.turns.live import Phase, Turn

EXPIRES_MS = 300


@pytest.mark.parametrize("ended", ["cancelled", "done"])
def test_a_row_that_is_tried_again_does_not_expire_as_it_would_have_before(tmp_path, ended):
    async def work(manager):
        if ended == "cancelled":
            await manager.parts.control.pause(None, True)
        new = New(to("a"), b'{"content":1}', now_ms(), expires_at=now_ms() + EXPIRES_MS)
        (row,) = (await acceptor(manager).store(new)).rows
        await manager.settled(5)
        if ended == "cancelled":
            await manager.parts.deliveries.cancel(row.id)
        else:
            (turn,) = manager.runner.live
            manager.runner.end(turn, OK)
            await manager.queue.write(lambda db: None)
            await manager.parts.control.pause(None, True)
        await manager.parts.deliveries.retry(row.id)
        await asyncio.sleep(EXPIRES_MS / 1000 + 0.1)
        manager.pump()
        assert (await manager.parts.deliveries.find(row.id)).state is State.QUEUED
        assert manager.backlog.count("a") == 1

    on_manager(tmp_path, work)


def test_a_row_that_expires_while_it_waits_is_closed(tmp_path):
    async def work(manager):
        await manager.parts.control.pause(None, True)
        new = New(to("a"), b'{"content":1}', now_ms(), expires_at=now_ms() + EXPIRES_MS)
        (row,) = (await acceptor(manager).store(new)).rows
        await asyncio.sleep(EXPIRES_MS / 1000 + 0.1)
        await manager.queue.write(lambda db: None)
        assert (await manager.parts.deliveries.find(row.id)).state is State.EXPIRED

    on_manager(tmp_path, work)


@pytest.mark.parametrize("paused", [False, True])
def test_a_run_that_may_not_wait_is_offered_once(tmp_path, paused):
    """However long its commit took: `hostguard run --max-wait 0` has expired by then."""

    async def work(manager):
        await manager.parts.control.pause(None, paused)
        client = RunClient(os.getpid(), os.getuid())
        body, now = b'{"description":"x"}', now_ms()
        new = New(to("a", kind=Kind.RUN), body, now - 50, key="k", expires_at=now - 50)
        (row,) = (await acceptor(manager).store(new, client)).rows
        await manager.settled(5)
        await manager.queue.write(lambda db: None)
        state = (await manager.parts.deliveries.find(row.id)).state
        assert state is (State.EXPIRED if paused else State.DELIVERING)
        assert manager.backlog.count("a") == 0
        told = [client.events.get_nowait() for _ in range(client.events.qsize())]
        assert told == ([{"event": "expired", "detail": "it did not start in time"}] if paused else [])
        client.close()

    on_manager(tmp_path, work)


def test_a_row_expires_at_its_time(tmp_path):
    async def work(queue):
        guard = parts(queue)
        _, (row,) = await put(queue, message("a", expires_at=5_000))
        guard.ledger.remember(row)
        removed = []
        for now in (4_999, 5_000, 5_001):
            guard.ledger.expired(Now(now), (), lambda row, now=now: removed.append((now, row.id)) or True)
        assert removed == [(5_000, 1)]

    on_queue(tmp_path, work)


@pytest.mark.parametrize("attempts", [0, 2])
def test_a_row_that_is_closed_leaves_no_record_of_a_turn(tmp_path, monkeypatch, attempts):
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    turn_id = turn_id_of(1, attempts)

    async def work(queue):
        guard = parts(queue)
        _, (row,) = await put(queue, message("a"))
        guard.ledger.remember(replace(row, attempts=attempts))
        assert exit_record.prepare(LiveTurn("u", "a", "main", turn_id))
        with guard.waiters.waiter(1) as ended:
            guard.ledger.close(row.row, State.CANCELLED, "by request")
            assert guard.recent.kept(0) == [], "not told before it is stored"
            await asyncio.wait_for(ended, 5)
        assert [event["type"] for event in guard.recent.kept(0)] == ["cancelled"]
        assert [*paths.TURNS.iterdir()] == []

    on_queue(tmp_path, work)


SETTLED = [
    # ending, attempts before -> (state, attempts, queued again in s)
    ("done", OK, 0, State.DONE, 0, None),
    ("done at last", OK, 3, State.DONE, 3, None),
    ("a failure", CRASH, 0, State.QUEUED, 1, 5),
    ("the next one waits longer", CRASH, 1, State.QUEUED, 2, 10),
    ("the last but one", CRASH, 8, State.QUEUED, 9, 300),
    ("the last", CRASH, 9, State.DEAD, 10, None),
    ("refused for good", Ending("not_authorised", "", failed=True, hopeless=True), 0, State.DEAD, 1, None),
    ("given back", Ending("dismissed", "", back=True), 3, State.QUEUED, 3, 0),
    ("given back for a while", Ending("dismissed", "", back=True, pause_ms=2_000), 0, State.QUEUED, 0, 2),
]


@pytest.mark.parametrize(
    ("ending", "attempts", "state", "after", "pause_s"), [s[1:] for s in SETTLED], ids=[s[0] for s in SETTLED]
)
def test_what_becomes_of_a_row_whose_turn_is_over(
    tmp_path, monkeypatch, ending, attempts, state, after, pause_s
):
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")

    async def work(queue):
        guard = parts(queue)
        await put(queue, message("a", sender="a"))
        mark = "UPDATE deliveries SET attempts = ?, state = 'delivering', turn = 't', expires_at = 99"
        await queue.write(lambda db: db.execute(mark, (attempts,)))
        row = await queue.read(lambda db: deliveries.get(db, 1))
        turn = Turn(LiveTurn("u", "a", "main", "t"), now_ms() - 500, Phase.ENDING, row)
        now = guard.recovery._clock.now()
        turn.started = now.of(now.ticks - 500)
        turn.record = Record(True, exit=0, account={"write_bytes": 7})
        assert exit_record.prepare(turn.live)
        guard.ledger.remember(replace(row, expires_at=0))
        with guard.waiters.waiter(1) as final:
            again = guard.ledger.settle(row, turn, ending, Waited(4, None, Reason.PRESSURE))
            stored = await queue.write(lambda db: deliveries.get(db, 1))
            await asyncio.sleep(0)
            assert final.done() == state.final
        assert (paths.TURNS / "t").exists() == ending.back, "its next turn has the same id"
        assert (stored.state, stored.attempts) == (state, after)
        result = stored.result
        assert (result["outcome"], result["held_ms"], result["held_for"]) == (ending.outcome, 4, "pressure")
        assert 500 <= result["run_ms"] < 5_000
        assert guard.ledger.written["a"] == 7
        if pause_s is None:
            assert again is None
            assert guard.ledger.attempts(1) == 0
            assert guard.ledger.expires_in(Now(0)) is None
        else:
            assert (again.id, again.mind, again.session, again.kind) == (1, "a", "main", Kind.MESSAGE)
            assert guard.ledger.attempts(1) == after
            assert abs(again.not_before - (now_ms() + pause_s * 1000 if pause_s else 0)) < 500
            assert guard.ledger.expires_in(Now(0)) == 99
        types = [event["type"] for event in guard.recent.kept(0)]
        assert types[:2] == {State.DONE: ["ended"], State.DEAD: ["ended", "dead"]}.get(
            state, ["failed"] if ending.failed else []
        )
        notices = await queue.read(lambda db: deliveries.select(db, ("queued",), "a", 1, 9))
        assert [one.kind for one in notices] == ([Kind.NOTICE] if state is State.DEAD else [])
        assert guard.backlog.total("a") == len(notices), "the notice is admitted"

    on_queue(tmp_path, work)


@pytest.mark.parametrize("ending", [CRASH, Ending("dismissed", "", back=True)])
def test_a_row_given_back_keeps_every_field_of_it(tmp_path, ending):
    async def work(queue):
        guard = parts(queue)
        await put(queue, message("a", session="s", kind=Kind.SCRIPT, not_before=5))
        await queue.write(lambda db: db.execute("UPDATE deliveries SET due = 8"))
        await queue.write(lambda db: deliveries.mark_delivering(db, 1, "t", Now(1), {}))
        row = await queue.read(lambda db: deliveries.get(db, 1))
        stored = {item for item in fields(Row) if item.name != "since"}
        assert not [item.name for item in stored if getattr(row, item.name) in (item.default, None)]
        assert row.row == Row(**{item.name: getattr(row, item.name) for item in stored})
        live = LiveTurn.of(row.row, "u", "t")
        for name in {item.name for item in fields(LiveTurn)} & {item.name for item in fields(Row)} - {"id"}:
            assert getattr(live, name) == getattr(row, name)
        again = guard.ledger.settle(row, Turn(live, now_ms(), Phase.ENDING, row), ending, NOT_HELD)
        assert replace(again, not_before=5, due=8) == row.row
        await queue.write(lambda db: None)
        now = guard.recovery._clock.now()
        guard.backlog.load(await queue.read(deliveries.queued), replace(now, date=0))
        later = replace(now, date=again.not_before, ticks=now.ticks + 10_000)
        assert guard.backlog.due(later) == [again], "so does one that is read at the next start"

    on_queue(tmp_path, work)


def test_a_run_comes_again_only_while_its_caller_waits_and_leaves_no_notice(tmp_path):
    async def work(queue):
        guard = parts(queue)
        for id_ in (1, 2, 3):
            await put(queue, message("a", kind=Kind.RUN))
            await queue.write(lambda db, i=id_: deliveries.mark_delivering(db, i, str(i), Now(1), {}))
        rows = [await queue.read(lambda db, i=i: deliveries.get(db, i)) for i in (1, 2, 3)]
        guard.run_clients._waiting[1] = (rows[0].row, None)
        back = Ending("dismissed", "", back=True)
        turns = [Turn(LiveTurn("u", "a", "main", str(row.id)), now_ms(), Phase.ENDING, row) for row in rows]
        assert guard.ledger.settle(rows[0], turns[0], back, NOT_HELD).kind is Kind.RUN
        assert guard.ledger.settle(rows[1], turns[1], back, NOT_HELD) is None
        assert guard.ledger.settle(rows[2], turns[2], CRASH, NOT_HELD) is None
        await queue.write(lambda db: None)
        stored = [await queue.read(lambda db, i=i: deliveries.get(db, i)) for i in (1, 2, 3, 4)]
        assert [row and row.state for row in stored] == [
            State.QUEUED, State.CANCELLED, State.CANCELLED, None,
        ]  # fmt: skip

    on_queue(tmp_path, work)


def test_a_scripts_output_becomes_a_message(tmp_path):
    async def work(queue):
        guard = parts(queue)
        await put(queue, message("a", session="$script:x:main", kind=Kind.SCRIPT))
        await queue.write(lambda db: deliveries.mark_delivering(db, 1, "1", Now(1), {}))
        row = await queue.read(lambda db: deliveries.get(db, 1))
        turn = Turn(LiveTurn("u", "a", row.session, "1"), now_ms(), Phase.ENDING, row)
        turn.record = Record(True, exit=0, output="hello")
        guard.ledger.settle(row, turn, OK, NOT_HELD)
        await queue.write(lambda db: None)
        assert guard.backlog.first_in("a", "main") == Row(2, "a", "main", kind=Kind.SCHEDULE)
        assert b"hello" in (await queue.read(lambda db: deliveries.with_payload(db, 2)))[1]

    on_queue(tmp_path, work)


def test_a_row_that_began_waited_since_it_was_due(tmp_path):
    async def work(queue):
        clock = SetClock()
        guard = parts(queue, clock=clock)
        _, (row, other) = await put(queue, message("a", "b"))
        turn, since = Turn(LiveTurn("u", "a", "main", "1"), 5_000, Phase.STARTING), clock.now().stamp
        guard.ledger.hold_begins(row.row, Hold(Reason.MIND_BUSY, "x"))
        guard.ledger.hold_begins(row.row, Hold(Reason.PRESSURE, "y"))
        clock.passed, clock.skew = 4_000, -60_000
        waited = guard.ledger.begin(row, turn, since)
        assert waited == (waited.ms, "x", Reason.MIND_BUSY, since)
        assert 4_000 <= waited.ms < 9_000
        waited = guard.ledger.begin(other, turn, since)
        assert waited == (waited.ms, None, None, since)
        stored = await queue.write(lambda db: deliveries.get(db, 1))
        assert (stored.state, stored.turn) == (State.DELIVERING, "1")
        assert abs(stored.started_at - clock.date()) < 5_000
        assert clock.now().since(stored.started) < 5_000
        assert stored.result == {
            "held_ms": stored.result["held_ms"],
            "held_for": "mind_busy",
            "held_behind": "x",
        }
        guard.ledger.confirm(row, turn)
        assert (await queue.write(lambda db: deliveries.get(db, 1))).posted_at > 0
        assert [event["type"] for event in guard.recent.kept(0)] == ["held", "hold_ended"]
        guard.ledger.folded(other, turn, Waited(6, None))
        assert guard.recent.kept(0)[-1]["waited_ms"] == 6

    on_queue(tmp_path, work)
