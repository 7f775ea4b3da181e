"""Turns that wait: one whose wait would never end is told at once, whenever that becomes so."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from onqueue import message
from played import CONFIG, OK, on_manager

from hostguard.core.clock import now_ms
from hostguard.core.model import Config, Kind, State
from hostguard.core.signals import ProcessesMoved, SessionChanged
from hostguard.gate.run_clients import RunClient
from hostguard.store import deliveries

CAPPED = replace(CONFIG, global_concurrent_turns=2)
TWO = replace(CONFIG, mind_concurrent_turns=2)
NOBODY = 1  # a process that is in no turn


class Host:
    """A manager, and processes that a test puts into scopes."""

    def __init__(self, manager, scopes):
        self.manager, self.parts, self._scopes = manager, manager.parts, scopes
        self._waits = ExitStack()

    async def sent(self, mind, session="main", **more):
        """A row; its turn has started if that was possible."""
        (row,) = (await self.parts.acceptor.store(message(mind, session=session, **more))).rows
        await self.settled()
        return row

    async def settled(self):
        await self.manager.settled(5)
        await self.manager.queue.write(lambda db: None)
        await asyncio.sleep(0)

    def unit(self, row):
        return self.parts.live.by_id(str(row.id)).live.unit

    def waits(self, by, row):
        """A process of this row's turn, or of no turn, waits for the row; what it gets if it is refused."""
        pid = 1000 + len(self._scopes)
        self._scopes[pid] = Path(
            f"/sys/fs/cgroup/x.slice/{self.unit(by) if by is not NOBODY else 'user.scope'}"
        )
        return self._waits.enter_context(self.parts.waits.begun(pid, row.row))

    def end(self, row):
        self.parts.scopes.free(self.parts.live.by_id(str(row.id)), OK)


@pytest.fixture
def hosted(tmp_path, monkeypatch):
    scopes = {}
    monkeypatch.setattr("hostguard.gate.waits.home_of", scopes.get)

    def run(work, config=CONFIG):
        async def main(manager):
            host = Host(manager, scopes)
            host.scopes = scopes
            await work(host)
            host._waits.close()
            assert host.parts.waits._waiting == []

        on_manager(tmp_path, main, config)

    return run


def test_for_its_own_session_while_another_of_its_mind_is_busy(hosted):
    async def work(host):
        other, mine = await host.sent("a", "t"), await host.sent("a", "s")
        row = await host.sent("a", "s")
        assert host.waits(mine, row).result() == (host.unit(mine),)
        assert not host.waits(other, row).done(), "that one may end after its session's turn"
        assert not host.waits(NOBODY, row).done(), "a person waits as long as they like"

    hosted(work, TWO)


def test_for_what_a_full_cap_keeps_waiting(hosted):
    async def work(host):
        mine, other = await host.sent("a"), await host.sent("b")
        row, own = await host.sent("c"), await host.sent("a", "t")
        wait = host.waits(mine, row)
        assert not wait.done(), "b ends some day"
        assert host.waits(mine, own).result() == (host.unit(mine),), "by its own mind's cap"
        theirs = host.waits(other, row)
        assert theirs.result() == (host.unit(mine), host.unit(other)), "now all that are live wait"
        assert not wait.done(), "so the older wait goes on"
        host.end(other)
        await host.settled()
        assert host.parts.live.by_id(str(row.id)), "and its row starts"
        assert not wait.done()

    hosted(work, CAPPED)


def test_once_the_cap_is_lowered(hosted):
    async def work(host):
        mine, _ = await host.sent("a"), await host.sent("b")
        row = await host.sent("c")
        wait = host.waits(mine, row)
        await host.parts.control.set_limit("global_concurrent_turns", None, 0, True)
        await host.settled()
        assert not wait.done(), "a cap of 0 is a pause"
        await host.parts.control.set_limit("global_concurrent_turns", None, 1, True)
        await host.settled()
        assert wait.result() == (host.unit(mine),)

    hosted(work, CAPPED)


def test_for_what_is_due_later_behind_itself(hosted):
    async def work(host):
        mine = await host.sent("a")
        later = {"not_before": now_ms() + 3_600_000}
        assert host.waits(mine, await host.sent("a", **later)).result() == (host.unit(mine),)
        assert not host.waits(mine, await host.sent("b", **later)).done()

    hosted(work)


def test_behind_a_pause(hosted):
    """A pause ends some day: what counts is whether the row can start then."""

    async def work(host):
        mine, other = await host.sent("a"), await host.sent("b")
        await host.parts.control.pause("c", True)
        row = await host.sent("c")
        wait = host.waits(mine, row)
        assert not wait.done()
        assert host.waits(other, row).done()
        await host.parts.control.pause(None, True)
        host.end(other)
        await host.settled()
        assert not wait.done()

    hosted(work, CAPPED)


