"""What is remembered of a row beside its place in line, on a real queue."""

from __future__ import annotations

import asyncio

import pytest
from onqueue import acceptor, to
from played import OK, on_manager

from hostguard.core.clock import now_ms
from hostguard.core.model import State
from hostguard.store.deliveries import New

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
