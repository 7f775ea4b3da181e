"""Messages that no rule matches, on a real queue: when a changed rule lets them go."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onqueue import on_queue
from played import managed
from unmatched import ALL, NOTHING_MATCHES, kept, store

from hostguard.core.model import Config, Mind, State
from hostguard.delivery import planner
from hostguard.delivery.quarantine import Quarantine
from hostguard.delivery.quarantine_rows import GATED_MAX, totals
from hostguard.delivery.routes import parse_routes
from hostguard.gate import control
from hostguard.store import deliveries


class Host:
    """A manager that starts nothing, minds' routes as a test sets them, and what was let go."""

    def __init__(self, queue, **minds):
        self.queue = queue
        self.manager = managed(queue, Config(minds=minds or {"bob": Mind("bob", routes="/r")}))
        self.routes = {"bob": NOTHING_MATCHES}
        self.out = []
        self.gating = Quarantine(self.manager, self.routes.get, lambda row, raw: self.out.append((row, raw)))
        self.manager.on_taken_back = self.gating.taken_back

    async def send(self, new):
        fresh, done = await self.queue.write(store(new))
        self.gating.stored(fresh, new.payload, done)
        return fresh

    async def settled(self):
        await self.manager.settled(5)
        return [row.id for row, _ in self.out]


def hosted(path, work, **minds):
    return on_queue(path, lambda queue: work(Host(queue, **minds)))


def test_a_changed_rule_lets_go(tmp_path):
    async def work(host):
        await host.gating.start()
        ids = [(await host.send(kept()))[0].id for _ in range(12)]
        assert host.gating.count("bob") == 12
        host.gating.changed("bob")  # of other channels
        assert await host.settled() == []
        with host.manager.ledger.waiters.waiter(ids[0]) as archived:
            host.routes["bob"] = ALL
            host.gating.changed("bob")
            host.gating.changed("bob")
            assert await host.settled() == ids[2:]
            assert archived.done()
        assert {row.state for row, _ in host.out} == {State.QUEUED}
        assert json.loads(host.out[0][1])["content"] == "hello"
        assert host.gating.count("bob") == 0

    hosted(tmp_path, work)


def test_a_rule_that_came_while_the_message_was_stored_counts(tmp_path):
    async def work(host):
        await host.gating.start()
        host.routes["bob"] = ALL
        row, *_ = await host.send(kept())
        assert await host.settled() == [row.id]

    hosted(tmp_path, work)


def test_no_file_any_more_is_no_gating(tmp_path):
    async def work(host):
        await host.gating.start()
        row, *_ = await host.send(kept())
        del host.routes["bob"]
        host.gating.changed("bob")
        assert await host.settled() == [row.id]
        assert host.out[0][0].session == "main"

    hosted(tmp_path, work)


@pytest.mark.parametrize(
    ("mind", "routes", "goes"),
    [
        (Mind("bob", routes="/r"), ALL, True),  # changed while the guard was away
        (Mind("bob", routes="/r"), NOTHING_MATCHES, False),
        (Mind("bob", routes="/r"), None, False),  # it cannot be read: that is no reason
        (Mind("bob"), None, True),  # the configuration names no file any more
        (Mind("eve"), ALL, False),  # it has no bob
    ],
)
def test_at_a_start(tmp_path, mind, routes, goes):
    async def work(host):
        row, *_ = (await host.queue.write(store(kept())))[0]
        host.routes["bob"] = routes
        await host.gating.start()
        assert host.gating.count("bob") == 1
        assert await host.settled() == [row.id] * goes
        assert host.gating.count("bob") == 1 - goes

    hosted(tmp_path, work, **{mind.name: mind})


def test_what_is_cancelled_or_archived_counts_no_more(tmp_path):
    async def work(host):
        await host.gating.start()
        row, *_ = await host.send(kept())
        await control.cancel(host.manager, row.id)
        assert host.gating.count("bob") == 0
        for _ in range(GATED_MAX):
            await host.send(kept())
        assert host.gating.count("bob") == (await host.queue.read(totals))["bob"]

    hosted(tmp_path, work)


def test_one_that_was_let_go_since_it_was_read_is_cancelled_in_the_line(tmp_path):
    async def work(host):
        await host.gating.start()
        row, *_ = await host.send(kept())
        read = host.queue.read

        async def read_and_let_go(op):
            host.queue.read = read
            found = await read(op)
            host.routes["bob"] = ALL
            host.gating.changed("bob")
            await host.settled()
            host.manager.admit([row for row, _ in host.out])
            return found

        host.queue.read = read_and_let_go
        assert (await control.cancel(host.manager, row.id)).state is State.CANCELLED
        assert host.gating.count("bob") == 0
        assert host.manager.backlog.count("bob") == 0

    hosted(tmp_path, work)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["#a", "#b", "a rule for #a", "a rule for all", "no rule"]), max_size=30))
def test_nothing_is_lost(tmp_path_factory, steps):
    """Every message goes out, is archived, or is still kept; and what goes out is of the newest."""
    files = {
        "a rule for #a": '{"rules": [{"channel": "#a"}]}',
        "a rule for all": '{"rules": [{}]}',
        "no rule": "{}",
    }

    async def work(host):
        await host.gating.start()
        ids = []
        for step in steps:
            if step in files:
                host.routes["bob"] = parse_routes(files[step])
                host.gating.changed("bob")
                await asyncio.sleep(0)
            else:
                ids.append((await host.send(kept(channel=step)))[0].id)
        out = await host.settled()
        rows = [await host.queue.read(lambda db, i=i: deliveries.get(db, i)) for i in ids]
        assert sorted(out) == [row.id for row in rows if row.state is State.QUEUED]
        left = [row for row in rows if row.state is State.GATED]
        assert host.gating.count("bob") == len(left)
        for row in left:
            payload = {"channel": row.channel, "sender": "ann", "content": "hello"}
            assert planner.place("bob", host.routes["bob"], payload).state is State.GATED

    hosted(tmp_path_factory.mktemp("q"), work)
