"""Sleep and wake over a real queue and a real gate. Only systemd is played: turns end when told to."""

from __future__ import annotations

import asyncio
from functools import partial

from played import OK, playing, sink
from set_clock import SetClock
from until import until

from hostguard.core import outcome
from hostguard.core.clock import now_ms
from hostguard.core.model import Channel, Config, Mind, State
from hostguard.delivery import message as intake
from hostguard.store import deliveries
from hostguard.store.settings import stored
from hostguard.store.writer import Queue
from hostguard.telemetry.events import RecentEvents

HOUR = 3_600_000
MINDS = {
    "bob": Mind("bob", ("/bin/true",), sleep_after=0),
    "two": Mind("two", ("/bin/true",), concurrent_turns=2),
    "run": Mind("run"),
}
CONFIG = Config(minds=MINDS, channels={"#x": Channel("#x", ("bob", "two"))})
DOWN = outcome.Ending("down", "connection refused", back=True, pause_ms=2_500)


class Host:
    """A guard's life; the next one is on the same queue. `skew` sets the clock, in ms."""

    def __init__(self, folder, config=CONFIG):
        self.folder, self.config, self.clock = folder, config, SetClock()

    @property
    def skew(self):
        return self.clock.skew

    @skew.setter
    def skew(self, ms):
        self.clock.skew = ms

    async def __aenter__(self):
        self.queue = Queue(self.folder / "queue.db")
        await self.queue.open()
        self.manager = manager = playing(self.queue, self.config, await self.queue.read(stored), self.clock)
        waiting = await self.queue.read(deliveries.queued)
        manager.backlog.load(waiting, self.clock.now())
        self.parts = manager.parts
        self.acceptor, self.sleeper = self.parts.acceptor, self.parts.sleeper
        manager.ready = True
        manager.pump()
        self.sleeper.start()
        await self.idle()
        return self

    async def __aexit__(self, *_):
        self.manager.closing = True
        self.sleeper.close()
        await self.manager.settled(5)
        await self.parts.accepting.settled(5)
        await self.queue.close()

    async def idle(self):
        """Until nothing is under way but what waits for a time."""
        while tasks := self._tasks():
            await asyncio.wait(tasks, timeout=5)
        await self.queue.write(lambda db: None)

    def _tasks(self):
        kept = self.parts.accepting, self.sleeper._tasks, self.parts.services._tasks
        return {*self.manager._tasks, *(task for tasks in kept for task in tasks._tasks)}

    async def until(self, happened):
        """Wait for what comes by itself."""
        await until(happened)
        await self.idle()

    async def send(self, to="bob", content="x", **fields):
        body = {"to": to, "content": content, **fields}
        accepted = await self.acceptor.send(intake.message(body, self.config, now_ms()))
        await self.idle()
        return accepted.rows[0]

    async def sleep(self, mind="bob", until=None):
        await self.sleeper.sleep(mind, until)
        await self.idle()

    async def fall_asleep(self, mind="bob", until=None):
        await self.sleep(mind, until)
        await self.end()
        assert self.asleep(mind)

    async def wake(self, mind="bob"):
        await self.sleeper.wake(mind, "by request")
        await self.idle()

    def live(self):
        return [turn.delivery.id for turn in self.manager.runner.live if turn.delivery is not None]

    async def end(self, ending=OK):
        """End the oldest turn; its row."""
        turn = next(iter(self.manager.runner.live))
        self.manager.runner.end(turn, ending)
        await self.idle()
        return turn.delivery

    def asleep(self, mind="bob"):
        return self.manager.policy.asleep(mind)

    async def stored(self):
        found = await self.queue.read(stored)
        return {name: value for name, value in found.items() if name.startswith(("sleep.", "woken."))}

    async def rows(self, *kinds):
        found = await self.queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 10_000))
        return [row for row in found if not kinds or row.kind in kinds]

    async def content(self, row):
        return (await self.queue.read(partial(deliveries.with_payload, id_=row.id)))[1].decode()

    def told(self, type_):
        return [event["text"] for event in sink(self.manager, RecentEvents).kept(0) if event["type"] == type_]


def on_host(path, work, config=CONFIG):
    async def main():
        async with Host(path, config) as host:
            await work(host)

    asyncio.run(main())