def test_once_the_other_begins_to_wait(hosted):
    async def work(host):
        a, b = await host.sent("a"), await host.sent("b")
        behind_a, behind_b = await host.sent("a"), await host.sent("b")
        first = host.waits(a, behind_b)
        assert not first.done()
        assert host.waits(b, behind_a).result() == (host.unit(a),)
        assert not first.done(), "the one that closed the circle is refused"

    hosted(work)


def test_once_a_session_takes_nothing_more(hosted):
    """What would have gone into a live turn has to wait for its end instead."""

    async def work(host):
        mine, other = await host.sent("a"), await host.sent("b")
        turn = host.parts.live.by_id(str(other.id))
        live = replace(turn.live, takes_input=True)
        turn.live = host.parts.live._minds["b"][live.unit] = live
        row, behind = await host.sent("b"), await host.sent("a")
        wait = host.waits(mine, row)
        assert not wait.done(), "it goes into the turn of b, which ends"
        host.parts.live.close_input(turn)
        assert host.waits(other, behind).result() == (host.unit(mine),)
        host.parts.waits.changed()
        await asyncio.sleep(0)
        assert not wait.done()

    hosted(work)


def test_for_its_own_row_and_what_went_into_its_turn(hosted):
    async def work(host):
        mine, folded = await host.sent("a"), await host.sent("a")
        assert host.waits(mine, mine).result() == (host.unit(mine),)
        turn = host.parts.live.by_id(str(mine.id))
        host.parts.rows.take(folded.row)
        wait = host.waits(mine, folded)
        assert not wait.done(), "it is on its way"
        turn.folded.append((folded, turn.waited))
        for _ in range(2):
            host.parts.session_changed.send(SessionChanged("a", "main", True))
        await asyncio.sleep(0)
        assert wait.result() == (turn.live.unit,)
        host.parts.waits.changed()
        assert not host.parts.waits._due, "nobody waits any more"

    hosted(work)


def test_once_a_process_comes_into_the_scope(hosted):
    async def work(host):
        mine, row = await host.sent("a"), await host.sent("a")
        wait = host.waits(NOBODY, row)
        (pid,) = host.scopes
        host.scopes[pid] = Path(f"/sys/fs/cgroup/{host.unit(mine)}/of its own")
        host.parts.waits.changed()
        await asyncio.sleep(0)
        assert not wait.done(), "that is not looked up at each change"
        host.parts.processes_moved.send(ProcessesMoved("a"))
        await asyncio.sleep(0)
        assert wait.result() == (host.unit(mine),)

    hosted(work)


def test_for_what_is_ended_or_of_a_mind_that_is_gone(hosted):
    async def work(host):
        mine = await host.sent("a")
        gone = await host.sent("b", "t")
        row = await host.sent("a")
        host.end(gone)
        assert not host.waits(mine, gone).done()
        host.parts.policy.config = Config(minds={"b": CONFIG.minds["b"]})
        assert not host.waits(mine, row).done()

    hosted(work)


def test_one_that_left_keeps_nobody(hosted):
    async def work(host):
        a, b = await host.sent("a"), await host.sent("b")
        behind_a, behind_b = await host.sent("a"), await host.sent("b")
        with host.parts.waits.begun(NOBODY, behind_b.row) as never:
            pass
        assert never.cancelled()
        wait = host.waits(a, behind_b)
        host._waits.close()
        assert wait.cancelled()
        assert not host.waits(b, behind_a).done()

    hosted(work)


def test_a_run_that_would_wait_for_ever_ends_as_cancelled(hosted):
    async def work(host):
        mine = await host.sent("a")
        caller = RunClient(os.getpid(), os.getuid())
        new = message("a", kind=Kind.RUN, key="k")
        (row,) = (await host.parts.acceptor.store(new, caller)).rows
        behind = await host.sent("a")
        host.parts.deliveries.refuse_run(row.row, ["u.scope", "v.scope"])
        await host.settled()
        caller.events.get_nowait()  # held
        told = caller.events.get_nowait()
        assert told["event"] == "cancelled"
        assert "it waits for u.scope, v.scope, which in turn waits for it" in told["detail"]
        assert "accepted" not in told["detail"]
        stored = await host.manager.queue.read(lambda db: deliveries.get(db, row.id))
        assert (stored.state, stored.result["reason"]) == (State.CANCELLED, told["detail"])
        host.parts.deliveries.refuse_run(row.row, ["u.scope"])
        assert caller.events.empty(), "it ended already"
        host.end(mine)
        await host.settled()
        assert host.parts.live.by_id(str(behind.id))
        caller.close()

    hosted(work)
