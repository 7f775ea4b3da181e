"""Messages that no rule matches, on a real queue: when a changed rule lets them go."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onqueue import on_queue
from played import managed
from searches import sized
from unmatched import ALL, NOTHING_MATCHES, store, unmatched
from until import until

from hostguard.core.model import Config, Mind, State
from hostguard.core.signals import MindWoken, RoutesChanged, Signal
from hostguard.delivery import planner, quarantine
from hostguard.delivery.quarantine import Quarantine
from hostguard.delivery.quarantine_rows import QUARANTINE_MAX, totals
from hostguard.delivery.routes import Unread, parse_routes
from hostguard.store import deliveries
from hostguard.store.writer import Unavailable


class Host:
    """A manager that starts nothing, minds' routes as a test sets them, and what was let go."""

    def __init__(self, queue, **minds):
        self.queue = queue
        self.parts = parts = managed(queue, Config(minds=minds or {"bob": Mind("bob", routes="/r")})).parts
        self.routes = {"bob": NOTHING_MATCHES}
        self.out = []
        self.quarantine = parts.held._quarantine = Quarantine(
            parts.policy,
            self.routes.get,
            queue,
            parts.ledger,
            parts.ledger.waiters,
            parts.batcher,
            self,
            parts.backlog,
            Signal[MindWoken](),
            parts.recovery._clock,
            parts.accepting,
        )

    def admit(self, rows):
        self.out += rows

    async def send(self, new):
        fresh, done = await self.queue.write(store(new))
        self.quarantine.stored(fresh, new.payload, done)
        return fresh

    async def settled(self):
        await self.parts.accepting.settled(5)
        return [row.id for row in self.out]


def hosted(path, work, **minds):
    return on_queue(path, lambda queue: work(Host(queue, **minds)))


def test_a_changed_rule_lets_go(tmp_path):
    async def work(host):
        await host.quarantine.start()
        ids = [(await host.send(unmatched()))[0].id for _ in range(12)]
        assert host.quarantine.count("bob") == 12
        host.quarantine.routes_changed(RoutesChanged("bob"))  # of other channels
        assert await host.settled() == []
        with host.parts.ledger.waiters.waiter(ids[0]) as archived:
            host.routes["bob"] = ALL
            host.quarantine.routes_changed(RoutesChanged("bob"))
            host.quarantine.routes_changed(RoutesChanged("bob"))
            assert await host.settled() == ids[2:]
            assert archived.done()
        assert {row.state for row in host.out} == {State.QUEUED}
        assert host.quarantine.count("bob") == 0

    hosted(tmp_path, work)


def test_a_rule_that_came_while_the_message_was_stored_counts(tmp_path):
    async def work(host):
        await host.quarantine.start()
        host.routes["bob"] = ALL
        row, *_ = await host.send(unmatched())
        assert await host.settled() == [row.id]

    hosted(tmp_path, work)


def test_no_file_any_more_ends_the_quarantine(tmp_path):
    async def work(host):
        await host.quarantine.start()
        row, *_ = await host.send(unmatched())
        del host.routes["bob"]
        host.quarantine.routes_changed(RoutesChanged("bob"))
        assert await host.settled() == [row.id]
        assert host.out[0].session == "main"

    hosted(tmp_path, work)


@pytest.mark.parametrize(
    ("mind", "routes", "goes"),
    [
        (Mind("bob", routes="/r"), ALL, True),  # changed while the guard was away
        (Mind("bob", routes="/r"), NOTHING_MATCHES, False),
        (Mind("bob", routes="/r"), None, False),  # it is not there, perhaps not yet: that is no reason
        (Mind("bob", routes="/r"), Unread("it cannot be read"), False),
        (Mind("bob"), None, True),  # the configuration names no file any more
        (Mind("eve"), ALL, False),  # it has no bob
    ],
)
def test_at_a_start(tmp_path, mind, routes, goes):
    async def work(host):
        row, *_ = (await host.queue.write(store(unmatched())))[0]
        host.routes["bob"] = routes
        await host.quarantine.start()
        assert host.quarantine.count("bob") == 1
        assert await host.settled() == [row.id] * goes
        assert host.quarantine.count("bob") == 1 - goes

    hosted(tmp_path, work, **{mind.name: mind})


