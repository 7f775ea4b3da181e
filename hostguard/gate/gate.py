"""The gate: asks the rule about rows, with a view of the host as it is now, and feeds live turns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hostguard.core.admission import decide
from hostguard.core.clock import Clock
from hostguard.core.model import Fold, Hold, HostView, Kind, LiveTurn, MindView, Row, Verdict
from hostguard.core.ports import SessionNotes
from hostguard.core.reasons import Reason
from hostguard.core.signals import Redrive, Signal
from hostguard.gate.backlog import Backlog
from hostguard.gate.policy import Policy
from hostguard.gate.run_clients import RunClients
from hostguard.gate.times import paused
from hostguard.pressure.monitor import Monitor
from hostguard.store.writer import Queue
from hostguard.turns.availability import Availability
from hostguard.turns.live import Live
from hostguard.turns.scopes import Scopes


@dataclass(eq=False)
class Gate:
    """The one place where the rule is asked."""

    _policy: Policy
    _live: Live
    _scopes: Scopes
    _queue: Queue
    _monitor: Monitor
    _availability: Availability
    _run_clients: RunClients
    _backlog: Backlog
    _routes: SessionNotes
    _clock: Clock

    def host(self) -> HostView:
        """The host as the rule sees it."""
        return HostView(
            len(self._live), tuple(self._live.turns), self._policy.global_cap(), self._monitor.admit,
            self._policy.paused(), self._scopes.connected, self._queue.trouble is None, self._scopes.stopping,
        )  # fmt: skip

    def view(self, mind: str) -> MindView:
        """A mind as the rule sees it."""
        known = self._policy.config.minds.get(mind)
        return MindView(
            mind, 0 if known is None else self._policy.mind_cap(mind), self._policy.paused(mind),
            self._policy.asleep(mind), self._live.of(mind), self._availability.why(mind),
            "" if known is None else known.broken, self._routes.unread(mind), self._policy.restarting(mind),
        )  # fmt: skip

    def verdict(self, row: Row) -> Verdict:
        """Start, fold or hold: the verdict on the row at this moment."""
        if row.mind not in self._policy.config.minds:
            return Hold(Reason.UNKNOWN_MIND, f"the configuration has no mind {row.mind}")
        if row.kind is Kind.RUN and not self._run_clients.waits(row.id):
            return Hold(Reason.CALLER_AWAY, "its `hostguard run` is not connected")
        now, first = self._clock.now(), self._backlog.paused(row.mind, row.session)
        if first is not None and first.id <= row.id and first.later(now):
            row = replace(row, not_before=first.not_before, due=first.due)
        else:
            first = None
        verdict = decide(self.host(), self.view(row.mind), row, now)
        if first is not None and isinstance(verdict, Hold) and verdict.reason is Reason.NOT_DUE:
            which = "it" if first.id == row.id else f"{first.id}, before it in its session,"
            return Hold(Reason.RETRY, f"{which} is tried again after a pause")
        return verdict

    def hold(self, row: Row) -> Hold | None:
        """Why the row waits; None if it does not."""
        verdict = self.verdict(row)
        return verdict if isinstance(verdict, Hold) else None


@dataclass(eq=False)
class BacklogRows:
    """Hands out the rows that the gate folds, and takes back those that did not get into a turn."""

    _backlog: Backlog
    _gate: Gate
    _redrive: Signal[Redrive]
    _clock: Clock
    _closed: bool = field(default=False, init=False)

    def close(self) -> None:
        """Hand out no more rows."""
        self._closed = True

    def first(self, turn: LiveTurn) -> Row | None:
        """The session's first row, if the gate folds it into this turn."""
        row = None if self._closed else self._backlog.first_in(turn.mind, turn.session or "")
        return row if row is not None and self._gate.verdict(row) == Fold(turn) else None

    def take(self, row: Row) -> None:
        """Remove the row from the backlog."""
        self._backlog.remove(row.id, row.mind, row.session)

    def give_back(self, row: Row, pause_ms: int = 0) -> None:
        """Queue the row again at its place; it is due after `pause_ms`, and its session waits until then."""
        now = self._clock.now()
        self._backlog.give_back(paused(row, pause_ms, now) if pause_ms else row, now)
        self._redrive.send(Redrive())
