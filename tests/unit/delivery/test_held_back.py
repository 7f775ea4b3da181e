"""Batches and quarantine as one, on a real queue: each row goes to its own."""

from __future__ import annotations

import asyncio
import json

import pytest
from gathering import LONG
from onqueue import on_queue
from played import parts
from unmatched import ALL, NOTHING_MATCHES, store, unmatched

from hostguard.core.clock import now_ms
from hostguard.core.model import Config, Mind, State, Target
from hostguard.core.ports import HeldRows
from hostguard.delivery.routes import parse_routes
from hostguard.store import deliveries
from hostguard.store.deliveries import New

BODY = json.dumps({"content": "x", "channel": "#x", "sender": "ann"}).encode()


class Host:
    """The parts of a guard whose only mind is bob, in whose routes nothing matches."""

    def __init__(self, queue):
        self.queue = queue
        self.parts = parts(queue, Config(minds={"bob": Mind("bob", routes="/r")}))
        self.routes = {"bob": NOTHING_MATCHES}
        self.parts.quarantine._routes = self.routes.get
        self.held: HeldRows = self.parts.held

    async def send(self, state):
        """Store a message to bob, and have it held."""
        if state is State.QUARANTINED:
            new = unmatched()
            fresh, done = await self.queue.write(store(new))
        else:
            target = Target("bob", "s", state, result={"batch": LONG})
            new = New((target,), BODY, now_ms(), sender="ann", channel="#x")
            fresh, done = await self.queue.write(store(new))
        self.parts.held.stored(fresh, new.payload, done)
        return fresh[0]


def on_host(path, work):
    on_queue(path, lambda queue: work(Host(queue)))


def test_each_row_counts_where_it_is(tmp_path):
    async def work(host):
        await host.parts.held.start()
        assert host.held.counts("bob") == (0, 0)
        await host.send(State.BATCHING)
        assert host.held.counts("bob") == (1, 0)
        await host.send(State.QUARANTINED)
        await host.send(State.QUARANTINED)
        assert host.held.counts("bob") == (1, 2)
        await host.send(State.QUEUED)
        assert host.held.counts("bob") == (1, 2), "not held"
        assert host.held.counts("eve") == (0, 0)
        host.parts.held.close()

    on_host(tmp_path, work)


@pytest.mark.parametrize(("state", "left"), [(State.BATCHING, (0, 1)), (State.QUARANTINED, (1, 0))])
def test_a_cancelled_row_counts_no_more(tmp_path, state, left):
    async def work(host):
        await host.parts.held.start()
        rows = {one: await host.send(one) for one in (State.BATCHING, State.QUARANTINED)}
        host.held.cancel(rows[state])
        assert host.held.counts("bob") == left
        host.parts.held.close()

    on_host(tmp_path, work)


def test_the_next_guard_holds_them_again(tmp_path):
    async def before(host):
        await host.parts.held.start()
        await host.send(State.BATCHING)
        await host.send(State.QUARANTINED)
        host.parts.held.close()

    async def after(host):
        await host.parts.held.start()
        assert host.held.counts("bob") == (1, 1)
        host.parts.held.close()

    on_host(tmp_path, before)
    on_host(tmp_path, after)


def test_a_reload_releases_what_is_matched_now(tmp_path):
    async def work(host):
        await host.parts.held.start()
        row = await host.send(State.QUARANTINED)
        assert host.parts.held.releasing("bob") is None
        host.routes["bob"] = ALL
        host.parts.held.reload()
        task = host.parts.held.releasing("bob")
        assert task is not None
        assert host.parts.held.releasing("eve") is None
        await asyncio.wait_for(task, 5)
        assert host.parts.held.releasing("bob") is None
        assert host.held.counts("bob") == (0, 0)
        assert host.parts.backlog.has(row.id, "bob", "main")
        host.parts.held.close()

    on_host(tmp_path, work)


def test_one_that_a_rule_puts_into_a_batch_changes_its_place(tmp_path):
    async def work(host):
        await host.parts.held.start()
        row = await host.send(State.QUARANTINED)
        host.routes["bob"] = parse_routes('{"rules": [{"session": "s", "batch": 60}]}')
        host.parts.held.reload()
        await asyncio.wait_for(host.parts.held.releasing("bob"), 5)
        assert host.held.counts("bob") == (1, 0)
        stored = await host.queue.read(lambda db: deliveries.get(db, row.id))
        assert (stored.state, stored.session) == (State.BATCHING, "s")
        assert host.parts.backlog.total("bob") == 0
        host.parts.held.close()

    on_host(tmp_path, work)


def test_a_closed_batch_goes_out_no_more(tmp_path):
    async def work(host):
        await host.parts.held.start()
        target = Target("bob", "s", State.BATCHING, result={"batch": LONG | {"debounce_s": 0.05}})
        new = New((target,), BODY, now_ms(), sender="ann", channel="#x")
        fresh, done = await host.queue.write(store(new))
        host.parts.held.stored(fresh, new.payload, done)
        host.parts.held.close()
        await asyncio.sleep(0.15)
        row = await host.queue.read(lambda db: deliveries.get(db, fresh[0].id))
        assert row.state is State.BATCHING

    on_host(tmp_path, work)
