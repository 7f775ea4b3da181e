"""The manager over random histories, on a real queue. Only systemd is played, and scopes end when told to.

What holds after every step: never above a cap, sessions serial, counts agree, no attempt counted but for a
failure; and at the end every accepted row has ended exactly once, in order.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from onqueue import acceptor, to
from played import CRASH, MINDS, OK, playing
from searches import sized
from set_clock import SetClock

from hostguard.core import outcome
from hostguard.core.model import Hold, Row, State
from hostguard.core.reasons import Reason
from hostguard.core.settings import Level
from hostguard.pressure.rule import State as PressureState
from hostguard.store import deliveries
from hostguard.store.deliveries import New
from hostguard.store.writer import Queue
from hostguard.turns.live import Phase


class Errors(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Managed(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.accepted: dict[int, str] = {}
        self.ended: list[int] = []
        self.cancelled: set[int] = set()
        self.failures: dict[int, int] = {}
        self.units: set[str] = set()  # of the turns that ran after the last step
        self.errors = Errors(logging.ERROR)
        logging.getLogger("hostguard.gate.dispatcher").addHandler(self.errors)

    def do(self, work):
        async def settled():
            result = await work
            for _ in range(3):  # starts read the queue, and what they write follows
                await self.manager.settled(5)
                await self.queue.write(lambda db: None)
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(settled())

    @initialize()
    def begin(self) -> None:
        async def opened():
            self.queue = Queue(Path(self.folder.name) / "queue.db")
            await self.queue.open()
            self.manager = playing(self.queue)
            self.scopes = self.manager.runner
            self.manager.ready = True
            self.acceptor = acceptor(self.manager)

        self.loop.run_until_complete(opened())

    @rule(minds=st.lists(st.sampled_from(MINDS), min_size=1, unique=True), session=st.sampled_from("sst"))
    def send(self, minds, session) -> None:
        new = New(to(*minds, session=session), b'{"content":1}', 1)
        for row in self.do(self.acceptor.store(new)).rows:
            self.accepted[row.id] = row.mind

    @rule(crash=st.booleans(), data=st.data())
    @precondition(lambda self: self.running())
    def end(self, crash, data) -> None:
        turn = data.draw(st.sampled_from(self.running()))

        id_ = turn.delivery.id
        if crash:
            self.failures[id_] = self.failures.get(id_, 0) + 1
        else:
            self.ended.append(id_)
        self.do(self._end(turn, CRASH if crash else OK))

    @rule(value=st.sampled_from([0, 1, 2, "unlimited"]))
    def limit(self, value) -> None:
        self.do(self.manager.parts.control.set_limit("global_concurrent_turns", None, value, False))

    @rule(value=st.integers(0, 2), mind=st.sampled_from([None, *MINDS]))
    def limit_mind(self, value, mind) -> None:
        self.do(self.manager.parts.control.set_limit("mind_concurrent_turns", mind, value, False))

    @rule(mind=st.sampled_from([None, *MINDS]), on=st.booleans())
    def pause(self, mind, on) -> None:
        self.do(self.manager.parts.control.pause(mind, on))

    @rule(data=st.data())
    @precondition(lambda self: self.queued())
    def cancel(self, data) -> None:
        id_ = data.draw(st.sampled_from(self.queued()))
        self.do(self.manager.parts.deliveries.cancel(id_))
        self.cancelled.add(id_)

    @rule(level=st.sampled_from(Level), cap=st.sampled_from([None, 1, 2]))
    def press(self, level, cap) -> None:
        async def ticked():
            self.manager.watcher.state = PressureState(level=level, cap=cap)
            self.manager.pump()

        self.do(ticked())

    @rule()
    def systemd_goes_and_comes(self) -> None:
        async def flap():
            self.scopes.connected = False
            self.manager.pump()
            self.scopes.connected = True
            self.manager.pump()

        self.do(flap())

    @rule()
    def time_passes(self) -> None:
        self.do(self._all_come_due())

    async def _all_come_due(self) -> None:
        backlog = self.manager.backlog
        for row in list(backlog._later_rows.values()):
            backlog.remove(row.id, row.mind, row.session)
            self.manager.backlog.add(Row(row.id, row.mind, row.session), SetClock().now())
        self.manager.pump()

    def running(self):
        return [turn for turn in self.manager.runner.live if turn.phase is Phase.RUNNING]

    def queued(self):
        live = {turn.delivery.id for turn in self.running()}
        return sorted(self.accepted.keys() - set(self.ended) - self.cancelled - live - self.dead())

    def dead(self):
        return {id_ for id_, n in self.failures.items() if n >= outcome.ATTEMPTS_MAX}

    @invariant()
    def caps_hold_and_nothing_startable_waits(self) -> None:
        if not hasattr(self, "manager"):
            return
        manager = self.manager
        for id_ in self.queued():
            mind = self.accepted[id_]
            row = self.loop.run_until_complete(manager.queue.read(lambda db, i=id_: deliveries.get(db, i)))
            assert row.state is State.QUEUED
            assert row.attempts == self.failures.get(id_, 0), "a hold counts no attempt"
            assert manager.backlog.has(id_, mind, row.session), "no row is forgotten"
            hold = manager.verdict(row.row)
            assert isinstance(hold, Hold), "no startable row waits while a slot is free"
            assert hold.reason in set(Reason) - {Reason.NO_SYSTEMD, Reason.NO_WRITES, Reason.UNKNOWN_MIND}
        running = self.running()
        assert len(running) == len(manager.runner.live), "a slot is a turn"
        units, admit = {turn.live.unit for turn in running}, manager.watcher.state.admit
        assert units <= self.units or admit is None or len(units) <= admit, (
            "none started beyond what pressure allows"
        )
        self.units = units
        assert not self.errors.records, "the gate and the search for the next row agree"
        sessions = [(turn.live.mind, turn.live.session) for turn in running]
        assert len(sessions) == len(set(sessions))

    def teardown(self) -> None:
        async def drain():
            self.manager.watcher.state = PressureState()
            await self.manager.parts.control.pause(None, False)
            await self.manager.parts.control.set_limit("global_concurrent_turns", None, "unlimited", False)
            for mind in (None, *MINDS):
                await self.manager.parts.control.pause(mind, False)
                await self.manager.parts.control.set_limit("mind_concurrent_turns", mind, 1, False)

        if hasattr(self, "manager"):
            self.do(drain())
            while self.queued() or self.running():
                self.do(self._all_come_due())
                for turn in self.running():
                    self.ended.append(turn.delivery.id)
                    self.do(self._end(turn, OK))
            states = dict(
                self.loop.run_until_complete(
                    self.queue.read(lambda db: db.execute("SELECT id, state FROM deliveries").fetchall())
                )
            )
            assert states.keys() == self.accepted.keys()
            for id_, state in states.items():
                want = "cancelled" if id_ in self.cancelled else "dead" if id_ in self.dead() else "done"
                assert state == want
            assert sorted(self.ended) == sorted(set(self.ended)), "each ended once"
            self.loop.run_until_complete(self.queue.close())
        logging.getLogger("hostguard.gate.dispatcher").removeHandler(self.errors)
        self.loop.close()
        self.folder.cleanup()

    async def _end(self, turn, ending) -> None:
        self.manager.runner.end(turn, ending)
        self.manager.runner.end(turn, OK)  # a late second end frees nothing


TestManaged = Managed.TestCase
TestManaged.settings = settings(
    max_examples=sized(13), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
