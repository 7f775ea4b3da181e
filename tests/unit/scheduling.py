"""The scheduler on a real queue, with a clock that the test sets. Nothing here starts a turn."""

import asyncio
import json

from played import managed
from set_clock import SetClock

from hostguard.core.model import Config, Mind, Schedule, State
from hostguard.store import deliveries
from hostguard.store.settings import stored
from hostguard.store.writer import Queue
from hostguard.systemd.journal import Journal

NOON = 1_781_092_800_000  # 2026-06-10 12:00 UTC
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
MINDS = {name: Mind(name, ("/bin/true",), user="nobody") for name in ("ann", "bob", "cat")}


class Silent(Journal):
    def __init__(self):
        self.lines = []

    def send(self, text, *_, **__):
        self.lines.append(text)


class Host:
    """A guard's life; `again` is the next one, on the same queue."""

    def __init__(self, folder, *schedules, now=NOON):
        self.folder, self.clock = folder, SetClock(now)
        self.schedules = {one.name: one for one in schedules}

    @property
    def now(self):
        return self.clock.at

    @now.setter
    def now(self, now):
        self.clock.at = now

    async def __aenter__(self):
        self.queue = Queue(self.folder / "queue.db")
        await self.queue.open()
        self.journal = Silent()
        kept = await self.queue.read(stored)
        config = Config(minds=MINDS, schedules=self.schedules)
        self.manager = managed(self.queue, config, kept, self.journal, self.clock)
        self.parts = self.manager.parts
        self.manager.runner.connected = False
        self.scheduler = self.parts.scheduler
        await self.scheduler.reload()
        await self.idle()
        return self

    async def __aexit__(self, *_):
        self.scheduler.close()
        await self.parts.accepting.settled(5)
        await self.queue.close()

    async def idle(self):
        """Until nothing is being looked at."""
        while self.parts.accepting:
            await self.parts.accepting.settled(5)
        await self.queue.write(lambda db: None)  # behind what nobody waits for

    async def at(self, now):
        self.now = now
        self.scheduler.check()
        await self.idle()

    async def reload(self, *schedules):
        self.schedules = {one.name: one for one in schedules}
        self.manager.policy.config = Config(minds=MINDS, schedules=self.schedules)
        await self.scheduler.reload()
        await self.idle()

    async def rows(self):
        return await self.queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 10_000))

    async def keys(self):
        return [row.key for row in await self.rows()]

    async def payload(self, row):
        return json.loads((await self.queue.read(lambda db: deliveries.with_payload(db, row.id)))[1])

    async def settings(self, setting):
        found = await self.queue.read(stored)
        return {name: value for name, value in found.items() if name.startswith(setting.prefix)}


def beat(mind="bob", cron="0 * * * *", name=None, overlap="queue", **more):
    """A schedule that fires at each of its times: its rows never begin here. See test_overlap for the others."""
    return Schedule(
        name or f"beat-{mind}", mind, cron=cron, message="go", timezone="UTC", overlap=overlap, **more
    )


def run(work):
    return asyncio.run(work)


def key(time, name="beat-bob"):
    return f"schedule:{name}:{time}"