def test_what_is_cancelled_or_archived_counts_no_more(tmp_path):
    async def work(host):
        await host.quarantine.start()
        row, *_ = await host.send(unmatched())
        await host.parts.deliveries.cancel(row.id)
        assert host.quarantine.count("bob") == 0
        oldest, *_ = await host.send(unmatched())
        with host.parts.ledger.waiters.waiter(oldest.id) as archived:
            assert not archived.done()
            for _ in range(QUARANTINE_MAX):
                await host.send(unmatched())
            assert archived.done(), "there was no room for it any more"
        assert host.quarantine.count("bob") == (await host.queue.read(totals))["bob"]

    hosted(tmp_path, work)


def test_one_that_was_let_go_since_it_was_read_is_cancelled_in_the_line(tmp_path):
    async def work(host):
        await host.quarantine.start()
        row, *_ = await host.send(unmatched())
        read = host.queue.read

        async def read_and_let_go(op):
            host.queue.read = read
            found = await read(op)
            host.routes["bob"] = ALL
            host.quarantine.routes_changed(RoutesChanged("bob"))
            await host.settled()
            host.parts.dispatcher.admit(host.out)
            return found

        host.queue.read = read_and_let_go
        assert (await host.parts.deliveries.cancel(row.id)).state is State.CANCELLED
        assert host.quarantine.count("bob") == 0
        assert host.parts.backlog.count("bob") == 0

    hosted(tmp_path, work)


@settings(max_examples=sized(7), deadline=None)
@given(st.lists(st.sampled_from(["#a", "#b", "a rule for #a", "a rule for all", "no rule"]), max_size=30))
def test_nothing_is_lost(tmp_path_factory, steps):
    """Every message goes out, is archived, or is still unmatched; and what goes out is of the newest."""
    files = {
        "a rule for #a": '{"rules": [{"channel": "#a"}]}',
        "a rule for all": '{"rules": [{}]}',
        "no rule": "{}",
    }

    async def work(host):
        await host.quarantine.start()
        ids = []
        for step in steps:
            if step in files:
                host.routes["bob"] = parse_routes(files[step])
                host.quarantine.routes_changed(RoutesChanged("bob"))
                await asyncio.sleep(0)
            else:
                ids.append((await host.send(unmatched(channel=step)))[0].id)
        out = await host.settled()
        rows = [await host.queue.read(lambda db, i=i: deliveries.get(db, i)) for i in ids]
        assert sorted(out) == [row.id for row in rows if row.state is State.QUEUED]
        left = [row for row in rows if row.state is State.QUARANTINED]
        assert host.quarantine.count("bob") == len(left)
        for row in left:
            payload = {"channel": row.channel, "sender": "ann", "content": "hello"}
            assert planner.place(Mind("bob"), host.routes["bob"], payload).state is State.QUARANTINED

    hosted(tmp_path_factory.mktemp("q"), work)


def test_a_mind_that_was_removed_keeps_its_rows(tmp_path):
    async def work(host):
        await host.quarantine.start()
        await host.send(unmatched())
        host.routes["bob"] = ALL
        host.quarantine.routes_changed(RoutesChanged("bob"))
        host.parts.policy.config = Config()
        assert await host.settled() == []
        assert host.quarantine.count("bob") == 1

    hosted(tmp_path, work)


def test_a_database_that_cannot_be_read_is_tried_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(quarantine, "AGAIN_S", 0.05)

    async def work(host):
        await host.quarantine.start()
        row, *_ = await host.send(unmatched())
        host.routes["bob"] = ALL
        read = host.queue.read

        async def fail(op):
            host.queue.read = read
            raise Unavailable("no such luck")

        host.queue.read = fail
        host.quarantine.routes_changed(RoutesChanged("bob"))
        assert await host.settled() == []
        assert host.quarantine.releasing("bob") is None
        assert "no such luck" in caplog.text
        await until(lambda: host.out)
        assert await host.settled() == [row.id]

    hosted(tmp_path, work)


def test_a_mind_is_being_released_while_its_rows_are_read(tmp_path):
    async def work(host):
        await host.quarantine.start()
        await host.send(unmatched())
        host.routes["bob"] = ALL
        slow = asyncio.create_task(host.queue.read(lambda db: time.sleep(0.2)))
        await asyncio.sleep(0)
        host.quarantine.routes_changed(RoutesChanged("bob"))
        await asyncio.sleep(0.05)
        assert host.quarantine.releasing("bob") is not None
        assert host.quarantine.releasing("eve") is None
        await slow
        await host.settled()
        assert host.quarantine.releasing("bob") is None

    hosted(tmp_path, work)
