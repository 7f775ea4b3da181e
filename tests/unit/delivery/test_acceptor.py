"""What accepting does at its edges, on a real queue: a commit that comes late, a release under way."""

import asyncio
import json
import subprocess
import sys
import time

import pytest
from onqueue import on_queue
from played import managed

from hostguard.core.errors import Problem
from hostguard.core.model import Config, Mind, State
from hostguard.core.signals import MindWoken, RoutesChanged, Signal
from hostguard.delivery import acceptor as accept
from hostguard.delivery import message as intake
from hostguard.delivery.acceptor import Acceptor
from hostguard.delivery.routes import parse_routes
from hostguard.store import deliveries
from hostguard.store.settings import SLEEP, WOKEN, stored

NOTHING_MATCHES, ALL = parse_routes("{}"), parse_routes('{"rules": [{"session": "s"}]}')
CONFIG = Config(minds={"bob": Mind("bob", ("/bin/true",), routes="/r"), "eve": Mind("eve", ("/bin/true",))})


class Host:
    """A manager that starts nothing, with a quarantine; `admitted` are ids in the order in which they came in."""

    def __init__(self, queue):
        self.queue, self.woken, self.admitted = queue, [], []
        self.manager = managed(queue, CONFIG)
        self.manager.admit = lambda rows: self.admitted.extend(row.id for row in rows)
        self.routes = {"bob": NOTHING_MATCHES}
        self.parts = parts = self.manager.parts
        self.quarantine = parts.quarantine
        self.quarantine._routes = self.routes.get
        mind_woken = Signal[MindWoken]()
        mind_woken.subscribe(lambda fact: self.woken.append(fact.mind))
        self.acceptor = Acceptor(
            parts.policy, parts.settings, self.routes.get, parts.held, queue, parts.ledger, parts.backlog,
            parts.run_clients, parts.dispatcher, mind_woken, parts.accepting, parts.recovery._clock,
        )  # fmt: skip

    async def send(self, to="@bob", also=lambda *_: (), **fields):
        message = intake.message({"to": to, "content": f"for {to}", "channel": "#x", **fields}, CONFIG, 1000)
        return (await self.acceptor.send(message, also)).rows

    async def rows(self):
        return await self.queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 100))

    async def stored(self):
        return await self.queue.read(stored)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_late_commit_is_undone_whole_unless_its_sender_can_ask_again(tmp_path, monkeypatch, key):
    """That of a quarantined message brings an invite; that of a message to a sleeping mind would wake it."""
    monkeypatch.setattr(accept, "ANSWER_S", 0.05)

    async def work(queue):
        host = Host(queue)
        host.parts.settings.use(SLEEP.to("eve", {"since": 1, "until": None}))
        for to, rows in (("@bob", 2), ("@eve", 1)):
            with pytest.raises(Problem, match="accepts no writes"):
                await host.send(to, lambda *_: time.sleep(0.3) or (), key=key and key + to)
            await asyncio.sleep(0.4)
            await host.parts.accepting.settled(5)
            await queue.write(lambda db: None)
            assert len(await host.rows()) == (rows + 2 * (to == "@eve") if key else 0)
        assert host.quarantine.count("bob") == bool(key)
        assert host.woken == (["eve"] if key else [])
        assert bool((await host.stored()).get(WOKEN.key("eve"))) == bool(key)
        assert await queue.read(lambda db: db.execute("SELECT count(*) FROM payloads").fetchone()) == (
            (3,) if key else (0,)
        )

    on_queue(tmp_path, work)


def test_no_message_overtakes_those_that_a_new_rule_lets_go(tmp_path):
    async def work(queue):
        host = Host(queue)
        quarantined = [(await host.send())[0].id for _ in range(5)]
        host.admitted.clear()  # the invite
        host.routes["bob"] = ALL
        slow = asyncio.create_task(queue.read(lambda db: time.sleep(0.3)))
        await asyncio.sleep(0)
        host.quarantine.routes_changed(RoutesChanged("bob"))
        new, other = await asyncio.gather(host.send(), host.send("@eve"))
        await slow
        assert [id_ for id_ in host.admitted if id_ != other[0].id] == [*quarantined, new[0].id]
        assert json.loads((await queue.read(lambda db: deliveries.with_payload(db, quarantined[0])))[1])

    on_queue(tmp_path, work)


def test_a_message_behind_a_release_that_the_card_does_not_take_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(accept, "ANSWER_S", 0.2)

    async def work(queue):
        host = Host(queue)
        await host.send()
        host.routes["bob"] = ALL
        stalled = asyncio.create_task(queue.write(lambda db: time.sleep(1)))
        host.quarantine.routes_changed(RoutesChanged("bob"))
        with pytest.raises(Problem, match="nothing is accepted"):
            await host.send()
        await stalled
        await host.send()
        assert len(await host.rows()) == 3, "one was let go, its invite, and one new"

    on_queue(tmp_path, work)


def test_only_a_host_with_a_resident_mind_pays_for_the_http_client():
    code = (
        "import sys; from hostguard.daemon import Parts; from hostguard.core.model import *\n"
        "from pathlib import Path; from hostguard.store.writer import Queue\n"
        "from hostguard.core.clock import Clock; from asyncio import run; loaded = lambda: 'httpx' in sys.modules\n"
        "residents = Parts(Queue(Path('/nowhere')), None, Clock('0' * 8)).residents\n"
        "run(residents.use(Config(minds={'a': Mind('a', ('/bin/true',))}))); assert not loaded()\n"
        "run(residents.use(Config(minds={'a': Mind('a', url='http://127.0.0.1:1')}))); assert loaded()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_message_with_a_key_is_known_also_after_it_would_have_expired(tmp_path):
    """To send it again was a 400: the sender could not learn what had become of it."""

    async def work(queue):
        host = Host(queue)
        ends = int(time.time() * 1000) + 1500
        first = await host.send("@eve", key="k", expires_at=ends)
        await asyncio.sleep(1.6)
        again = await host.send("@eve", key="k", expires_at=ends)
        assert [row.id for row in again] == [row.id for row in first]
        with pytest.raises(Problem, match="could never start"):
            await host.send("@eve", key="new", expires_at=ends)
        assert len(await host.rows()) == 1
        with pytest.raises(Problem, match="could never start"):
            intake.message({"to": "@eve", "content": "", "expires_at": ends}, CONFIG, ends)

    on_queue(tmp_path, work)
