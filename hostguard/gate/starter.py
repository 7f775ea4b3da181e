"""Starts one turn: reads its row, marks it, and has its driver bring it up."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from hostguard.core import payload
from hostguard.core.clock import AGAIN_MS, Now
from hostguard.core.errors import named
from hostguard.core.model import LiveTurn, Row, State
from hostguard.core.outcome import NEVER_BEGAN, Ending, turn_id
from hostguard.core.ports import Configured, RowSource
from hostguard.core.signals import SessionChanged, Signal
from hostguard.core.tasks import Tasks
from hostguard.core.units import turn_unit
from hostguard.gate.ledger import Ledger
from hostguard.store.writer import Unavailable
from hostguard.telemetry.events import Event, Events
from hostguard.turns.drivers.choice import Drivers
from hostguard.turns.live import Live, Phase, Turn, TurnDriver
from hostguard.turns.scopes import Scopes

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Starter:
    """Starts the rows that the gate lets through."""

    _policy: Configured
    _live: Live
    _scopes: Scopes
    _drivers: Drivers
    _ledger: Ledger
    _rows: RowSource
    _events: Events
    _session_changed: Signal[SessionChanged]
    _tasks: Tasks
    _closing: bool = field(default=False, init=False)

    def close(self) -> None:
        """Leave starts that are cancelled from now on to the next guard."""
        self._closing = True

    def begin(self, row: Row, now: Now) -> bool:
        """Take a slot for the row, and start it. False if a unit of its name is live already."""
        id_ = turn_id(row.id, self._ledger.attempts(row.id))
        unit = turn_unit(row.mind, id_)
        if unit in self._live.turns:
            log.warning("%s is live already, but not ours: row %d waits for it", unit, row.id)
            return False
        self._rows.take(row)
        driver = self._drivers.choose(row.kind, self._policy.config.minds[row.mind])
        live = LiveTurn.of(row, unit, id_, driver.takes_input)
        turn = Turn(live, now.date, Phase.STARTING, driver=driver, started=now.stamp)
        self._live.add(turn)
        self._session_changed.send(SessionChanged(row.mind, row.session, True))
        self._tasks.start(self._start(turn, driver, row))
        return True

    async def _start(self, turn: Turn, driver: TurnDriver, row: Row) -> None:
        try:
            await self._bring_up(turn, driver, row)
        except BaseException as error:
            if self._closing:
                raise
            log.exception("turn %s could not be started", turn.live.id)
            if turn.phase is Phase.STARTING:  # otherwise it runs, and its end is seen
                if turn.delivery is None:
                    self._put_back(turn, row)
                else:
                    ending = Ending("not_started", f"a bug in hostguard: {named(error)}", failed=True)
                    self._scopes.give_up(turn, ending)
            if not isinstance(error, Exception):
                raise

    def _put_back(self, turn: Turn, row: Row) -> None:
        """Give up a turn whose row is not marked yet. It is queued again, unless its turn was stopped."""
        if turn.asked:
            self._ledger.close(row, State.CANCELLED, NEVER_BEGAN.reason)
        else:
            self._rows.give_back(row, AGAIN_MS)
        self._scopes.give_up(turn, Ending("dismissed", "it cannot be started now", back=True))

    async def _bring_up(self, turn: Turn, driver: TurnDriver, row: Row) -> None:
        try:
            found = await self._ledger.fetch(row.id)
        except Unavailable as error:
            log.warning("cannot read row %d: %s", row.id, error)
            self._put_back(turn, row)
            return
        if found is None:
            log.warning("row %d is no longer queued; its turn is not started", row.id)
            self._scopes.give_up(turn, Ending("dismissed", "the row is gone", back=True))
            return
        mind = self._policy.config.minds.get(row.mind)
        # The record comes before the mark: a marked row without a record is from an earlier boot.
        if mind is None or not driver.prepare(turn):
            self._put_back(turn, row)
            return
        turn.delivery, raw = found
        turn.max_turn = mind.limits.max_turn
        turn.description = payload.describe(turn.delivery, raw)
        turn.waited = self._ledger.begin(turn.delivery, turn, row.since)
        if await driver.start(turn, mind, turn.delivery, raw):
            self._events.emit(
                Event.STARTED, f"{mind.name}: turn {turn.live.id} started after {turn.waited.ms} ms",
                mind=mind.name, session=row.session, delivery=row.id, turn=turn.live.id, unit=turn.live.unit,
                waited_ms=turn.waited.ms, handoff_ms=round(1000 * (time.monotonic() - turn.admitted), 1),
            )  # fmt: skip
