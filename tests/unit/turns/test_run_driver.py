"""A `hostguard run`'s turn: the caller's own process in a scope, and what it is told."""

from __future__ import annotations

import asyncio
import os

import pytest
from turned_on import MIND, keeping, row

from hostguard.core import paths
from hostguard.core.model import Kind
from hostguard.systemd.dbus import SystemdError
from hostguard.turns.drivers.run_driver import RunDriver
from hostguard.turns.live import Phase


class Caller:
    def __init__(self, pid, alive=True):
        self.pid, self._alive, self.told = pid, alive, []
        self.pidfd = os.pidfd_open(pid)

    def alive(self):
        return self._alive

    def tell(self, event):
        self.told.append(event)


def run_of(monkeypatch, work, alive=True):
    async def run():
        async with keeping(monkeypatch) as keeper:
            caller = Caller((await keeper.host.take()).pid, alive)
            waiting = {7: caller}
            keeper.run_driver = RunDriver(keeper.scopes, lambda id_: waiting.pop(id_, None))
            delivery = row(7, Kind.RUN)
            turn = keeper.turn("7", delivery, keeper.run_driver)
            keeper.waiting = waiting
            await work(keeper, turn, caller, delivery)
            os.close(caller.pidfd)

    asyncio.run(run())


def test_the_caller_is_moved_and_told_its_turn(tmp_path, monkeypatch):
    async def work(keeper, turn, caller, delivery):
        driver = keeper.run_driver
        assert not driver.takes_input
        assert driver.prepare(turn)
        assert await driver.start(turn, MIND, delivery, b"")
        assert caller.told == [{"event": "start", "turn": "7", "unit": turn.live.unit}]
        assert keeper.host.units[turn.live.unit]["PIDs"] == [caller.pid, turn.stub.pid]
        assert (turn.phase, keeper.waiting) == (Phase.RUNNING, {})
        driver.feed(turn)
        await driver.resume(turn, MIND)
        assert driver.end(turn).outcome == "exited"
        turn.stopped = True
        assert driver.end(turn).outcome == "stopped"

    monkeypatch.setattr(paths, "TURNS", tmp_path)
    run_of(monkeypatch, work)


@pytest.mark.parametrize(("restarted", "outcome"), [(True, "killed"), (False, "exited")])
def test_a_turn_of_an_earlier_guard_ended_with_the_host_or_by_itself(
    tmp_path, monkeypatch, restarted, outcome
):
    """Its caller is gone with the host, so that it cannot run again."""

    async def work(keeper, turn, caller, delivery):
        keeper.run_driver.prepare(turn)
        turn.resumed = True
        if restarted:
            (tmp_path / "7").unlink()
        ending = keeper.run_driver.end(turn)
        assert (ending.outcome, ending.back, ending.failed) == (outcome, restarted, False)

    monkeypatch.setattr(paths, "TURNS", tmp_path)
    run_of(monkeypatch, work)


def test_a_caller_that_was_only_paused_waits_on(monkeypatch):
    async def work(keeper, turn, caller, delivery):
        turn.revoked = True
        assert not await keeper.run_driver.start(turn, MIND, delivery, b"")
        assert (caller.told, keeper.waiting) == ([], {7: caller})
        [(_, ending)] = keeper.over
        assert (ending.outcome, ending.back) == ("dismissed", True)

    run_of(monkeypatch, work)


def test_a_caller_that_is_gone(monkeypatch):
    async def work(keeper, turn, caller, delivery):
        assert not await keeper.run_driver.start(turn, MIND, delivery, b"")
        [(_, ending)] = keeper.over
        assert (ending.outcome, ending.back) == ("dismissed", True)
        assert keeper.host.units == {}

    run_of(monkeypatch, work, alive=False)


@pytest.mark.parametrize(("revoked", "asked", "why"), [
    (False, False, "systemd did not start its scope"), (True, True, "it was stopped"),
    (False, True, "it was stopped"),
])  # fmt: skip
def test_a_caller_is_told_why_it_does_not_run(monkeypatch, revoked, asked, why):
    async def work(keeper, turn, caller, delivery):
        turn.revoked, turn.asked = revoked, asked
        if not asked:
            keeper.host.errors["start_scope"] = [SystemdError("x", "no")]
        assert not await keeper.run_driver.start(turn, MIND, delivery, b"")
        assert caller.told == [{"event": "failed", "detail": why}]

    run_of(monkeypatch, work)


def test_a_caller_that_ends_while_its_scope_is_started_is_no_failure(monkeypatch):
    """Nobody is left to try again: a dead letter of it could not even be retried."""

    async def work(keeper, turn, caller, delivery):
        alive = iter([True, False])
        caller.alive = lambda: next(alive)
        keeper.host.errors["start_scope"] = [SystemdError("x", "no such process")]
        assert not await keeper.run_driver.start(turn, MIND, delivery, b"")
        [(_, ending)] = keeper.over
        assert (ending.outcome, ending.back, ending.failed) == ("dismissed", True, False)
        assert ending.reason == "its `hostguard run` ended before it began"

    run_of(monkeypatch, work)
