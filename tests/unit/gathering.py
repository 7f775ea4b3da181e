"""A batcher on a real queue and a real clock, with short times."""

import asyncio
import json
import time

from onqueue import on_queue
from played import managed

from hostguard.core.clock import now_ms
from hostguard.core.model import Config, LiveTurn, Mind, State, Target
from hostguard.core.signals import SessionChanged
from hostguard.delivery.batcher import Batcher
from hostguard.store import deliveries
from hostguard.store.deliveries import New
from hostguard.turns.live import Phase, Resident, Turn

SHORT = {"debounce_s": 0.15, "max_wait_s": 0.6, "triggers": ["now"]}
LONG = {"debounce_s": 60, "max_wait_s": 60, "triggers": ["now"]}


def message(content="x", sender="ann", channel="#a", session="s", batch=LONG, mind="bob", created_at=None):
    body = json.dumps({"content": content, "channel": channel, "sender": sender}).encode()
    target = Target(mind, session, State.BATCHING, result={"batch": batch})
    return New((target,), body, created_at or now_ms(), sender=sender, channel=channel)


def heard(sender="ann"):
    """A message that begins a turn, which so hears its sender."""
    body = json.dumps({"content": "0", "sender": sender, "channel": "#a"}).encode()
    return New((Target("bob", "s"),), body, 1, sender=sender, channel="#a")


class Host:
    """A manager that starts nothing: what goes out stays in its backlog."""

    def __init__(self, queue, payload_max=1 << 20):
        self.queue = queue
        minds = {name: Mind(name, url="http://x") for name in ("bob", "eve")}
        self.manager = managed(queue, Config(minds=minds, payload_max=payload_max))
        self.parts = self.manager.parts
        self.batcher = self.parts.batcher

    async def restart(self):
        """Another guard's batcher takes over."""
        parts = self.parts
        self.batcher.close()
        self.batcher = parts.held._batcher = Batcher(
            parts.policy,
            parts.live,
            self.queue,
            parts.ledger,
            parts.ledger.waiters,
            parts.dispatcher,
            parts.accepting,
            parts.recovery._clock,
        )
        await self.batcher.start()

    async def store(self, new):
        _, (row,) = await self.queue.write(lambda db: deliveries.enqueue(db, new))
        return row

    async def send(self, new):
        row = await self.store(new)
        self.batcher.add(row, new.payload)
        return row.id

    async def begin_with(self, sender="ann", takes_input=True):
        """A turn is live that heard this sender."""
        return self.begin(await self.store(heard(sender)), takes_input)

    def begin(self, row, takes_input=True):
        """A turn of the row's session is live, and its mind took the row."""
        turn = Turn(
            LiveTurn(f"u{row.id}", row.mind, row.session, str(row.id), takes_input), 0, Phase.RUNNING, row
        )
        turn.resident = Resident(posted=True)
        self.manager.runner.live.add(turn)
        self.batcher.session_changed(SessionChanged(row.mind, row.session, True))
        return turn

    def end(self, turn):
        self.manager.runner.live.remove(turn)
        self.batcher.session_changed(SessionChanged(turn.live.mind, turn.live.session, False))

    async def row(self, id_):
        return await self.queue.read(lambda db: deliveries.get(db, id_))

    async def stored(self):
        """Wait for what goes out: one batch may follow another."""
        while self.parts.accepting:
            await self.parts.accepting.settled(5)
            await asyncio.sleep(0)

    async def batches(self):
        """(row, payload) of what went out."""
        await self.stored()

        def select(db):
            ids = db.execute("SELECT id FROM deliveries WHERE kind = 'batch' ORDER BY id").fetchall()
            return [deliveries.with_payload(db, id_) for (id_,) in ids]

        return [(row, json.loads(raw)) for row, raw in await self.queue.read(select)]

    async def contents(self):
        """The messages' contents of each batch."""
        return [
            [one["content"] for messages in payload["batch"]["channels"].values() for one in messages]
            for _, payload in await self.batches()
        ]

    async def out(self):
        """The messages' contents of each batch, once one went out."""
        end = time.monotonic() + 10
        while not (found := await self.contents()):
            assert time.monotonic() < end, "nothing went out"
            await asyncio.sleep(0.01)
        return found


def hosted(path, work, **more):
    async def run(queue):
        host = Host(queue, **more)
        await host.batcher.start()
        try:
            return await work(host)
        finally:
            host.batcher.close()

    return on_queue(path, run)
