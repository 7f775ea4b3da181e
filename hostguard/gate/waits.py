"""The waits of turns for deliveries: one that would never end is refused, at once or when that becomes so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hostguard.core import outcome
from hostguard.core.model import MindView, Row
from hostguard.gate.backlog import Backlog
from hostguard.gate.deadlock import Situation, Wait, never_ending
from hostguard.gate.policy import CAP_MAX, Policy
from hostguard.linux.process import home_of
from hostguard.turns.live import Live


@dataclass(eq=False)
class _Waiting:
    """A process that waits for a row. `refused` gets the units that keep the row from its end."""

    pid: int
    row: Row
    cgroup: tuple[str, ...]  # the names of the folders that it is in
    refused: asyncio.Future[tuple[str, ...]]


@dataclass(eq=False)
class Waits:
    """Knows which process waits for which row, and in which turn's scope it is."""

    _policy: Policy
    _live: Live
    _backlog: Backlog
    _waiting: list[_Waiting] = field(default_factory=list, init=False)  # in the order in which they began
    _due: bool = field(default=False, init=False)

    @contextmanager
    def begun(self, pid: int, row: Row) -> Iterator[asyncio.Future[tuple[str, ...]]]:
        """While this lasts, the process waits for the row.

        The future is done once that would never end, with the units that keep the row from its end. The
        process counts as waiting no more then.
        """
        refused: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(pid, row, _cgroup(pid), refused)
        self._waiting.append(waiting)
        self.check()
        try:
            yield refused
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            refused.cancel()

    def pids(self) -> list[int]:
        """The processes that wait."""
        return [one.pid for one in self._waiting]

    def changed(self, fact: object = None) -> None:
        """Rows, turns or caps changed: check soon, once for all changes of this moment."""
        if self._waiting and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.check)

    def moved(self, fact: object = None) -> None:
        """Processes were moved into the scope of a turn, or out of it."""
        for waiting in self._waiting:
            waiting.cgroup = _cgroup(waiting.pid)
        self.changed()

    def check(self) -> None:
        """Refuse the waits that would never end."""
        self._due = False
        waits: dict[Wait, list[_Waiting]] = {}
        for one in self._waiting:
            unit = next((name for name in one.cgroup if name in self._live.turns), None)
            if unit is not None:
                waits.setdefault(Wait(unit, one.row), []).append(one)
        if not waits:
            return
        for wait, units in never_ending(self._situation({wait.row for wait in waits}), [*waits]):
            for one in waits[wait]:
                self._waiting.remove(one)
                one.refused.set_result(units)

    def _situation(self, rows: set[Row]) -> Situation:
        """Without what ends some day: a cap of 0 counts as none, since it is a pause."""
        wanted = {row.id for row in rows}
        in_turn: dict[int, str] = {}
        for turn in self._live:
            taken = [row.id for row, _ in turn.rows]
            if turn.live.id is not None and (first := outcome.row_of(turn.live.id)) is not None:
                taken.append(first)  # while it is being read
            in_turn |= dict.fromkeys(wanted.intersection(taken), turn.live.unit)
        known = {row.mind for row in rows} & self._policy.config.minds.keys()
        minds = {
            mind: MindView(mind, self._policy.mind_cap(mind) or CAP_MAX, live=self._live.of(mind))
            for mind in known
        }
        queued = [row for row in rows if self._backlog.has(row.id, row.mind, row.session)]
        # A row that folds into no turn keeps those behind it from doing so.
        foldable = {
            row.id for row in queued if all(one.kind.delivers for one in (*self._backlog.ahead(row), row))
        }
        cap = self._policy.global_cap() or None
        return Situation(cap, minds, in_turn, {row.id for row in queued}, foldable)


def _cgroup(pid: int) -> tuple[str, ...]:
    home = home_of(pid)
    return home.parts if home is not None else ()
