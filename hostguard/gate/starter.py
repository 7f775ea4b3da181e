"""One turn on its way up: its row is read and marked, its scope brought up, its command run or posted."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from hostguard.core import outcome, payload
from hostguard.core.model import Delivery, Kind, LiveTurn, Mind, Row, State
from hostguard.core.names import own_session
from hostguard.core.signals import SessionChanged
from hostguard.core.units import turn_unit
from hostguard.store import deliveries
from hostguard.store.writer import Unavailable
from hostguard.telemetry.events import Event
from hostguard.turns import command
from hostguard.turns.live import Phase, Turn

if TYPE_CHECKING:
    from hostguard.gate.dispatcher import Dispatcher

log = logging.getLogger(__name__)


class Starter:
    """Starts the rows that the gate lets through."""

    def __init__(self, manager: Dispatcher) -> None:
        self._manager = manager

    def begin(self, row: Row, now: int) -> bool:
        """Take a slot for the row, and start it. False if a unit of its name is live already."""
        manager = self._manager
        live = manager.runner.live
        turn_id = outcome.turn_id(row.id, manager.ledger.attempts(row.id))
        unit = turn_unit(row.mind, turn_id)
        if unit in live.turns:
            log.warning("%s is live already, and not by us: row %d waits for it", unit, row.id)
            return False
        manager.backlog.remove(row.id, row.mind, row.session)
        mind = manager.policy.config.minds[row.mind]
        # A script's or a file's turn takes nothing in.
        takes_input = mind.url is not None and row.kind is not Kind.RUN and not own_session(row.session)
        turn = Turn(LiveTurn(unit, row.mind, row.session, turn_id, takes_input), now, Phase.STARTING)
        live.add(turn)
        manager.session_changed.send(SessionChanged(row.mind, row.session, True))
        manager.keep(asyncio.create_task(self._start(turn, row)))
        return True

    async def _start(self, turn: Turn, row: Row) -> None:
        try:
            await self._bring_up(turn, row)
        except Exception as error:
            log.exception("turn %s could not be started", turn.live.id)
            if turn.phase is not Phase.STARTING:
                return  # it runs, and its end is seen
            if turn.delivery is None:
                self._put_back(turn, row)
            else:
                ending = outcome.Ending("not_started", f"a fault of hostguard: {error!r}", failed=True)
                self._manager.runner.give_up(turn, ending)

    def _put_back(self, turn: Turn, row: Row) -> None:
        """Give up a turn whose row is not marked yet. It comes again, unless its turn was asked to stop."""
        if turn.asked:
            self._manager.ledger.close(row, State.CANCELLED, outcome.NEVER_BEGAN.reason)
        else:
            self._manager.read_again(row)
        self._manager.runner.give_up(turn, outcome.Ending("dismissed", "it cannot be started now", back=True))

    async def _bring_up(self, turn: Turn, row: Row) -> None:
        manager, runner, ledger = self._manager, self._manager.runner, self._manager.ledger
        try:
            found = await ledger.fetch(row.id)
        except Unavailable as error:
            log.warning("cannot read row %d: %s", row.id, error)
            self._put_back(turn, row)
            return
        mind = manager.policy.config.minds.get(row.mind)
        if found is None:
            log.warning("row %d is not queued any more; its turn is not started", row.id)
            runner.give_up(turn, outcome.Ending("dismissed", "the row is gone", back=True))
            return
        # The record comes before the mark: a marked row without one is of an earlier boot.
        if mind is None or (row.kind is not Kind.RUN and not runner.begin_record(turn)):
            self._put_back(turn, row)
            return
        delivery, raw = found
        turn.delivery = delivery
        turn.waited = ledger.hold_ends(delivery, turn.since)
        turn.max_turn = mind.limits.max_turn
        turn.description = payload.describe(delivery, raw)
        assert turn.live.id is not None
        turn_id, since = turn.live.id, turn.since
        ledger.write(lambda db: deliveries.mark_delivering(db, row.id, turn_id, since), durable=False)
        if await self._run(turn, mind, delivery, raw):
            manager.events.emit(
                Event.STARTED, f"{mind.name}: turn {turn_id} started after {turn.waited.ms} ms",
                mind=mind.name, session=delivery.session, delivery=row.id, turn=turn_id, unit=turn.live.unit,
                waited_ms=turn.waited.ms, handoff_ms=round(1000 * (time.monotonic() - turn.admitted), 1),
            )  # fmt: skip

    async def _run(self, turn: Turn, mind: Mind, row: Delivery, raw: bytes) -> bool:
        """True once the turn is at work."""
        manager, runner = self._manager, self._manager.runner
        if row.kind is Kind.RUN:
            # One that was stopped, too, is to hear so; one that was only paused waits on.
            caller = None if turn.revoked and not turn.asked else manager.callers.take(row.id)
            if caller is None or not caller.alive():
                reason = "it was paused, or its caller is gone"
                runner.give_up(turn, outcome.Ending("dismissed", reason, back=True))
                return False
            if not await runner.start_run(turn, mind.limits, caller.pid):
                why = "it was stopped" if turn.asked else "systemd did not start its scope"
                caller.tell({"event": "failed", "detail": why})
                return False
            caller.tell({"event": "start", "turn": turn.live.id, "unit": turn.live.unit})
            return True
        if row.kind.delivers and mind.url is not None:
            return await manager.residents.start(turn, mind, row, raw)
        return await runner.start_exec(turn, mind, command.work(mind, row, raw, turn.waited))
