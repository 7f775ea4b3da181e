"""A scope keeper on a fake host, with what it reported; and turns to start."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager

from fake_host import FakeHost
from set_clock import SetClock

from hostguard.core import outcome
from hostguard.core.model import Delivery, Kind, Limits, LiveTurn, Mind, State
from hostguard.core.signals import Signal
from hostguard.core.units import turn_unit
from hostguard.turns.live import Live, Phase, Turn
from hostguard.turns.scopes import Scopes

MIND = Mind("m", ("/bin/true",), limits=Limits(tasks_max=9, max_turn=60))
IDS = itertools.count(1)


def row(id_=None, kind=Kind.MESSAGE, session="main", mind="m", **more):
    fields = {
        "state": State.QUEUED, "key": None, "sender": "ann", "channel": None, "created_at": 1000,
        "not_before": 0, "expires_at": 0, "attempts": 0, "turn": None, "started_at": 0, "ended_at": 0,
        "result": {},
    }  # fmt: skip
    return Delivery(id=id_ or next(IDS), mind=mind, session=session, kind=kind, **fields | more)


class Driver:
    """Says how turns end; `fails` are raised first."""

    takes_input = False

    def __init__(self):
        self.ending = outcome.Ending("exited", "as the driver says", 0)
        self.fails = []
        self.fed, self.stopped = [], []

    def stopping(self, turn):
        self.stopped.append(turn)

    def end(self, turn):
        if self.fails:
            raise self.fails.pop(0)
        return self.ending

    def feed(self, turn):
        self.fed.append(turn)


class Keeper:
    """`checked`, `over`, `redrives` and `started` are what the scopes reported."""

    def __init__(self, host):
        self.host = host
        self.live, self.clock = Live(), SetClock()
        self.checked, self.over, self.redrives, self.started = [], [], [], []
        redrive, turn_ended, unit_started = Signal(), Signal(), Signal()
        redrive.subscribe(self.redrives.append)
        self.before, self.after = [], []  # others who hear of an end, before and after this
        turn_ended.subscribe(lambda ended: [heard(ended) for heard in self.before])
        turn_ended.subscribe(lambda ended: self.over.append((ended.turn, ended.ending)))
        turn_ended.subscribe(lambda ended: [heard(ended) for heard in self.after])
        unit_started.subscribe(self.started.append)
        self.driver = Driver()
        self.scopes = Scopes(self.live, host, self, self, redrive, turn_ended, unit_started, self.clock)

    # the forks, which start nothing by themselves, and the check of limits

    async def start(self):
        pass

    def close(self):
        pass

    async def take(self):
        return await self.host.take()

    async def look(self, cgroup, limits):
        self.checked.append((cgroup.name, limits))

    def turn(self, id_="7", delivery=None, driver=None, takes_input=False):
        live = LiveTurn(turn_unit("m", id_), "m", "main", id_, takes_input)
        turn = Turn(live, 1000, Phase.STARTING, delivery or row(7), driver or self.driver)
        turn.description = "what it is"
        self.live.add(turn)
        return turn


@asynccontextmanager
async def keeping(monkeypatch, opened=True):
    host = FakeHost()
    host.use(monkeypatch)
    keeper = Keeper(host)
    if opened:
        await keeper.scopes.open()
        host.calls.clear()
        keeper.redrives.clear()
    try:
        yield keeper
    finally:
        for turn in keeper.live:
            keeper.scopes._unfollow(turn)
        await keeper.scopes.close()
        host.end()
        await asyncio.sleep(0.02)  # their pidfds are closed as they end
