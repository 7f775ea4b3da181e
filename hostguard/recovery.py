"""Setting the records right at start: the database says what should be, systemd says what is.

What a killed guard can leave behind, and what becomes of it:
  row delivering, scope live            the turn goes on, and is followed from here
  row delivering, scope gone            ended by its exit record; without one (the host was restarted) a crash
  row queued, scope live or it ran      the mark was not stored any more: as above
  row queued, record empty              never let run: starts again, the record is removed
  scope or record without a row         its database is gone: ids go on above it, so that none is taken for it
"""

from __future__ import annotations

import logging
import time

from hostguard import deliveries, paths, turns
from hostguard.clock import now_ms
from hostguard.live import Phase, Turn
from hostguard.manager import Manager
from hostguard.model import Delivery, Kind, LiveTurn, State
from hostguard.units import turn_unit

log = logging.getLogger(__name__)


async def recover(manager: Manager) -> None:
    """Load the queue and match it with the live scopes. Call it once, when both are connected."""
    queue, live = manager.queue, manager.runner.live
    begun = time.monotonic()
    special = await queue.read(deliveries.special)
    known = {}
    for row in special:
        if row.state is State.DELIVERING:
            turn_id = row.turn or turns.turn_id(row.id, row.attempts)
            known[turn_id] = row
            if row.turn is None:  # set by hand
                manager.ledger.write(_mark(row, turn_id), durable=False)
    found = {turn.live.id for turn in live if turn.live.id} | set(_records())
    manager.ledger.floor = max((turns.row_of(turn_id) or 0 for turn_id in found), default=0)
    for turn_id in found - known.keys():
        unmarked = await _unmarked(manager, turn_id)
        if unmarked is not None:
            known[turn_id] = unmarked
            manager.ledger.write(_mark(unmarked, turn_id), durable=False)
        elif not any(turn.live.id == turn_id for turn in live):
            turns.forget(turn_id)

    now, taken = now_ms(), {row.id for row in known.values()}
    await queue.read(
        lambda db: manager.backlog.load(
            (row for row in deliveries.queued(db) if row[0] not in taken) if taken else deliveries.queued(db),
            now,
        )
    )
    manager.ledger.loaded = await queue.read(deliveries.last_id)
    for delivery in special:
        if delivery.state is State.QUEUED and delivery.id not in taken:
            manager.ledger.remember(delivery)
            if delivery.kind is Kind.RUN:
                manager.callers.park(delivery.row, now)

    for turn_id, delivery in known.items():
        _resume(manager, turn_id, delivery)
    log.info(
        "%d rows queued, %d turns live, read in %.0f ms",
        len(manager.backlog) + manager.backlog.later,
        len(live),
        (time.monotonic() - begun) * 1000,
    )
    manager.ready = True
    manager.pump()


def _records() -> list[str]:
    return [path.name for path in paths.TURNS.iterdir()]


async def _unmarked(manager: Manager, turn_id: str) -> Delivery | None:
    """The queued row whose turn this is, if it may have run."""
    id_ = turns.row_of(turn_id)
    if id_ is None:
        return None
    row = await manager.queue.read(lambda db: deliveries.get(db, id_))
    if row is None or row.state is not State.QUEUED or turns.turn_id(row.id, row.attempts) != turn_id:
        return None
    record = turns.read_record(turn_id)
    ran = record is not None and (record.released or record.not_started is not None)
    return row if ran or turn_unit(row.mind, turn_id) in manager.runner.live.turns else None


def _mark(row: Delivery, turn_id: str) -> deliveries.Op:
    return lambda db: deliveries.mark_delivering(db, row.id, turn_id, now_ms())


def _resume(manager: Manager, turn_id: str, row: Delivery) -> None:
    live = manager.runner.live
    unit = turn_unit(row.mind, turn_id)
    mind = manager.policy.config.minds.get(row.mind)
    turn = Turn(
        LiveTurn(unit, row.mind, row.session, turn_id),
        row.started_at or now_ms(),
        Phase.RUNNING,
        row,
        held_ms=max(0, row.started_at - max(row.created_at, row.not_before)),
        max_turn=mind.limits.max_turn if mind else None,
    )
    seen = live.turns.get(unit)
    if seen is not None:
        turn.description = seen.description
        live.remove(seen)
        live.add(turn)  # it is watched by its name already
    else:
        manager.settle(row, turn, manager.runner.ending_of(turn))
