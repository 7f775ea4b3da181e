"""What an operator does to the running guard. Each raises Problem if it cannot be done."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from hostguard.core.clock import now_ms
from hostguard.core.errors import Problem, bad_request, conflict, unavailable, unknown
from hostguard.core.model import Delivery, Kind, Reason, State
from hostguard.gate.deadlock import hopeless
from hostguard.gate.dispatcher import Dispatcher
from hostguard.gate.policy import CAP_MAX, LIMITS, known_mind
from hostguard.store import deliveries, requests
from hostguard.store.connection import Connection
from hostguard.store.settings import LIMIT, PAUSE, Limit, on_host_or
from hostguard.store.writer import Refused
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.telemetry.events import Event
from hostguard.turns.live import Phase, Turn

ID_MAX = (1 << 63) - 1  # SQLite's largest integer
BY_REQUEST = "cancelled by request"


async def delivery(manager: Dispatcher, id_: int) -> Delivery:
    """One row."""
    if id_ > ID_MAX:
        raise unknown("delivery", id_, "hostguard queue lists those that wait")
    row: Delivery | None = await requests.read(manager.queue, lambda db: deliveries.get(db, id_))
    if row is None:
        raise unknown("delivery", id_, "hostguard queue lists those that wait")
    return row


async def pause(manager: Dispatcher, mind: str | None, on: bool) -> None:
    """Hold all new turns of a mind, or of all, until resumed; survives a restart. Live turns go on."""
    if on or not manager.policy.paused(mind):
        _check(manager, mind)  # one that was removed while paused can still be resumed
    name, before = on_host_or(mind), manager.policy.paused(mind)
    if on:
        # At once, whatever the card does: nothing may start while the setting is being stored.
        manager.settings.use(PAUSE.to(name, True))
        for turn in manager.runner.live:
            if turn.phase is Phase.STARTING and mind in (None, turn.live.mind):
                turn.revoked = True

    def stored() -> None:
        who = mind or "the guard"
        event, text = (
            (Event.PAUSED, f"{who} is paused") if on else (Event.RESUMED, f"{who} goes on after a pause")
        )
        manager.events.emit(event, text, mind=mind)
        touch(manager)

    try:
        await manager.settings.change(PAUSE.to(name, True if on else None), then=stored)
    except Problem:
        manager.settings.use(PAUSE.to(name, True if before else None))
        touch(manager)
        raise


async def set_limit(manager: Dispatcher, name: str, mind: str | None, value: Any, runtime: bool) -> None:
    """Set a cap at once. `value`: 0 to CAP_MAX, "unlimited" or "default"; `runtime`: until the next boot."""
    if name not in LIMITS:
        raise bad_request(f"there is no limit {name}; limits: {', '.join(LIMITS)}")
    if mind is not None and name != "mind_concurrent_turns":
        raise bad_request(f"{name} is of the whole host: leave the mind out")
    _check(manager, mind)
    boot, limit = manager.policy.boot if runtime else None, None
    if value == "unlimited":
        limit = Limit(value=None, boot=boot)
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= CAP_MAX:
        limit = Limit(value=value, boot=boot)
    elif value != "default":
        raise bad_request(f"value must be 0 to {CAP_MAX}, unlimited or default")

    def stored() -> None:
        now, source = manager.policy.limit(name, mind)
        told = "unlimited" if now is None else now
        text = f"{name}{f' of {mind}' if mind else ''} is {told} ({source})"
        manager.events.emit(Event.LIMIT, text, mind=mind, limit=name, value=told, source=source)
        touch(manager)

    await manager.settings.change(LIMIT.to(name + on_host_or(mind), limit), then=stored)


def touch(manager: Dispatcher) -> None:
    """Caps, pauses or minds changed: look at every mind again."""
    for mind in manager.backlog.mind_names():
        manager.backlog.touch(mind)
    manager.pump()


async def cancel(manager: Dispatcher, id_: int) -> Delivery:
    """Take a queued row out."""
    row = await delivery(manager, id_)
    if row.state is State.DELIVERING or manager.runner.live.by_id(row.turn or "") is not None:
        raise conflict(f"{id_} is in turn {row.turn}: hostguard stop {row.turn} ends it")
    if row.state in (State.BATCHING, State.GATED):
        return await _take_back(manager, row)
    if row.state is not State.QUEUED:
        raise conflict(f"{id_} is {row.state} already")
    if not manager.backlog.remove(id_, row.mind, row.session) and not manager.callers.unpark(id_):
        raise conflict(f"{id_} is being started: hostguard turns")
    await manager.ledger.close(row.row, State.CANCELLED, BY_REQUEST)
    return await delivery(manager, id_)


async def _take_back(manager: Dispatcher, row: Delivery) -> Delivery:
    """Cancel a row that a batch or a missing route keeps back, unless it goes out at this moment."""

    def stored(closed: list[int]) -> None:
        if closed:
            manager.on_taken_back(row)
            manager.ledger.tell_closed(row.row, State.CANCELLED, BY_REQUEST)
            manager.ledger.waiters.tell(row.id)

    def close(db: Connection) -> list[int]:
        return deliveries.close(db, [row.id], State.CANCELLED, now_ms(), BY_REQUEST, row.state)

    await requests.write(manager.queue, close, stored)
    found = await delivery(manager, row.id)
    return found if found.state is State.CANCELLED else await cancel(manager, row.id)


async def retry(manager: Dispatcher, id_: int) -> Delivery:
    """Queue an ended row again."""
    await delivery(manager, id_)
    try:
        await requests.write(
            manager.queue, lambda db: deliveries.retry(db, id_, now_ms()), lambda row: manager.admit([row])
        )
    except Refused as refusal:
        current = await delivery(manager, id_)
        if current.kind is Kind.RUN:
            raise conflict(f"{id_} was a `hostguard run`: run it again") from refusal
        raise conflict(f"{id_} is {current.state}: only an ended delivery can be tried again") from refusal
    return await delivery(manager, id_)


async def drop(manager: Dispatcher, id_: int) -> Delivery:
    """Take a dead letter out of the list of them."""
    await delivery(manager, id_)
    try:
        await requests.write(manager.queue, lambda db: deliveries.drop(db, id_, now_ms()), lambda _: None)
    except Refused as refusal:
        current = await delivery(manager, id_)
        raise conflict(f"{id_} is {current.state}: only a dead letter can be dropped") from refusal
    return await delivery(manager, id_)


async def refuse_deadlock(manager: Dispatcher, id_: int) -> None:
    """Refuse a wait, registered already, that would never end. Raises Problem (conflict)."""
    waits = manager.ledger.waiters.units
    if not any(id_ in rows for rows in waits.values()):
        return
    blockers: dict[int, Collection[str] | None] = {}
    for row_id in {row_id for rows in waits.values() for row_id in rows}:
        row = await requests.read(manager.queue, partial(deliveries.get, id_=row_id))
        blockers[row_id] = _blockers(manager, row) if row is not None else None
    if any(id_ in waits.get(unit, ()) for unit in hopeless(waits, blockers)):
        units = ", ".join(sorted(blockers[id_] or ()))
        raise conflict(
            f"waiting for {id_} would never end: it waits for {units}, which in turn waits for it."
            " It is accepted all the same: go on without waiting"
        )


def _blockers(manager: Dispatcher, row: Delivery) -> Collection[str] | None:
    live = manager.runner.live
    if row.state is State.DELIVERING:
        turn = live.by_id(row.turn or "")
        return [turn.live.unit] if turn is not None else None
    hold = manager.verdict(row.row) if row.state is State.QUEUED else None
    if hold is None:
        return None
    if hold.reason is Reason.GLOBAL_CAP:
        return list(live.turns)
    if hold.reason in (Reason.MIND_BUSY, Reason.SESSION_BUSY):
        return [turn.unit for turn in live.of(row.mind)]
    return None


async def stop(manager: Dispatcher, name: str) -> Turn:
    """Ask systemd to stop a turn's scope."""
    turn = manager.runner.live.by_id(name)
    if turn is None:
        raise unknown("turn", name, "hostguard turns lists the live ones")
    try:
        await manager.runner.stop(turn)
    except (SystemdError, SystemdLost) as error:
        raise unavailable(f"systemd did not stop {turn.live.unit}: {error}") from error
    return turn


def _check(manager: Dispatcher, mind: str | None) -> None:
    if mind is not None:
        known_mind(mind, manager.policy.config)
