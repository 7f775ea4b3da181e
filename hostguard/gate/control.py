"""Operations on the running guard. Every method raises Problem if it cannot be done."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from hostguard.config.authorised import row_refusal
from hostguard.core.clock import Clock
from hostguard.core.errors import Problem, bad_request, conflict, not_allowed, unavailable, unknown
from hostguard.core.model import Delivery, Kind, Row, State
from hostguard.core.ports import Configured, Dispatching, HeldRows
from hostguard.gate.backlog import Backlog
from hostguard.gate.ledger import Ledger
from hostguard.gate.policy import CAP_MAX, LIMITS, Policy, known_mind
from hostguard.gate.run_clients import RUN_LEFT, RunClient, RunClients
from hostguard.gate.times import queued
from hostguard.store import deliveries, requests
from hostguard.store.connection import Connection
from hostguard.store.requests import Waiters
from hostguard.store.settings import LIMIT, PAUSE, Limit, SettingsStore, on_host_or
from hostguard.store.writer import Queue, Refused
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.telemetry.events import Event, Events
from hostguard.telemetry.health import Health
from hostguard.turns.live import Live, Phase, Turn
from hostguard.turns.scopes import Scopes

T = TypeVar("T")

ID_MAX = (1 << 63) - 1  # SQLite's largest integer
BY_REQUEST = "cancelled by request"


@dataclass(eq=False)
class Control:
    """Pauses, limits, and stopping a turn."""

    _policy: Policy
    _settings: SettingsStore
    _live: Live
    _backlog: Backlog
    _scopes: Scopes
    _dispatcher: Dispatching
    _events: Events

    async def pause(self, mind: str | None, on: bool) -> bool:
        """Hold all new turns, of a mind or of all, until resumed; survives restarts. Live turns continue.

        False if it was so before.
        """
        before = self._policy.paused(mind)
        if on or not before:
            self._check(mind)  # one that was removed while paused can still be resumed
        if not (on or before):
            return False
        paused, resumed = PAUSE.to(on_host_or(mind), True), PAUSE.to(on_host_or(mind), None)
        if on:
            # Immediately, even if the card stalls: nothing may start while the setting is being stored.
            self._settings.use(paused)
            for turn in self._live:
                if turn.phase is Phase.STARTING and mind in (None, turn.live.mind):
                    turn.revoked = True

        def stored() -> None:
            who = mind or "the guard"
            event, text = (Event.PAUSED, f"{who} is paused") if on else (Event.RESUMED, f"{who} is resumed")
            if on != before:
                self._events.emit(event, text, mind=mind)
            self.redrive()

        try:
            await self._settings.change(paused if on else resumed, then=stored)
        except Problem:
            self._settings.use(paused if before else resumed)
            self.redrive()
            raise
        return on != before

    async def set_limit(self, name: str, mind: str | None, value: Any, runtime: bool) -> None:
        """Set a cap: 0 to CAP_MAX, "unlimited" or "default"; `runtime`: until the next boot."""
        if name not in LIMITS:
            raise bad_request(f"there is no limit {name}; limits: {', '.join(LIMITS)}")
        if mind is not None and name != "mind_concurrent_turns":
            raise bad_request(f"{name} applies to the whole host: omit the mind")
        if value != "default" or not self._policy.has_limit(name, mind):
            self._check(mind)  # that of a mind that was removed can still be removed
        boot, limit = self._policy.boot if runtime else None, None
        if value == "unlimited":
            limit = Limit(value=None, boot=boot)
        elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= CAP_MAX:
            limit = Limit(value=value, boot=boot)
        elif value != "default":
            raise bad_request(f"value must be 0 to {CAP_MAX}, unlimited or default")

        def stored() -> None:
            now, source = self._policy.limit(name, mind)
            shown = "unlimited" if now is None else now
            text = f"{name}{f' of {mind}' if mind else ''} is {shown} ({source})"
            self._events.emit(Event.LIMIT, text, mind=mind, limit=name, value=shown, source=source)
            self.redrive()

        await self._settings.change(LIMIT.to(name + on_host_or(mind), limit), then=stored)

    def redrive(self) -> None:
        """Offer every mind's rows again: caps, pauses or minds changed."""
        for mind in self._backlog.mind_names():
            self._backlog.touch(mind)
        self._dispatcher.pump()

    async def stop(self, name: str) -> Turn:
        """Ask systemd to stop the scope of the turn with this id."""
        turn = self._live.by_id(name)
        if turn is None:
            raise unknown("turn", name, "hostguard turns lists the live ones")
        try:
            await self._scopes.stop(turn)
        except (SystemdError, SystemdLost) as error:
            raise unavailable(f"systemd did not stop {turn.live.unit}: {error}") from error
        return turn

    def _check(self, mind: str | None) -> None:
        if mind is not None:
            known_mind(mind, self._policy.config)


