"""Accepting deliveries: planned for each mind, durable, then told to the caller and offered to the gate."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hostguard.core.clock import now_ms
from hostguard.core.errors import conflict, queue_full, unavailable
from hostguard.core.model import Delivery, State
from hostguard.delivery import planner, quarantine_rows
from hostguard.delivery.message import Message
from hostguard.delivery.routes import Routes
from hostguard.gate.dispatcher import Dispatcher
from hostguard.gate.run_clients import RunClient
from hostguard.store import deliveries
from hostguard.store.connection import Connection
from hostguard.store.deliveries import New
from hostguard.store.requests import ANSWER_S
from hostguard.store.settings import WOKEN, Change
from hostguard.store.settings import write as write_settings
from hostguard.store.writer import Unavailable, Write

Also = Callable[[Sequence[Delivery]], Iterable[Change]]


def _nothing(rows: Sequence[Delivery]) -> Iterable[Change]:
    return ()


class Accepted(NamedTuple):
    """`full`: minds without a row, since their queue is full. `created`: some row is new."""

    rows: list[Delivery]
    full: list[str]
    created: bool


class Stored(NamedTuple):
    """What a message's transaction stored: all its rows, those that are new, and what gating some brought.

    `woken`: the minds that are to be woken; `settings`: the keys of what was stored with it.
    """

    rows: list[Delivery]
    fresh: list[Delivery]
    gated: quarantine_rows.Quarantined
    woken: list[str]
    settings: list[str]


class Acceptor:
    """Takes messages, and `hostguard run`s, into the queue."""

    def __init__(
        self, manager: Dispatcher, routes: Callable[[str], Routes | None], wake: Callable[[str], None]
    ) -> None:
        self._manager = manager
        self._routes = routes
        self._wake = wake
        # Told of each message's new rows, some of which may be kept back; set by held_back.
        self.on_kept: Callable[[list[Delivery], bytes, quarantine_rows.Quarantined], None] = (
            lambda rows, raw, done: None
        )
        # What lets rows of the mind go at this moment that no route matched; set by held_back.
        self.releasing: Callable[[str], asyncio.Task[None] | None] = lambda mind: None
        self._pending: Counter[str] = Counter()  # rows per mind whose commit is under way

    async def send(self, message: Message, also: Also = _nothing) -> Accepted:
        """Plan a message for each of its minds, and store it. `also` and Problem as for `store`."""
        await self._let_older_go(message.minds)
        now = now_ms()
        plans = [planner.plan(self._recipient(mind), message) for mind in message.minds]
        wakes = frozenset(plan.target.mind for plan in plans if plan.wake)
        new = message.new(tuple(plan.target for plan in plans), now)
        return await self.store(new, also=also, wakes=wakes)

    async def _let_older_go(self, minds: Sequence[str]) -> None:
        """Wait while gated rows of the minds are let go: a newer one must not overtake them."""
        under_way = {task for mind in minds if (task := self.releasing(mind)) is not None}
        if under_way and (await asyncio.wait(under_way, timeout=ANSWER_S))[1]:
            raise unavailable("the device does not take writes; nothing is accepted, try again")

    def _recipient(self, mind: str) -> planner.Recipient:
        policy = self._manager.policy
        return planner.Recipient(policy.config.minds[mind], policy.sleepy(mind), self._routes(mind))

    async def store(
        self,
        new: New,
        caller: RunClient | None = None,
        also: Also = _nothing,
        wakes: frozenset[str] = frozenset(),
    ) -> Accepted:
        """Store rows durably, with `also` in the same transaction. `caller` waits for the row of a new run.

        `wakes`: sleeping minds that are woken for their row, if it is new.

        Raises Problem: then nothing was stored. Only where the device hangs in the very commit is that
        not certain; a message with a key is then delivered if it was stored after all, one without is not.
        """
        manager, minds = self._manager, [target.mind for target in new.targets]
        most = manager.policy.config.rows_per_mind
        full = {m for m in minds if manager.waiting(m) + self._pending[m] >= most}
        self._pending.update(minds)  # before anything else runs: see `pending`
        task = asyncio.create_task(self._store(new, caller, also, wakes, full))
        manager.keep(task)
        return await asyncio.shield(task)  # a client that leaves must not leave its rows half accepted

    def pending(self, mind: str) -> int:
        """Rows of the mind that are planned, and on their way to the card."""
        return self._pending[mind]

    async def _store(
        self, new: New, caller: RunClient | None, also: Also, wakes: frozenset[str], full: set[str]
    ) -> Accepted:
        manager, minds = self._manager, [target.mind for target in new.targets]
        floor = manager.ledger.floor

        def enqueue(db: Connection) -> Stored:
            rows, fresh = deliveries.enqueue(db, new, full, floor)
            done = quarantine_rows.gate(db, fresh, new.payload, now_ms())
            woken = [row.mind for row in fresh if row.mind in wakes]
            # A guard killed now wakes them at its start.
            changes = [*(WOKEN.to(mind, True) for mind in woken), *also(rows)]
            write_settings(db, *changes)
            return Stored(rows, fresh, done, woken, [key for key, _ in changes])

        write = manager.queue.submit(enqueue)
        try:
            stored = await asyncio.wait_for(asyncio.shield(write.future), ANSWER_S)
        except TimeoutError:
            if not manager.queue.withdraw(write):
                self._follow(write, new)
            again = "again with the same key" if new.key else "again"
            raise unavailable(f"the device does not take writes; nothing is accepted, try {again}") from None
        except Unavailable as error:
            raise unavailable(f"the queue does not take writes: {error}") from error
        except deliveries.KeyReused:
            raise conflict(f"the key {new.key} was used for another message") from None
        except deliveries.Full:
            names = ", ".join(sorted(full))
            most = manager.policy.config.rows_per_mind
            raise queue_full(f"the queue of {names} has its {most} rows (limits.rows_per_mind)") from None
        finally:
            self._pending.subtract(minds)
        if stored.fresh and caller is not None:
            manager.callers.attach(stored.fresh[0].row, caller)
        self._take(stored, new.payload)
        refused = sorted(set(minds) - {row.mind for row in stored.rows})
        return Accepted(stored.rows, refused, bool(stored.fresh))

    def _take(self, stored: Stored, raw: bytes) -> None:
        """Offer what was stored to the gate, and keep back what is kept back."""
        if stored.fresh:
            self.on_kept(stored.fresh, raw, stored.gated)
            queued = [row for row in (*stored.fresh, *stored.gated.invites) if row.state is State.QUEUED]
            self._manager.admit(queued)
        for mind in stored.woken:
            self._wake(mind)

    def _follow(self, write: Write[Stored], new: New) -> None:
        def late(future: asyncio.Future[Stored]) -> None:
            if future.cancelled() or future.exception() is not None or not future.result().fresh:
                return
            if new.key is not None:
                self._take(future.result(), new.payload)
            else:
                self._take_back(future.result())

        write.future.add_done_callback(late)

    def _take_back(self, stored: Stored) -> None:
        """Undo a message that was stored after its sender was told that it was not."""
        ids = [row.id for row in stored.fresh]

        def undo(db: Connection) -> None:
            deliveries.forget(db, ids)
            for invite in stored.gated.invites:
                deliveries.forget(db, [invite.id])

        self._manager.ledger.write(undo)
        self._manager.settings.restore(*stored.settings)
        self.on_kept([], b"{}", stored.gated)  # what was archived for its sake stays so

    def reattach(self, row: Delivery, caller: RunClient) -> None:
        """A `hostguard run` came back after a restart of the guard. Raises Problem if its row has ended."""
        manager = self._manager
        if row.state is not State.QUEUED or manager.callers.waits(row.id):
            raise conflict(f"{row.id} is {row.state} already")
        parked = manager.callers.unpark(row.id)
        manager.callers.attach(row.row, caller)
        if parked is not None:
            manager.requeue(parked)
        manager.pump()

    def caller_left(self, id_: int, caller: RunClient) -> None:
        """The connection of a `hostguard run` closed; if it still waited, its row ends."""
        manager = self._manager
        if manager.closing:
            return  # we closed it: the caller comes back to the next guard
        row = manager.callers.detach(id_, caller)
        if row is not None and manager.backlog.remove(id_, row.mind, row.session):
            manager.ledger.close(row, State.CANCELLED, "its `hostguard run` went away")
