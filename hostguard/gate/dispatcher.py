"""The delivery manager: accepted -> gate -> start -> end -> next. Everything that starts a turn is here.

One event loop runs it all. `pump` is the only way to a turn; it runs whenever something changed that could
let a row start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from hostguard.core import outcome
from hostguard.core.clock import now_ms
from hostguard.core.errors import Problem
from hostguard.core.model import (
    Delivery,
    Hold,
    HostView,
    Kind,
    MindView,
    Reason,
    Row,
    Start,
    State,
    Waited,
)
from hostguard.core.signals import Pumped, Redrive, SessionChanged, Signal
from hostguard.gate.backlog import Backlog
from hostguard.gate.gate import Gate
from hostguard.gate.ledger import Ledger
from hostguard.gate.notices import dead_letter, script_message
from hostguard.gate.policy import Policy
from hostguard.gate.run_clients import RunClients
from hostguard.gate.starter import Starter
from hostguard.pressure.monitor import Monitor
from hostguard.store.deliveries import New
from hostguard.store.writer import Queue
from hostguard.telemetry.events import Event, Events
from hostguard.turns.live import Turn, TurnEnded
from hostguard.turns.resident_driver import ResidentDriver
from hostguard.turns.scopes import Scopes

log = logging.getLogger(__name__)

READ_AGAIN_MS = 1_000  # a row that could not be read is tried again after this
# The wall clock may jump (a Pi has no clock of its own): a timer for a wall time looks again this often.
CLOCK_CHECK_S = 30.0


class Dispatcher:
    """Owns the backlog and the live turns; all state here mirrors the database and systemd."""

    gate: Gate
    residents: ResidentDriver
    watcher: Monitor

    def __init__(
        self,
        queue: Queue,
        events: Events,
        policy: Policy,
        backlog: Backlog,
        scopes: Scopes,
        run_clients: RunClients,
        ledger: Ledger,
        session_changed: Signal[SessionChanged],
        pumped: Signal[Pumped],
    ) -> None:
        self.queue = queue
        self.events = events
        self.backlog = backlog
        self.policy = policy
        self.live = scopes.live
        self.runner = scopes
        self.callers = run_clients
        self.ledger = ledger
        self.session_changed = session_changed
        self._starter = Starter(self)
        # The instructions that a mind's routes have for a session; set by the daemon.
        self.instructions: Callable[[str, str], str | None] = lambda mind, session: None
        self.ready = False
        self.closing = False
        self._pumped = pumped
        self._fresh: list[Row] = []  # queued since the last pump: are they held?
        self._looked = 0  # when `pump` last did, by the wall clock
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # -- the gate

    def admit(self, rows: Sequence[Delivery]) -> None:
        """Take stored rows into the backlog and offer them to the gate."""
        now = now_ms()
        for row in rows:
            self.backlog.add(row.row, now)
            self.ledger.remember(row)
            self._fresh.append(row.row)
            self.events.emit(
                Event.ACCEPTED, f"accepted {row.id} for {row.mind}", mind=row.mind, session=row.session,
                delivery=row.id, channel=row.channel,
            )  # fmt: skip
        self.pump()

    def view(self, mind: str) -> MindView:
        """What the gate sees of a mind."""
        return self.gate.view(mind)

    def host(self) -> HostView:
        """What the gate sees of the host."""
        return self.gate.host()

    def verdict(self, row: Row) -> Hold | None:
        """Why the row does not start now; None if it may."""
        return self.gate.hold(row)

    def _is_open(self, mind: str) -> bool:
        return (
            mind in self.policy.config.minds
            and not self.policy.paused(mind)
            and not self.policy.asleep(mind)
            and self.residents.downs.why(mind) is None
            and len(self.runner.live.of(mind)) < self.policy.mind_cap(mind)
        )

    def _has_room(self) -> bool:
        host = self.host()
        return (
            self.ready
            and not self.closing
            and host.systemd
            and host.writes
            and not host.paused
            and all(cap is None or host.live < cap for cap in (host.cap, host.effective_cap))
        )

    def pump(self) -> None:
        """Start every row that may start, in order of id; say of each new row why it waits."""
        now = now_ms()
        if now < self._looked:
            self.hasten(now)
        self._looked = now
        self._fresh += self.backlog.due(now)
        # A `hostguard run --max-wait 0` is offered once, however long its commit took.
        self._expire(now, {row.id for row in self._fresh if row.kind is Kind.RUN})
        for id_ in self.callers.lost():
            self._drop_run(id_)
        for mind in self.residents.downs.retried():
            self._offer(mind)
        for new in self._fresh:
            turn = self.runner.live.taking(new.mind, new.session)
            if turn is not None:
                self.residents.feed(turn)
        while self._has_room():
            row = self.backlog.next(self._is_open, self.runner.live.sessions)
            if row is None:
                break
            if row.kind is Kind.RUN and not self.callers.waits(row.id):
                self.backlog.remove(row.id, row.mind, row.session)
                self.callers.park(row)
                continue
            if not isinstance(self.gate.verdict(row), Start):
                log.error("the backlog offered %s, which the gate holds", row)
                break
            if not self._starter.begin(row, now):
                self.backlog.remove(row.id, row.mind, row.session)
                self.read_again(row)
        self._expire(now)
        fresh, self._fresh = self._fresh, []
        for row in fresh:
            self._note_hold(row, now)
        self._set_timer(now)
        self._pumped.send(Pumped())

    def hasten(self, now: int) -> None:
        """A pause after a failure that is longer than the longest was set before the clock was set back."""
        self.backlog.hasten(self.ledger.tried, now + outcome.BACKOFF_MS[1], now)

    def _note_hold(self, row: Row, now: int) -> None:
        if self.backlog.has(row.id, row.mind, row.session):
            hold = self.verdict(row)
            if hold is not None and hold.reason is not Reason.NOT_DUE:
                self.ledger.hold_begins(row, hold, now)

    # -- ends

    def turn_ended(self, ended: TurnEnded) -> None:
        """A slot came free: account for its rows, and hand the slot on at once."""
        turn, ending = ended.turn, ended.ending
        self.backlog.touch(turn.live.mind, turn.live.session)
        if turn.delivery is not None:
            self.settle(turn.delivery, turn, ending, turn.waited)
        if turn.resident is not None:
            if turn.resident.ending is None and turn.resident.posted:
                self.residents.dones.expect(turn)
            for row, waited in turn.resident.folded:
                self.settle(row, turn, ending, waited)
        if turn.live.session is not None:
            self.session_changed.send(SessionChanged(turn.live.mind, turn.live.session, False))
        self.pump()

    def settle(self, row: Delivery, turn: Turn, ending: outcome.Ending, waited: Waited) -> None:
        """Account for a row of a turn that is over; `pump` follows."""
        follow_up = self.follow_up(row, turn, ending)
        again = self.ledger.settle(row, turn, ending, waited, follow_up, self.admit)
        if again is not None:
            self.requeue(again)

    def follow_up(self, row: Delivery, turn: Turn, ending: outcome.Ending) -> New | None:
        """What a row's end brings about: a script's message, or the one notice of a dead letter."""
        if row.kind is Kind.SCRIPT and not ending.failed and not ending.back:
            return script_message(row, turn.record.output if turn.record else "", ending, now_ms())
        if ending.failed and row.attempts + 1 >= outcome.ATTEMPTS_MAX:
            return dead_letter(row, ending, self.policy.config, now_ms())
        return None

    def requeue(self, row: Row) -> None:
        """Give a row back to the backlog; `pump` follows."""
        self.backlog.add(row, now_ms())
        self._fresh.append(row)

    def read_again(self, row: Row) -> None:
        """Give a row back that could not be read, for a little later."""
        self.requeue(replace(row, not_before=now_ms() + READ_AGAIN_MS))

    def reopen(self, mind: str) -> None:
        """The mind may be offered its rows again: it is up, awake, or has room."""
        self._offer(mind)
        self.pump()

    def _offer(self, mind: str) -> None:
        self.backlog.touch(mind)
        for turn, _ in self.runner.live.resident(mind):
            self.residents.feed(turn)

    # -- time, systemd, tasks

    def _expire(self, now: int, spared: Collection[int] = ()) -> None:
        self.ledger.expired(now, spared, self._take_out)

    def _take_out(self, row: Row) -> bool:
        return self.backlog.remove(row.id, row.mind, row.session) or bool(self.callers.unpark(row.id))

    def _drop_run(self, id_: int) -> None:
        row = self.callers.unpark(id_)
        if row is not None:
            self.ledger.close(row, State.CANCELLED, "its `hostguard run` went away")

    def _set_timer(self, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        delays = [self.callers.lost_in(), self.residents.downs.up_in()]
        for when in (self.backlog.next_due(), self.ledger.next_expiry()):
            delays.append(None if when is None else min((when - now) / 1000, CLOCK_CHECK_S))
        delay = min((delay for delay in delays if delay is not None), default=None)
        if delay is not None:
            self._timer = asyncio.get_running_loop().call_later(max(delay, 0), self.pump)

    def redrive(self, cause: Redrive) -> None:
        """Offer what waits again."""
        if cause.mind is not None:
            self._offer(cause.mind)
        if self.ready:
            self.pump()

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold on to a task until it is done, and log it if it fails."""
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, Problem):
            log.error("a task failed", exc_info=error)

    async def settled(self, seconds: float) -> None:
        """Wait for what is being accepted or started."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
