"""What the guard times itself does not follow the wall clock when that is set."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from onqueue import acceptor, message, on_queue, put
from played import CRASH, playing

from hostguard.core import clock
from hostguard.core.model import Kind, Row
from hostguard.gate import dispatcher, ledger, run_clients
from hostguard.gate.run_clients import RunClients

HOUR = 3_600_000


def test_a_pause_after_a_failure_is_over_when_the_clock_is_set_back_and_a_time_that_was_asked_for_is_not(
    tmp_path, monkeypatch
):
    skew = 0
    for module in (dispatcher, ledger):
        monkeypatch.setattr(module, "now_ms", lambda: clock.now_ms() + skew)

    async def work(queue):
        nonlocal skew
        guard = playing(queue)
        guard.ready = True
        await acceptor(guard).store(message("a"))
        await acceptor(guard).store(message("b", not_before=clock.now_ms() + HOUR))
        await guard.settled(5)
        guard.runner.end(next(iter(guard.runner.live)), CRASH)
        assert not len(guard.runner.live)
        skew = -60_000
        guard.pump()
        assert not len(guard.runner.live), "a pause of some seconds may be one of some more"
        skew = -HOUR
        guard.pump()
        await guard.settled(5)
        assert [turn.live.mind for turn in guard.runner.live] == ["a"]

    on_queue(tmp_path, work)


def test_a_pause_that_is_too_long_when_the_guard_starts_is_over(tmp_path):
    """The clock was set back while the guard was down."""

    async def work(queue):
        guard = playing(queue)
        for id_, mind in ((1, "a"), (2, "b")):
            (row,) = (await put(queue, message(mind, not_before=clock.now_ms() + HOUR)))[1]
            guard.ledger.remember(replace(row, attempts=2 if mind == "a" else 0))
            guard.backlog.add(row.row, clock.now_ms())
            assert row.id == id_
        guard.open()
        await guard.settled(5)
        assert [turn.live.mind for turn in guard.runner.live] == ["a"], "the other time was asked for"

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
