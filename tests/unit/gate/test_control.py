"""What an operator does, on a real queue; turns are played, and so is what of systemd is asked."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import closing

import pytest
from onqueue import message, put, to
from played import OK, on_manager, sink

from hostguard.core.clock import Now, now_ms
from hostguard.core.errors import Problem
from hostguard.core.model import Kind, State
from hostguard.gate import run_clients
from hostguard.gate.control import ID_MAX
from hostguard.gate.policy import CAP_MAX
from hostguard.gate.run_clients import RunClient
from hostguard.store import deliveries, requests
from hostguard.store.deliveries import New
from hostguard.store.settings import LIMIT, PAUSE, stored
from hostguard.store.writer import Unavailable
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.telemetry.events import RecentEvents
from hostguard.turns.live import Phase

ALL, MINE = "global_concurrent_turns", "mind_concurrent_turns"


def events(manager, *types):
    return [event for event in sink(manager, RecentEvents).kept(0) if event["type"] in types]


async def sent(manager, mind="a", **more):
    (row,) = (await manager.parts.acceptor.store(message(mind, **more))).rows
    await settled(manager)
    return row


async def settled(manager):
    await manager.settled(5)
    await manager.queue.write(lambda db: None)


def test_a_pause_holds_new_turns_and_ends_with_a_resume(tmp_path):
    async def work(manager):
        control = manager.parts.control
        await sent(manager, "b")
        await control.pause(None, True)
        row = await sent(manager, "a")
        assert len(manager.live) == 1, "the live one goes on, and no other starts"
        assert await manager.queue.read(stored) == {"pause": True}
        await control.pause(None, False)
        await settled(manager)
        assert [turn.delivery.id for turn in manager.live if turn.live.mind == "a"] == [row.id]
        assert await manager.queue.read(stored) == {}
        assert [(one["type"], one.get("mind")) for one in events(manager, "paused", "resumed")] == [
            ("paused", None), ("resumed", None),
        ]  # fmt: skip

    on_manager(tmp_path, work)


def test_what_was_so_before_is_no_event(tmp_path):
    async def work(manager):
        control = manager.parts.control
        assert [await control.pause(None, on) for on in (False, True, True, False, False)] == [
            False, True, False, True, False,
        ]  # fmt: skip
        assert [one["type"] for one in events(manager, "paused", "resumed")] == ["paused", "resumed"]

    on_manager(tmp_path, work)


def test_a_pause_of_one_mind_is_its_own(tmp_path):
    async def work(manager):
        await manager.parts.control.pause("a", True)
        await sent(manager, "a")
        await sent(manager, "b")
        assert [turn.live.mind for turn in manager.live] == ["b"]
        assert events(manager, "paused")[0]["mind"] == "a"

    on_manager(tmp_path, work)


@pytest.mark.parametrize(("paused", "revoked"), [(None, True), ("a", True), ("b", False)])
def test_a_turn_that_is_just_starting_does_not(tmp_path, paused, revoked):
    async def work(manager):
        await manager.parts.acceptor.store(message("a"))
        (turn,) = manager.live
        assert turn.phase is Phase.STARTING
        await manager.parts.control.pause(paused, True)
        assert turn.revoked is revoked

    on_manager(tmp_path, work)


def test_a_turn_that_runs_is_not_revoked(tmp_path):
    async def work(manager):
        await sent(manager, "a")
        await manager.parts.control.pause(None, True)
        assert [turn.revoked for turn in manager.live] == [False]

    on_manager(tmp_path, work)


def test_an_unknown_mind_is_not_paused_but_one_that_was_removed_is_resumed(tmp_path):
    async def work(manager):
        control = manager.parts.control
        for on in (True, False):
            with pytest.raises(Problem, match="there is no mind x"):
                await control.pause("x", on)
        manager.parts.settings.use(PAUSE.to(".mind.x", True))
        with pytest.raises(Problem, match="there is no mind x"):
            await control.pause("x", True)
        assert await control.pause("x", False)
        assert not manager.policy.paused("x")

    on_manager(tmp_path, work)


@pytest.mark.parametrize("on", [True, False])
def test_what_the_card_does_not_take_is_as_before(tmp_path, monkeypatch, on):
    monkeypatch.setattr(requests, "ANSWER_S", 0.1)

    async def work(manager):
        control, go = manager.parts.control, threading.Event()
        if not on:
            await control.pause(None, True)
        begun = threading.Event()
        held = manager.queue.submit(lambda db: (begun.set(), go.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        change = asyncio.create_task(control.pause(None, on))
        await asyncio.sleep(0.02)
        assert manager.policy.paused(), "a pause at once, a resume only once it is stored"
        with pytest.raises(Problem, match="nothing was done"):
            await change
        assert manager.policy.paused() is not on
        go.set()
        await held.future

    on_manager(tmp_path, work)


@pytest.mark.parametrize(
    ("name", "mind", "value", "runtime", "limit", "said"),
    [
        (ALL, None, 3, False, (3, "kept"), (3, "global_concurrent_turns is 3 (kept)")),
        (ALL, None, 0, True, (0, "runtime"), (0, "global_concurrent_turns is 0 (runtime)")),
        (ALL, None, CAP_MAX, False, (CAP_MAX, "kept"), (CAP_MAX, "global_concurrent_turns is 10000 (kept)")),
        (ALL, None, "unlimited", True, (None, "runtime"),
         ("unlimited", "global_concurrent_turns is unlimited (runtime)")),
        (MINE, "a", 2, False, (2, "kept"), (2, "mind_concurrent_turns of a is 2 (kept)")),
        (MINE, None, "default", False, (1, "default"), (1, "mind_concurrent_turns is 1 (default)")),
    ],
)  # fmt: skip
def test_a_limit_is_set(tmp_path, name, mind, value, runtime, limit, said):
    async def work(manager):
        await manager.parts.control.set_limit(name, mind, value, runtime)
        assert manager.policy.limit(name, mind) == limit
        (event,) = events(manager, "limit")
        assert (event["limit"], event.get("mind"), event["value"], event["source"]) == (
            name, mind, said[0], limit[1],
        )  # fmt: skip
        assert event["text"] == said[1]
        found = await manager.queue.read(stored)
        setting = manager.parts.settings.get(LIMIT, name + (f".mind.{mind}" if mind else ""))
        assert list(found.values()) == ([setting] if setting else [])
        if setting:
            assert (setting["boot"] is not None) is runtime

    on_manager(tmp_path, work)


def test_a_limit_is_reset(tmp_path):
    async def work(manager):
        control = manager.parts.control
        await control.set_limit(ALL, None, 0, False)
        await sent(manager)
        assert len(manager.live) == 0
        await control.set_limit(ALL, None, "default", False)
        assert await manager.queue.read(stored) == {}
        assert len(manager.live) == 1, "what fits now starts at once"

    on_manager(tmp_path, work)


@pytest.mark.parametrize(
    ("name", "mind", "value", "fault"),
    [
        ("x", None, 1, "there is no limit x"),
        (ALL, "a", 1, "applies to the whole host"),
        (MINE, "x", 1, "there is no mind x"),
        (ALL, None, -1, "value must be"),
        (ALL, None, CAP_MAX + 1, "value must be"),
        (ALL, None, True, "value must be"),
        (ALL, None, 1.5, "value must be"),
        (ALL, None, "3", "value must be"),
        (ALL, None, None, "value must be"),
    ],
)
def test_a_limit_that_is_none(tmp_path, name, mind, value, fault):
    async def work(manager):
        with pytest.raises(Problem, match=fault):
            await manager.parts.control.set_limit(name, mind, value, False)
        assert await manager.queue.read(stored) == {}

    on_manager(tmp_path, work)


def test_a_turn_is_stopped_by_its_id(tmp_path):
    async def work(manager):
        await sent(manager)
        (turn,) = manager.live
        asked = []

        class Scopes:
            fault = None

            async def stop(self, turn):
                asked.append(turn)
                if self.fault is not None:
                    raise self.fault

        control = manager.parts.control
        control._scopes = Scopes()
        assert await control.stop("1") is turn
        assert asked == [turn]
        with pytest.raises(Problem, match="there is no turn 2"):
            await control.stop("2")
        for fault in (SystemdError("x", "no"), SystemdLost("gone")):
            Scopes.fault = fault
            with pytest.raises(Problem, match="systemd did not stop hostguard-turn-a-1"):
                await control.stop("1")

    on_manager(tmp_path, work)


def test_a_row_is_found_or_unknown(tmp_path):
    async def work(manager):
        row = await sent(manager)
        assert (await manager.parts.deliveries.find(row.id)).id == row.id
        for id_ in (77, ID_MAX, ID_MAX + 1):
            with pytest.raises(Problem, match=f"there is no delivery {id_}"):
                await manager.parts.deliveries.find(id_)

    on_manager(tmp_path, work)


def test_what_waits_is_cancelled_and_what_does_not_is_not(tmp_path):
    async def work(manager):
        control = manager.parts.deliveries
        first, second = await sent(manager, "a"), await sent(manager, "a")
        with pytest.raises(Problem, match="is in turn 1: hostguard stop 1"):
            await control.cancel(first.id)
        with manager.ledger.waiters.waiter(second.id) as waiter:
            cancelled = await control.cancel(second.id)
            await asyncio.sleep(0)
            assert waiter.done()
        assert (cancelled.state, cancelled.result["reason"]) == (State.CANCELLED, "cancelled by request")
        assert manager.backlog.total("a") == 0
        with pytest.raises(Problem, match="2 is cancelled already"):
            await control.cancel(second.id)

    on_manager(tmp_path, work)


@pytest.mark.parametrize("where", ["due", "later", "parked"])
def test_what_the_card_does_not_store_is_not_cancelled(tmp_path, monkeypatch, where):
    """`hostguard cancel` on a full disk hung, was told as done, and the row ran after a restart."""

    async def work(manager):
        control, clients = manager.parts.deliveries, manager.parts.run_clients
        await manager.parts.control.pause(None, True)
        soon = now_ms() + 60_000
        if where == "parked":
            (row,) = (await put(manager.queue, message("a", kind=Kind.RUN)))[1]
            clients.park(row.row)
        else:
            row = await sent(manager, not_before=soon if where == "later" else 0, expires_at=soon + 1)

        def full(batch):
            return Unavailable("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(manager.queue, "_try_commit", full)
            with manager.ledger.waiters.waiter(row.id) as waiter:
                with pytest.raises(Problem, match="the queue accepts no writes: database or disk is full"):
                    await control.cancel(row.id)
                assert not waiter.done()
        assert events(manager, "cancelled") == []
        assert (await control.find(row.id)).state is State.QUEUED
        if where != "parked":
            assert manager.backlog.total("a") == 1, "it is where it was"
            assert manager.ledger.expires_in(Now(0)) == soon + 1
        assert (await control.cancel(row.id)).state is State.CANCELLED
        assert [event["delivery"] for event in events(manager, "cancelled")] == [row.id]
        assert manager.backlog.total("a") == 0

    on_manager(tmp_path, work)


def test_a_row_does_not_start_while_its_cancellation_is_being_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "ANSWER_S", 0.2)

    async def work(manager):
        control, go, begun = manager.parts.deliveries, threading.Event(), threading.Event()
        await manager.parts.control.pause(None, True)
        row = await sent(manager)
        real = deliveries.close

        def hang(*args):
            begun.set()
            go.wait(10)
            return real(*args)

        monkeypatch.setattr(deliveries, "close", hang)
        with pytest.raises(Problem, match="it is done once it works again"):
            await control.cancel(row.id)
        manager.parts.settings.use(PAUSE.to("", None))
        manager.pump()
        assert (len(manager.live), events(manager, "cancelled")) == (0, [])
        with pytest.raises(Problem, match="1 is being cancelled") as problem:
            await control.cancel(row.id)
        assert problem.value.status == 503
        go.set()
        await settled(manager)
        assert (await control.find(row.id)).state is State.CANCELLED
        assert len(events(manager, "cancelled")) == 1

    on_manager(tmp_path, work)


def test_one_that_has_ended_but_whose_turn_is_live_is_not_cancelled(tmp_path):
    """Whoever wants it cancelled is told how to end what still runs."""

    async def work(manager):
        row = await sent(manager)
        await manager.queue.write(lambda db: db.execute("UPDATE deliveries SET state = 'done'"))
        with pytest.raises(Problem, match="1 is in turn 1: hostguard stop 1 ends it"):
            await manager.parts.deliveries.cancel(row.id)

    on_manager(tmp_path, work)


def test_one_that_is_just_starting_is_not_cancelled(tmp_path):
    async def work(manager):
        (row,) = (await manager.parts.acceptor.store(message("a"))).rows
        with pytest.raises(Problem, match=r"in turn|being started"):
            await manager.parts.deliveries.cancel(row.id)

    on_manager(tmp_path, work)


def test_one_that_left_the_line_is_being_started(tmp_path):
    async def work(manager):
        await manager.parts.control.pause(None, True)
        row = await sent(manager)
        manager.backlog.remove(row.id, "a", "main")
        with pytest.raises(Problem, match="1 is being started: hostguard turns"):
            await manager.parts.deliveries.cancel(row.id)
        manager.parts.run_clients.park(row.row)
        assert (await manager.parts.deliveries.cancel(row.id)).state is State.CANCELLED, "its client is away"

    on_manager(tmp_path, work)


@pytest.mark.parametrize("state", [State.BATCHING, State.QUARANTINED])
def test_a_row_that_is_held_back_is_cancelled_where_it_is(tmp_path, state):
    async def work(manager):
        cancelled = []
        manager.parts.deliveries._held = type(
            "Held", (), {"cancel": lambda self, row: cancelled.append(row)}
        )()
        (row,) = (await put(manager.queue, New(to("a", state=state), b"{}", 1)))[1]
        with manager.ledger.waiters.waiter(row.id) as waiter:
            found = await manager.parts.deliveries.cancel(row.id)
            assert waiter.done()
        assert (found.state, cancelled) == (State.CANCELLED, [row])
        assert [event["delivery"] for event in events(manager, "cancelled")] == [row.id]

    on_manager(tmp_path, work)


def test_an_ended_row_is_tried_again(tmp_path):
    async def work(manager):
        control = manager.parts.deliveries
        row = await sent(manager)
        with pytest.raises(Problem, match="1 is delivering: only an ended"):
            await control.retry(row.id)
        manager.runner.end(next(iter(manager.live)), OK)
        await settled(manager)
        assert (await control.find(row.id)).state is State.DONE
        again = await control.retry(row.id)
        await settled(manager)
        assert again.state in (State.QUEUED, State.DELIVERING)
        assert [turn.delivery.id for turn in manager.live] == [row.id]
        with pytest.raises(Problem, match="there is no delivery 9"):
            await control.retry(9)

    on_manager(tmp_path, work)


def test_a_run_is_not_tried_again(tmp_path):
    async def work(manager):
        (row,) = (await put(manager.queue, message("a", kind=Kind.RUN)))[1]
        await manager.queue.write(lambda db: deliveries.close(db, [row.id], State.EXPIRED, 1, "x"))
        with pytest.raises(Problem, match="was a `hostguard run`: run it again"):
            await manager.parts.deliveries.retry(row.id)

    on_manager(tmp_path, work)


def test_only_a_dead_letter_is_dropped(tmp_path):
    async def work(manager):
        control = manager.parts.deliveries
        row = await sent(manager)
        with pytest.raises(Problem, match="1 is delivering: only a dead letter"):
            await control.drop(row.id)
        await manager.queue.write(lambda db: db.execute("UPDATE deliveries SET state = 'dead'"))
        assert (await control.drop(row.id)).state is State.CANCELLED
        with pytest.raises(Problem, match="there is no delivery 9"):
            await control.drop(9)

    on_manager(tmp_path, work)


async def run_row(manager, uid=None):
    """A run that waits, since all is paused, and its client."""
    await manager.parts.control.pause(None, True)
    client = RunClient(os.getpid(), os.getuid())
    new = New(to("a", kind=Kind.RUN, uid=uid), b"{}", now_ms(), key="k")
    (row,) = (await manager.parts.acceptor.store(new, client)).rows
    return row, client


def test_rows_that_are_set_aside_wait_no_more(tmp_path):
    """They were counted, and shown as the longest wait; a `hostguard run` was never told."""

    async def work(manager):
        run, client = await run_row(manager)
        first, later = await sent(manager, "a"), await sent(manager, "b", not_before=now_ms() + 60_000)
        stays = await sent(manager, "a")
        gone = [run.id, first.id, later.id]
        with closing(sqlite3.connect(tmp_path / "queue.db")) as db, db:
            db.executemany("UPDATE deliveries SET session = 's' WHERE id = ?", [(id_,) for id_ in gone])
        with manager.ledger.waiters.waiter(first.id) as waiter:
            await manager.queue.read(lambda db: deliveries.select(db, (), None, 0, 100))
            await settled(manager)
            assert waiter.done()
        assert [manager.backlog.total(mind) for mind in "ab"] == [1, 0]
        assert manager.backlog.first("a").id == stays.id
        told = [client.events.get_nowait() for _ in range(client.events.qsize())]
        assert told[-1] == {"event": "cancelled", "detail": "its row in the queue was damaged"}
        client.close()

    on_manager(tmp_path, work)


def test_a_client_that_leaves_ends_its_run(tmp_path):
    async def work(manager):
        control = manager.parts.deliveries
        row, client = await run_row(manager)
        other = RunClient(os.getpid(), os.getuid())
        control.client_left(row.id, other)  # an older connection
        assert manager.parts.run_clients.waits(row.id)
        control.client_left(row.id, client)
        await settled(manager)
        found = await control.find(row.id)
        assert (found.state, found.result["reason"]) == (State.CANCELLED, "its `hostguard run` ended")
        control.client_left(row.id, client)  # twice
        other.close()
        client.close()

    on_manager(tmp_path, work)


def test_one_whose_connection_the_guard_closes_keeps_its_run(tmp_path):
    async def work(manager):
        row, client = await run_row(manager)
        manager.closing = True
        manager.parts.deliveries.client_left(row.id, client)
        await settled(manager)
        assert (await manager.parts.deliveries.find(row.id)).state is State.QUEUED
        client.close()

    on_manager(tmp_path, work)


def test_a_run_that_has_begun_is_not_ended_by_its_client(tmp_path):
    async def work(manager):
        row, client = await run_row(manager)
        manager.backlog.remove(row.id, "a", "main")
        manager.parts.deliveries.client_left(row.id, client)
        await settled(manager)
        assert (await manager.parts.deliveries.find(row.id)).state is State.QUEUED
        client.close()

    on_manager(tmp_path, work)


def test_a_run_whose_client_does_not_come_back_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(run_clients, "AWAY_S", 0.1)

    async def work(manager):
        row, client = await run_row(manager)
        manager.parts.run_clients.detach(row.id, client)
        await manager.parts.control.pause(None, False)
        assert manager.backlog.count("a") == 0, "it could start, but for its client"
        with manager.parts.waiters.waiter(row.id) as ended:
            await asyncio.wait_for(ended, 10)
        found = await manager.parts.deliveries.find(row.id)
        assert (found.state, found.result["reason"]) == (State.CANCELLED, "its `hostguard run` ended")
        client.close()

    on_manager(tmp_path, work)


def test_only_the_user_of_a_run_comes_back_for_it(tmp_path):
    async def work(manager):
        row, client = await run_row(manager, uid=os.getuid() + 1)
        manager.parts.run_clients.detach(row.id, client)
        with pytest.raises(Problem, match=f"1 is the run of uid {os.getuid() + 1}"):
            manager.parts.deliveries.reattach(row, client)
        assert not manager.parts.run_clients.waits(row.id)
        client.close()

    on_manager(tmp_path, work)


@pytest.mark.parametrize("state", ["done", "dead"])
def test_what_was_authorised_for_another_user_is_not_tried_again(tmp_path, state):
    async def work(manager):
        row = await sent(manager, kind=Kind.SCRIPT, session="$script:x:main")
        for turn in manager.live:
            manager.runner.free(turn, OK)
        await settled(manager)
        mark = "UPDATE deliveries SET state = ?, uid = 7 WHERE id = ?"
        await manager.queue.write(lambda db: db.execute(mark, (state, row.id)))
        with pytest.raises(Problem, match="1 is not tried again: it was authorised for uid 7"):
            await manager.parts.deliveries.retry(row.id)
        assert (await manager.parts.deliveries.find(row.id)).state == state

    on_manager(tmp_path, work)


def test_a_client_comes_back(tmp_path):
    async def work(manager):
        control, clients = manager.parts.deliveries, manager.parts.run_clients
        row, client = await run_row(manager)
        with pytest.raises(Problem, match="1 is queued already"):
            control.reattach(row, client)
        clients.detach(row.id, client)
        manager.backlog.remove(row.id, "a", "main")
        clients.park(row.row)
        control.reattach(row, client)
        assert clients.waits(row.id)
        assert clients.unpark(row.id) is None
        assert manager.backlog.has(row.id, "a", "main")
        clients.detach(row.id, client)
        control.reattach(row, client)  # it was not parked yet
        assert clients.waits(row.id)
        await control.cancel(row.id)
        with pytest.raises(Problem, match="1 is cancelled already"):
            control.reattach(await control.find(row.id), client)
        client.close()

    on_manager(tmp_path, work)
