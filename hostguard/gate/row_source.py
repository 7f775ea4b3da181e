"""The backlog as the drivers of live turns see it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hostguard.core.clock import now_ms
from hostguard.core.model import Fold, LiveTurn, Row
from hostguard.core.signals import Redrive, Signal
from hostguard.gate.backlog import Backlog
from hostguard.gate.gate import Gate


@dataclass(eq=False)
class BacklogRows:
    """Hands out the rows that the gate folds, and takes back those that did not get into a turn."""

    _backlog: Backlog
    _gate: Gate
    _redrive: Signal[Redrive]
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
        """Queue the row again; it is due after `pause_ms`."""
        now = now_ms()
        self._backlog.add(replace(row, not_before=now + pause_ms) if pause_ms else row, now)
        self._redrive.send(Redrive())
