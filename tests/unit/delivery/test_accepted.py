"""What accepting answers, and what it hands on: full queues, keys, a queue that fails, clients, woken minds."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading

import pytest
from gathering import LONG
from onqueue import failure, message, on_queue, to
from played import parts
from unmatched import NOTHING_MATCHES

from hostguard.core.errors import Problem
from hostguard.core.model import Channel, Config, Kind, Mind, State
from hostguard.core.signals import MindWoken, Signal
from hostguard.delivery import acceptor as accept
from hostguard.delivery import message as intake
from hostguard.gate.run_clients import RunClient
from hostguard.store import deliveries, quota
from hostguard.store.deliveries import New
from hostguard.store.settings import SLEEP, TOKEN, WOKEN, stored

CONFIG = Config(
    rows_per_mind=2,
    minds={
        "bob": Mind("bob", ("/bin/true",), routes="/r"),
        "eve": Mind("eve", ("/bin/true",)),
        "ann": Mind("ann", ("/bin/true",)),
    },
    channels={"#all": Channel("#all", ("eve", "ann"))},
)


class Host:
    """A guard that starts nothing. `woken` are the minds that were reported."""

    def __init__(self, queue, config=CONFIG):
        self.queue, self.config, self.woken = queue, config, []
        self.parts = parts(queue, config)
        self.parts.quarantine._routes = self.parts.acceptor._routes = {"bob": NOTHING_MATCHES}.get
        mind_woken = Signal[MindWoken]()
        mind_woken.subscribe(lambda fact: self.woken.append(fact.mind))
        self.acceptor = self.parts.acceptor
        self.acceptor._mind_woken = mind_woken

    async def store(self, *minds, **more):
        return await self.acceptor.store(message(*minds, **more))

    async def send(self, to, by="", **fields):
        fields = {"content": "x", **fields}
        return await self.acceptor.send(intake.message({"to": to, **fields}, self.config, 1, by))


def on_host(path, work, config=CONFIG):
    on_queue(path, lambda queue: work(Host(queue, config)))


def test_a_full_queue_takes_no_row_and_the_others_do(tmp_path):
    async def work(host):
        for _ in range(2):
            assert (await host.store("eve")).full == []
        accepted = await host.store("eve", "ann")
        assert ([row.mind for row in accepted.rows], accepted.full, accepted.created) == (
            ["ann"],
            ["eve"],
            True,
        )
        with pytest.raises(Problem, match="the queue of eve has its 2 rows") as problem:
            await host.store("eve")
        assert problem.value.code == "queue_full"
        await host.parts.deliveries.cancel(1)
        assert (await host.store("eve")).created, "one fewer waits"

    on_host(tmp_path, work)


def test_bytes_that_wait_fill_it_too(tmp_path, monkeypatch):
    monkeypatch.setattr(quota, "WAITING_MAX", 12_000)
    large = "x" * 7000

    async def work(host):
        assert (await host.send("#all", content=large, by="uid=1")).created
        with pytest.raises(Problem, match="the messages that wait for eve have too many bytes") as problem:
            await host.send("@eve", content=large)
        assert (problem.value.status, problem.value.code) == (507, "no_room")
        with pytest.raises(Problem, match="the messages that wait from uid=1 have too many bytes"):
            await host.send("@bob", content=large, by="uid=1")
        await host.parts.deliveries.cancel(1)
        assert (await host.send("#all", content=large)).full == ["ann"]

    on_host(tmp_path, work)


def test_a_sender_has_so_many_bytes_a_minute(tmp_path, monkeypatch):
    monkeypatch.setattr(quota, "MINUTE_MAX", 1000)

    async def work(host):
        assert (await host.send("@eve", content="x" * 900, by="uid=1")).created
        with pytest.raises(Problem, match=r"uid=1 sent up to .* bytes within a minute") as problem:
            await host.send("@ann", content="x" * 900, by="uid=1")
        assert (problem.value.status, problem.value.code) == (429, "too_fast")
        assert 50 < problem.value.retry_after <= 60
        assert (await host.send("@ann", content="x" * 900, by="uid=2")).created
        for mind in ("@eve", "@ann"):  # of root
            assert (await host.send(mind, content="x" * 900)).created

    on_host(tmp_path, work)


def test_rows_that_are_being_stored_fill_it_too(tmp_path):
    async def work(host):
        results = await asyncio.gather(*(host.store("eve") for _ in range(4)), return_exceptions=True)
        assert [isinstance(result, Problem) for result in results] == [False, False, True, True]
        assert host.acceptor.pending("eve") == 0
        storing = asyncio.create_task(host.store("ann"))
        await asyncio.sleep(0)
        assert (host.acceptor.pending("ann"), host.acceptor.pending("eve")) == (1, 0)
        await storing

    on_host(tmp_path, work)


def test_rows_that_are_held_back_fill_it_too(tmp_path):
    async def work(host):
        for _ in range(2):  # the invite that the first one brings is the guard's, and counted apart
            assert (await host.send("@bob", channel="#x")).rows[0].state is State.QUARANTINED
        with pytest.raises(Problem, match="the queue of bob has its 2 rows"):
            await host.send("@bob", channel="#x")

    on_host(tmp_path, work)


def test_a_key_names_one_message(tmp_path):
    async def work(host):
        first = await host.store("eve", key="k")
        again = await host.store("eve", key="k")
        assert ([row.id for row in again.rows], again.created) == ([first.rows[0].id], False)
        assert host.parts.backlog.total("eve") == 1, "offered once"
        with pytest.raises(Problem, match=r"delivery 1; different here: content$") as problem:
            await host.store("eve", key="k", body=b'{"content":"y"}')
        assert (problem.value.code, problem.value.more) == (
            "conflict", {"delivery": 1, "differs": ("content",)},
        )  # fmt: skip

    on_host(tmp_path, work)


def test_ids_begin_above_those_of_a_database_that_is_gone(tmp_path):
    async def work(host):
        host.parts.ledger.floor = 40
        assert (await host.store("eve")).rows[0].id == 41

    on_host(tmp_path, work)


def test_a_database_that_fails_accepts_nothing(tmp_path):
    async def work(host):
        def fail(rows, created):
            raise failure(sqlite3.SQLITE_NOMEM)

        with pytest.raises(Problem, match=r"the queue accepts no writes: .*no such luck"):
            await host.acceptor.store(message("eve"), also=fail)
        assert host.acceptor.pending("eve") == 0
        assert await host.queue.read(deliveries.last_id) == 0

    on_host(tmp_path, work)


@pytest.mark.parametrize(("key", "again"), [(None, "try again"), ("k", "try again with the same key")])
def test_a_message_that_waits_too_long_is_taken_back(tmp_path, monkeypatch, key, again):
    monkeypatch.setattr(accept, "ANSWER_S", 0.1)

    async def work(host):
        go, begun = threading.Event(), threading.Event()
        held = host.queue.submit(lambda db: (begun.set(), go.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        with pytest.raises(Problem, match=f"nothing is accepted, {again}$"):
            await host.store("eve", key=key)
        go.set()
        await held.future
        assert await host.queue.read(deliveries.last_id) == 0
        assert host.parts.backlog.total("eve") == 0

    on_host(tmp_path, work)


def test_a_sender_that_leaves_leaves_its_message_whole(tmp_path):
    async def work(host):
        sending = asyncio.create_task(host.store("eve"))
        await asyncio.sleep(0)
        sending.cancel()
        await host.parts.accepting.settled(5)
        assert host.parts.backlog.total("eve") == 1
        assert host.acceptor.pending("eve") == 0

    on_host(tmp_path, work)


def test_a_client_waits_for_its_new_run_alone(tmp_path):
    async def work(host):
        client, other = (RunClient(os.getpid(), os.getuid()) for _ in range(2))
        new = New(to("eve", kind=Kind.RUN), b"{}", 1, key="k")
        row = (await host.acceptor.store(new, client)).rows[0]
        clients = host.parts.run_clients
        assert clients.waits(row.id)
        await host.acceptor.store(new, other)
        assert clients.take(row.id) is client, "a second one is not attached by itself"
        client.close()
        other.close()

    on_host(tmp_path, work)


@pytest.mark.parametrize("wakes", [True, False])
def test_a_sleeping_mind_is_woken_for_a_new_row_alone(tmp_path, wakes):
    async def work(host):
        host.parts.settings.use(SLEEP.to("eve", {"since": 1, "until": None}))
        fields = {"key": "k", "whileSleeping": "trigger-wake" if wakes else "queue"}
        await host.send("#all", **fields)
        assert host.woken == ["eve"] * wakes, "ann does not sleep"
        found = await host.queue.read(stored)
        assert found == ({WOKEN.key("eve"): True} if wakes else {})
        assert host.parts.settings.get(WOKEN, "eve") is None, "in memory once it is awake"
        await host.send("#all", **fields)
        assert host.woken == ["eve"] * wakes, "sent again with its key"

    on_host(tmp_path, work)


def test_settings_are_stored_with_the_rows(tmp_path):
    async def work(host):
        await host.acceptor.store(message("eve"), also=lambda rows, _: [TOKEN.to("eve", str(rows[0].id))])
        assert await host.queue.read(stored) == {TOKEN.key("eve"): "1"}
        await host.acceptor.store(message("eve"), also=lambda *_: [TOKEN.to("eve", None)])
        assert await host.queue.read(stored) == {}

    on_host(tmp_path, work)


def test_each_row_goes_to_the_gate_a_batch_or_quarantine(tmp_path):
    async def work(host):
        targets = [
            *to("eve"), *to("ann", state=State.BATCHING, result={"batch": LONG}),
            *to("bob", state=State.SKIPPED),
        ]  # fmt: skip
        body = b'{"content":"x","channel":"#x"}'
        rows = (await host.acceptor.store(New(targets, body, 1))).rows
        assert host.parts.backlog.has(rows[0].id, "eve", "main")
        assert host.parts.held.counts("ann") == (1, 0)
        assert [host.parts.backlog.total(mind) for mind in ("eve", "ann", "bob")] == [1, 0, 0]
        quarantined = (await host.send("@bob", channel="#x")).rows[0]
        assert host.parts.held.counts("bob") == (0, 1)
        assert not host.parts.backlog.has(quarantined.id, "bob", "main")
        assert host.parts.backlog.total("bob") == 1, "the invite"
        host.parts.held.close()

    on_host(tmp_path, work)


def test_a_message_that_is_refused_late_has_no_consequence(tmp_path, monkeypatch):
    async def work(host):
        await host.store("eve", key="k")
        monkeypatch.setattr(accept, "ANSWER_S", 0.2)
        first, second, begun = threading.Event(), threading.Event(), threading.Event()
        host.queue.submit(lambda db: (begun.set(), first.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        host.queue.submit(lambda db: second.wait(10))  # in one commit with the message
        sending = asyncio.create_task(host.store("eve", key="k", body=b'{"content":"y"}'))
        await asyncio.sleep(0.02)
        first.set()
        with pytest.raises(Problem, match="again with the same key"):
            await sending
        second.set()
        await host.queue.write(lambda db: None)
        assert host.parts.backlog.total("eve") == 1
        assert await host.queue.read(deliveries.last_id) == 1

    on_host(tmp_path, work)


LATER = 1 << 40
OTHER = {
    "content": "y", "session": "s", "sender": "bob", "not_before": LATER, "expires_at": LATER, "interrupt": True,
    "kind": "notice", "channel": "#c", "whileSleeping": "skip", "conversationId": "c", "platform": "p",
    "isDM": True, "participants": ["a"], "participantCount": 2, "typing": ["a"], "instructions": "be brief",
}  # fmt: skip


@pytest.mark.parametrize("field", sorted(intake.SEND_FIELDS - {"to", "key"}))
def test_every_part_of_a_request_counts_when_its_key_comes_again(tmp_path, field):
    async def work(host):
        await host.send("@eve", key="k")
        with pytest.raises(Problem, match=f"different here: {field}$") as problem:
            await host.send("@eve", key="k", **{field: OTHER[field]})
        assert problem.value.more == {"delivery": 1, "differs": (field,)}
        assert not (await host.send("@eve", key="k")).created

    on_host(tmp_path, work)