@dataclass(eq=False)
class DeliveryControl:
    """Single deliveries: look one up, cancel it, try it again."""

    _queue: Queue
    _live: Live
    _backlog: Backlog
    _run_clients: RunClients
    _ledger: Ledger
    _waiters: Waiters
    _held: HeldRows
    _dispatcher: Dispatching
    _health: Health
    _policy: Configured
    _clock: Clock
    _cancelling: set[int] = field(default_factory=set, init=False)  # out of the backlog, not stored yet

    async def find(self, id_: int) -> Delivery:
        """One row."""
        row = await requests.read(self._queue, partial(deliveries.get, id_=id_)) if id_ <= ID_MAX else None
        if row is None:
            raise unknown("delivery", id_, "hostguard queue lists those that wait")
        return row

    async def cancel(self, id_: int) -> Delivery:
        """Cancel a row that has not started: once that is stored. Until then it does not start either."""
        row = await self.find(id_)
        if id_ in self._cancelling:
            raise unavailable(f"{id_} is being cancelled: the device has not stored it yet")
        if row.state is State.DELIVERING or self._live.by_id(row.turn or "") is not None:
            raise conflict(f"{id_} is in turn {row.turn}: hostguard stop {row.turn} ends it")
        if row.state in (State.BATCHING, State.QUARANTINED):
            return await self._cancel_held(row)
        if row.state is not State.QUEUED:
            raise conflict(f"{id_} is {row.state} already")
        if not self._backlog.remove(id_, row.mind, row.session) and not self._run_clients.unpark(id_):
            raise conflict(f"{id_} is being started: hostguard turns")
        self._cancelling.add(id_)

        def stored(closed: list[int]) -> None:
            self._cancelling.discard(id_)
            if closed:
                self._ledger.closed(row.row, State.CANCELLED, BY_REQUEST)
            self._dispatcher.pump()  # what waited behind it in its session

        def undone() -> None:
            self._cancelling.discard(id_)
            attempts = self._ledger.attempts(id_)
            put_back = self._backlog.give_back if attempts else self._backlog.add
            now = self._clock.now()
            put_back(queued(row, now), now)
            self._ledger.remember(replace(row, attempts=attempts))
            self._dispatcher.pump()

        await requests.write(self._queue, self._closing(row), stored, undone)
        return await self.find(id_)

    def _closing(self, row: Delivery) -> Callable[[Connection], list[int]]:
        return lambda db: deliveries.close(
            db, [row.id], State.CANCELLED, self._clock.date(), BY_REQUEST, row.state
        )

    async def _cancel_held(self, row: Delivery) -> Delivery:
        """Cancel a row in a batch or in quarantine, unless it is being released."""

        def stored(closed: list[int]) -> None:
            if closed:
                self._held.cancel(row)
                self._ledger.closed(row.row, State.CANCELLED, BY_REQUEST)

        await requests.write(self._queue, self._closing(row), stored)
        found = await self.find(row.id)
        return found if found.state is State.CANCELLED else await self.cancel(row.id)

    async def retry(self, id_: int) -> Delivery:
        """Queue an ended row again."""
        found = await self.find(id_)
        if found.kind is Kind.RUN:
            raise conflict(f"{id_} was a `hostguard run`: run it again")
        mind = self._policy.config.minds.get(found.mind)
        if mind is not None and not mind.broken and (why := row_refusal(found, mind)) is not None:
            raise not_allowed(f"{id_} is not tried again: {why}")

        def queued_again(row: Delivery) -> None:
            if found.state is State.DEAD:
                self._health.dead_letter_gone(found.mind)
            self._dispatcher.admit([row])

        again = partial(deliveries.retry, id_=id_, now=self._clock.now())
        return await self._change(id_, again, queued_again, "an ended delivery can be tried again")

    async def drop(self, id_: int) -> Delivery:
        """Cancel a dead letter."""
        mind = (await self.find(id_)).mind
        drop = partial(deliveries.drop, id_=id_, now=self._clock.date())
        only = "a dead letter can be dropped"
        return await self._change(id_, drop, lambda _: self._health.dead_letter_gone(mind), only)

    async def _change(
        self, id_: int, op: Callable[[Connection], T], then: Callable[[T], None], only: str
    ) -> Delivery:
        try:
            await requests.write(self._queue, op, then)
        except Refused as refusal:
            raise conflict(f"{id_} is {(await self.find(id_)).state}: only {only}") from refusal
        return await self.find(id_)

    def refuse_run(self, row: Row, units: Collection[str]) -> None:
        """End a `hostguard run` that would wait for ever, because these units in turn wait for it."""
        if self._backlog.remove(row.id, row.mind, row.session):
            text = f"it would never start: it waits for {', '.join(units)}, which in turn waits for it"
            self._ledger.close(row, State.CANCELLED, f"{text} (run the command without hostguard run)")
            self._dispatcher.pump()

    def reattach(self, row: Delivery, client: RunClient) -> None:
        """A `hostguard run` reconnected after a restart of the guard."""
        if row.state is not State.QUEUED or self._run_clients.waits(row.id):
            raise conflict(f"{row.id} is {row.state} already")
        if row.uid not in (None, client.uid):
            raise not_allowed(f"{row.id} is the run of uid {row.uid}")
        parked = self._run_clients.unpark(row.id)
        self._run_clients.attach(row.row, client)
        if parked is not None:
            self._backlog.add(parked, self._clock.now())
        self._dispatcher.pump()

    def client_left(self, id_: int, client: RunClient) -> None:
        """The connection of a `hostguard run` closed; if it still waited, its row ends."""
        if self._dispatcher.closing:
            return  # we closed it: the client comes back to the next guard
        row = self._run_clients.detach(id_, client)
        if row is not None and self._backlog.remove(id_, row.mind, row.session):
            self._ledger.close(row, State.CANCELLED, RUN_LEFT)
            self._dispatcher.pump()
