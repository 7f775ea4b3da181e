"""Messages that come before the mind's routes could be read, on a real queue: until they get their place."""

import asyncio

import pytest
from onqueue import on_queue
from played import managed, views_of

from hostguard.core.model import Config, Kind, Mind, State
from hostguard.core.names import FILE_SESSION
from hostguard.core.reasons import Reason
from hostguard.core.signals import RoutesRead
from hostguard.delivery import message as intake
from hostguard.delivery.routes import Unread, parse_routes
from hostguard.gate.backlog import Backlog
from hostguard.store import deliveries
from hostguard.store.settings import SLEEP, WOKEN, stored

UNREAD = Unread("/r: cannot be read: Permission denied")
RULES = """{"rules": [
    {"channel": "#plain", "session": "s"},
    {"channel": "#batch", "session": "b", "batch": {"debounce": 60}},
    {"channel": "#filtered", "mode": "mention"},
    {"channel": "#file", "destination": "file", "path": "/f"}
]}"""
CONFIG = Config(minds={"bob": Mind("bob", ("/bin/true",), routes="/r", uid=7)})


class Host:
    """A guard that starts nothing; the routes of bob are what a test sets."""

    def __init__(self, queue):
        self.queue = queue
        self.manager = managed(queue, CONFIG)
        self.parts = self.manager.parts
        self.file = self.parts.routes._files["bob"]
        self.file.found = UNREAD
        self.manager.ready, self.parts.scopes.connected = True, False  # nothing starts

    async def send(self, channel="#plain", **fields):
        body = {"to": "@bob", "content": "x", "channel": channel, "sender": "ann", **fields}
        [row] = (await self.parts.acceptor.send(intake.message(body, CONFIG, 1000))).rows
        return row.id

    async def read(self, text):
        self.file.found = None if text is None else parse_routes(text)
        self.parts.quarantine.routes_read(RoutesRead("bob"))
        await self.parts.accepting.settled(5)

    async def row(self, id_):
        return await self.queue.read(lambda db: deliveries.get(db, id_))

    def view(self, row):
        return self.parts.backlog.known(row.row)


def hosted(path, work):
    on_queue(path, lambda queue: work(Host(queue)))


def test_it_is_held_and_why_says_so(tmp_path):
    async def work(host):
        row = await host.row(await host.send())
        assert (row.state, row.kind, row.session) == (State.QUEUED, Kind.MESSAGE, "main")
        hold = host.parts.gate.hold(row.row)
        assert (hold.reason, hold.blocker) == (Reason.ROUTES_UNREAD, UNREAD.why)
        said = views_of(host.manager).why(row)["text"]
        assert f": the mind's routes are not known yet: {UNREAD.why}; it is number 1 in line" in said
        # Not known for a mind that waits for its own: that it is without routes.
        host.file.found = parse_routes(RULES)
        assert host.parts.gate.hold(row.row).blocker == "the routes of bob were read just now"

    hosted(tmp_path, work)


PLACES = [
    ("#plain", State.QUEUED, "s", Kind.MESSAGE),
    ("#batch", State.BATCHING, "b", Kind.MESSAGE),
    ("#filtered", State.SKIPPED, "main", Kind.MESSAGE),
    ("#file", State.QUEUED, f"{FILE_SESSION}/f", Kind.FILE),
    ("#gated", State.QUARANTINED, "main", Kind.MESSAGE),
]


@pytest.mark.parametrize(("channel", "state", "session", "kind"), PLACES)
def test_it_gets_the_place_that_the_routes_give_it(tmp_path, channel, state, session, kind):
    async def work(host):
        id_ = await host.send(channel)
        await host.read(RULES)
        row = await host.row(id_)
        assert (row.state, row.session, row.kind) == (state, session, kind)
        assert not row.unrouted
        parts, queued = host.parts, state is State.QUEUED
        assert parts.backlog.has(id_, "bob", session) == queued
        invites = state is State.QUARANTINED
        assert parts.backlog.total("bob") == queued + invites, "the first of a channel brings an invite"
        assert parts.held.counts("bob") == (state is State.BATCHING, state is State.QUARANTINED)
        with parts.ledger.waiters.waiter(id_):
            pass

    hosted(tmp_path, work)


def test_without_a_file_it_goes_where_its_sender_said(tmp_path):
    async def work(host):
        ids = [await host.send(), await host.send(session="own")]
        await host.read(None)
        assert [(await host.row(id_)).session for id_ in ids] == ["main", "own"]
        assert host.parts.gate.hold((await host.row(ids[0])).row).reason is not Reason.ROUTES_UNREAD

    hosted(tmp_path, work)


def test_many_keep_their_order_and_one_that_was_cancelled_stays_so(tmp_path):
    async def work(host):
        ids = [await host.send() for _ in range(205)]
        await host.parts.deliveries.cancel(ids[3])
        await host.read(RULES)
        out = [row.id for row in host.parts.backlog.ahead((await host.row(ids[-1])).row)]
        assert [*out, ids[-1]] == ids[:3] + ids[4:]
        assert (await host.row(ids[3])).state is State.CANCELLED

    hosted(tmp_path, work)


def test_a_message_whose_commit_came_after_the_reading_gets_its_place(tmp_path):
    async def work(host):
        sent = asyncio.ensure_future(host.send())
        await asyncio.sleep(0)
        await host.read(RULES)
        id_ = await sent
        await host.parts.accepting.settled(5)
        assert (await host.row(id_)).session == "s"

    hosted(tmp_path, work)


def test_the_next_guard_holds_it_too_and_gives_it_its_place(tmp_path):
    ids = []

    async def work(host):
        ids.append(await host.send())

    async def after(host):
        backlog = Backlog()
        backlog.load(await host.queue.read(deliveries.queued), host.parts.recovery._clock.now())
        assert backlog.first("bob").kind is Kind.UNROUTED
        host.parts.backlog.load(await host.queue.read(deliveries.queued), host.parts.recovery._clock.now())
        await host.parts.quarantine.start()
        await host.read(RULES)
        assert (await host.row(ids[0])).session == "s"

    hosted(tmp_path, work)
    hosted(tmp_path, after)


@pytest.mark.parametrize(("channel", "wakes"), [("#plain", True), ("#filtered", False), ("#file", False)])
def test_it_wakes_its_mind_if_it_is_for_it(tmp_path, channel, wakes):
    async def work(host):
        host.parts.settings.use(SLEEP.to("bob", {"since": 1, "until": None}))
        woken = []
        host.parts.quarantine._mind_woken.subscribe(lambda fact: woken.append(fact.mind))
        await host.send(channel, whileSleeping="trigger-wake")
        assert woken == []
        await host.read(RULES)
        assert (woken == ["bob"], bool((await host.queue.read(stored)).get(WOKEN.key("bob")))) == (
            wakes,
            wakes,
        )

    hosted(tmp_path, work)


def test_it_expires_at_its_new_place(tmp_path):
    async def work(host):
        clock = host.parts.recovery._clock
        id_ = await host.send(expires_at=clock.date() + 10_000)
        await host.read(RULES)
        clock.passed += 20_000
        host.manager.pump()
        await host.parts.accepting.settled(5)
        await host.queue.write(lambda db: None)
        assert (await host.row(id_)).state is State.EXPIRED

    hosted(tmp_path, work)
