"""Moves rows from the backlog through the gate into turns, and accounts for them when their turns end.

Everything runs on one event loop. `pump` is the only way to a turn; it runs after every change that could let
a row start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hostguard.core.clock import AGAIN_MS, CHECK_S, Clock, Now
from hostguard.core.model import Delivery, Fold, Hold, Kind, Row, Start, State
from hostguard.core.reasons import HOST, SESSION, Reason
from hostguard.core.signals import Pumped, Redrive, RowsSetAside, SessionChanged, Signal
from hostguard.gate.backlog import Backlog
from hostguard.gate.gate import Gate
from hostguard.gate.ledger import Ledger
from hostguard.gate.run_clients import RUN_LEFT, RunClients
from hostguard.gate.starter import Starter
from hostguard.gate.times import paused, queued
from hostguard.telemetry.events import Event, Events
from hostguard.turns.availability import Availability
from hostguard.turns.live import Live, TurnEnded

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Dispatcher:
    """Offers the rows of the backlog to the gate, and acts on its verdicts."""

    _backlog: Backlog
    _gate: Gate
    _starter: Starter
    _live: Live
    _ledger: Ledger
    _run_clients: RunClients
    _availability: Availability
    _events: Events
    _session_changed: Signal[SessionChanged]
    _pumped: Signal[Pumped]
    _clock: Clock
    ready: bool = field(default=False, init=False)  # True once the backlog is loaded
    closing: bool = field(default=False, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def open(self) -> None:
        """Start turns from now on: the backlog is loaded."""
        self.ready = True
        self.pump()

    def close(self) -> None:
        """Start no more turns."""
        self.closing = True
        self._starter.close()

    # -- the gate

    def admit(self, rows: Sequence[Delivery]) -> None:
        """Take stored rows into the backlog and offer them to the gate."""
        now = self._clock.now()
        for row in rows:
            self._backlog.add(queued(row, now), now)
            self._ledger.remember(row)
            self._events.emit(
                Event.ACCEPTED, f"accepted {row.id} for {row.mind}", mind=row.mind, session=row.session,
                delivery=row.id, channel=row.channel,
            )  # fmt: skip
        self.pump()

    def pump(self) -> None:
        """Start every row that may start, in order of id; report for each new row why it waits."""
        if not self.ready or self.closing:
            return
        now = self._clock.now()
        self._backlog.due(now)
        fresh = self._backlog.fresh()
        # A `hostguard run --max-wait 0` is offered once, however long its commit took.
        self._expire(now, {row.id for row in fresh if row.kind is Kind.RUN})
        fresh += self._backlog.fresh()  # what waited behind one that expired
        for lost in self._run_clients.lost():
            self._ledger.close(lost, State.CANCELLED, RUN_LEFT)
        for mind in self._availability.retried():
            self._offer(mind)
        for row in fresh:
            if self._live.taking(row.mind, row.session) is not None:  # the host's caps do not hold such a row
                self._try(row, now)
        while (head := self._backlog.next()) is not None and self._try(head, now):
            pass
        expired = self._expire(now)
        for row in fresh:
            if self._backlog.has(row.id, row.mind, row.session):
                hold = self._gate.hold(row)
                if hold is not None and hold.reason is not Reason.NOT_DUE:
                    self._ledger.hold_begins(row, hold)
        self._set_timer(now)
        self._pumped.send(Pumped())
        if expired:  # others may have waited behind it
            self.pump()

    def _try(self, row: Row, now: Now) -> bool:
        """Act on the gate's verdict on the row. False if its hold applies to all rows that would start.

        Afterwards the row does not come up again until something changes: it left the backlog, or its mind or
        session is parked. So no row can keep all others from starting.
        """
        try:
            verdict = self._gate.verdict(row)
            if isinstance(verdict, Hold) and verdict.reason.holds == HOST:
                return False
            self._act(row, verdict, now)
        except Exception:
            log.exception("row %d cannot be offered to the gate; its session waits", row.id)
            self._backlog.park(row, SESSION)
        return True

    def _act(self, row: Row, verdict: Start | Fold | Hold, now: Now) -> None:
        if isinstance(verdict, Start):
            if not self._starter.begin(row, now):
                self._take_out(row)
                self._backlog.give_back(paused(row, AGAIN_MS, now), now)
        elif isinstance(verdict, Fold):
            self._backlog.park(row, SESSION)
            self._feed(verdict.turn.unit)
        elif verdict.reason is Reason.CALLER_AWAY:
            self._take_out(row)
            self._run_clients.park(row)
        else:
            self._backlog.park(row, verdict.reason.holds)

    def _feed(self, unit: str) -> None:
        turn = self._live.turns[unit]
        if turn.driver is not None:
            turn.driver.feed(turn)

    # -- ends

    def turn_ended(self, ended: TurnEnded) -> None:
        """A slot came free: account for its rows, and hand the slot on at once."""
        turn, now = ended.turn, self._clock.now()
        self._backlog.touch(turn.live.mind, turn.live.session)
        for row, waited in turn.rows:
            again = self._ledger.settle(row, turn, ended.ending, waited)
            if again is not None:
                put_back = self._backlog.add if ended.ending.overtaken else self._backlog.give_back
                put_back(again, now)
        if turn.live.session is not None:
            self._session_changed.send(SessionChanged(turn.live.mind, turn.live.session, False))
        self.pump()

    def rows_set_aside(self, gone: RowsSetAside) -> None:
        """Rows were damaged, and are not stored any more: others may have waited behind them."""
        self._backlog.forget(frozenset(gone.ids))
        self._ledger.lost(gone.ids)
        self.pump()

    def redrive(self, cause: Redrive) -> None:
        """Offer the waiting rows again."""
        if cause.mind is not None:
            self._offer(cause.mind)
        self.pump()

    def _offer(self, mind: str) -> None:
        self._backlog.touch(mind)
        for turn in self._live.of(mind):
            self._feed(turn.unit)

    # -- time

    def _expire(self, now: Now, spared: Collection[int] = ()) -> bool:
        return self._ledger.expired(now, spared, self._take_out)

    def _take_out(self, row: Row) -> bool:
        return self._backlog.remove(row.id, row.mind, row.session) or bool(self._run_clients.unpark(row.id))

    def _set_timer(self, now: Now) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        delays = [self._run_clients.lost_in(), self._availability.up_in()]
        for ms in (self._backlog.due_in(now), self._ledger.expires_in(now)):
            delays.append(None if ms is None else min(ms / 1000, CHECK_S))
        delay = min((delay for delay in delays if delay is not None), default=None)
        if delay is not None:
            self._timer = asyncio.get_running_loop().call_later(max(delay, 0), self.pump)
