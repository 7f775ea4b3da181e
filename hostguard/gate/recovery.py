"""Setting the records right at start: the database says what should be, systemd says what is.

What a killed guard can leave behind, and what becomes of it:
  row delivering, scope live            the turn goes on, and is followed from here
  row delivering, scope gone            ended by its exit record; without one (the host was restarted) a crash
  row queued, scope live or it ran      the mark was not stored any more: as above
  row queued, record empty              never let run: starts again, the record is removed
  row delivering to a resident mind     confirmed: as above, never posted again; not confirmed: posted again
                                        with the same key, into its turn if that lives, else in order
  scope or record without a row         its database is gone: ids go on above it, so that none is taken for it
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from hostguard.core import outcome, paths
from hostguard.core.clock import now_ms
from hostguard.core.model import Delivery, Kind, LiveTurn, State, Waited
from hostguard.core.units import turn_unit
from hostguard.gate.dispatcher import Dispatcher
from hostguard.store import deliveries
from hostguard.store.writer import Unavailable
from hostguard.turns import exit_record
from hostguard.turns.live import Phase, Resident, Turn

log = logging.getLogger(__name__)

STORED_S = 5.0  # for a card that stalls: the guard is needed then


async def recover(manager: Dispatcher) -> None:
    """Load the queue and match it with the live scopes. Call it once, when both are connected."""
    queue, live = manager.queue, manager.runner.live
    begun = time.monotonic()
    special = await queue.read(deliveries.special)
    known: dict[str, Delivery] = {}
    folded: list[Delivery] = []  # posted into another row's turn
    for row in special:
        if row.state is State.DELIVERING:
            turn_id = row.turn or outcome.turn_id(row.id, row.attempts)
            if outcome.row_of(turn_id) != row.id:
                folded.append(row)
                continue
            known[turn_id] = row
            if row.turn is None:  # set by hand
                manager.ledger.write(_mark(row, turn_id), durable=False)
    found = {turn.live.id for turn in live if turn.live.id} | set(_records())
    manager.ledger.floor = max((outcome.row_of(turn_id) or 0 for turn_id in found), default=0)
    for turn_id in found - known.keys():
        unmarked = await _unmarked(manager, turn_id)
        if unmarked is not None:
            known[turn_id] = unmarked
            manager.ledger.write(_mark(unmarked, turn_id), durable=False)
        elif not any(turn.live.id == turn_id for turn in live):
            exit_record.forget(turn_id)

    now, taken = now_ms(), {row.id for row in (*known.values(), *folded)}
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
                manager.callers.park(delivery.row)

    resumed = {turn_id: _resume(manager, turn_id, delivery) for turn_id, delivery in known.items()}
    for delivery in folded:
        _resume_folded(manager, resumed.get(delivery.turn or ""), delivery)
    for turn in resumed.values():
        if turn.resident is not None:
            await _follow(manager, turn, turn.resident)
    log.info(
        "%d rows queued, %d turns live, read in %.0f ms",
        len(manager.backlog) + manager.backlog.later,
        len(live),
        (time.monotonic() - begun) * 1000,
    )
    if known or folded:
        # On a full card it shows now that the ends cannot be stored; what waits behind them must not start.
        with suppress(Unavailable, TimeoutError):
            await asyncio.wait_for(queue.write(lambda db: None), STORED_S)
    manager.hasten(now_ms())
    manager.ready = True
    manager.pump()


def _records() -> list[str]:
    return [path.name for path in paths.TURNS.iterdir()]


async def _unmarked(manager: Dispatcher, turn_id: str) -> Delivery | None:
    """The queued row whose turn this is, if it may have run."""
    id_ = outcome.row_of(turn_id)
    if id_ is None:
        return None
    row = await manager.queue.read(lambda db: deliveries.get(db, id_))
    if row is None or row.state is not State.QUEUED or outcome.turn_id(row.id, row.attempts) != turn_id:
        return None
    record = exit_record.read_record(turn_id)
    ran = record is not None and (record.released or record.not_started is not None)
    return row if ran or turn_unit(row.mind, turn_id) in manager.runner.live.turns else None


def _mark(row: Delivery, turn_id: str) -> deliveries.Op:
    return lambda db: deliveries.mark_delivering(db, row.id, turn_id, now_ms())


def _resume(manager: Dispatcher, turn_id: str, row: Delivery) -> Turn:
    live = manager.runner.live
    unit = turn_unit(row.mind, turn_id)
    mind = manager.policy.config.minds.get(row.mind)
    record = exit_record.read_record(turn_id)
    posted = row.kind.delivers and (row.posted_at > 0 or (record is not None and record.anchor is not None))
    turn = Turn(
        LiveTurn(unit, row.mind, row.session, turn_id, takes_input=posted),
        row.started_at or now_ms(),
        Phase.RUNNING,
        row,
        waited=_waited(row),
        max_turn=mind.limits.max_turn if mind else None,
        resident=Resident(posted=row.posted_at > 0) if posted else None,
    )
    seen = live.turns.get(unit)
    if seen is not None:
        turn.description = seen.description
        live.remove(seen)
        live.add(turn)  # it is watched by its name already
    else:
        manager.settle(row, turn, manager.runner.ending_of(turn), turn.waited)
    return turn


def _resume_folded(manager: Dispatcher, turn: Turn | None, row: Delivery) -> None:
    if turn is None or turn.resident is None:  # its turn's own row is gone: somebody edited the database
        turn = Turn(
            LiveTurn("", row.mind, row.session, row.turn), now_ms(), Phase.ENDING, resident=Resident()
        )
    if row.posted_at and turn in manager.runner.live:
        assert turn.resident is not None
        turn.resident.folded.append((row, _waited(row)))
    elif row.posted_at:
        manager.settle(
            row, turn, outcome.Ending("gone", "its turn ended while the guard was away"), _waited(row)
        )
    else:
        again = outcome.Ending("dismissed", "the guard stopped before the mind confirmed it", back=True)
        manager.settle(row, turn, again, _waited(row))


async def _follow(manager: Dispatcher, turn: Turn, resident: Resident) -> None:
    mind = manager.policy.config.minds.get(turn.live.mind)
    row, turn_id = turn.delivery, turn.live.id
    if turn not in manager.runner.live or row is None or turn_id is None:
        return
    record = exit_record.read_record(turn_id)
    anchor = record.anchor if record is not None else None
    if mind is None or mind.url is None or anchor is None:
        log.warning("%s is stopped: its mind is no resident one any more", turn.live.unit)
        manager.keep(asyncio.create_task(manager.runner.stop(turn)))
        return
    again = (
        None if resident.posted else await manager.queue.read(lambda db: deliveries.with_payload(db, row.id))
    )
    manager.keep(asyncio.create_task(manager.residents.resume(turn, mind, anchor, again)))


def _waited(row: Delivery) -> Waited:
    return Waited(max(0, row.started_at - max(row.created_at, row.not_before)), None)
