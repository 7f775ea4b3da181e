"""Accepting deliveries: planned for each mind, stored durably, then acknowledged and offered to the gate."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from hostguard.core.clock import Clock
from hostguard.core.errors import conflict, internal, no_room, queue_full, too_fast, unavailable
from hostguard.core.model import Delivery, State
from hostguard.core.ports import Dispatching
from hostguard.core.signals import MindWoken, Signal
from hostguard.core.tasks import Tasks
from hostguard.delivery import planner, quarantine_rows
from hostguard.delivery.held_back import HeldBack
from hostguard.delivery.message import Message, never_starts
from hostguard.delivery.routes import Routes, Unread
from hostguard.gate.backlog import Backlog
from hostguard.gate.ledger import Ledger
from hostguard.gate.policy import Policy
from hostguard.gate.run_clients import RunClient, RunClients
from hostguard.store import deliveries
from hostguard.store.connection import Connection
from hostguard.store.deliveries import New
from hostguard.store.quota import MINUTE_MAX, WAITING_MAX, PerMinute
from hostguard.store.requests import ANSWER_S
from hostguard.store.settings import WOKEN, Change, SettingsStore
from hostguard.store.settings import write as write_settings
from hostguard.store.writer import Faulty, Queue, Unavailable, Write, once_stored

# From a message's rows, and whether any is new: settings that are stored in the same transaction. The caller
# uses them afterwards.
Also = Callable[[Sequence[Delivery], bool], Iterable[Change]]


class Accepted(NamedTuple):
    """`full`: minds without a row, since their queue is full. `created`: some row is new."""

    rows: list[Delivery]
    full: list[str]
    created: bool


class _Stored(NamedTuple):
    """What one transaction stored: all the message's rows, the new ones, and what quarantine brought.

    `woken`: the minds to be woken. `settings`: the keys of the settings that were stored.
    """

    rows: list[Delivery]
    fresh: list[Delivery]
    quarantined: quarantine_rows.Quarantined
    woken: list[str]
    settings: list[str]


@dataclass(eq=False)
class Acceptor:
    """Takes messages, and `hostguard run`s, into the queue. `mind_woken` reports minds to be woken."""

    _policy: Policy
    _settings: SettingsStore
    _routes: Callable[[str], Routes | Unread | None]
    _held: HeldBack
    _queue: Queue
    _ledger: Ledger
    _backlog: Backlog
    _run_clients: RunClients
    _dispatcher: Dispatching
    _mind_woken: Signal[MindWoken]
    _tasks: Tasks
    _clock: Clock
    # Rows whose commit is under way, by mind, and whether their kind is counted apart.
    _pending: Counter[tuple[str, bool]] = field(default_factory=Counter, init=False)
    _lately: PerMinute = field(default_factory=PerMinute, init=False)

    async def send(self, message: Message, also: Also | None = None) -> Accepted:
        """Plan a message for each of its minds, and store it. `also` and Problem as for `store`."""
        self._count_minute(message)
        await self._let_older_go(message.minds)
        now = self._clock.date()
        minds, asleep, routes = self._policy.config.minds, self._policy.sleepy, self._routes
        plans = [planner.plan(minds[mind], asleep(mind), routes(mind), message) for mind in message.minds]
        wakes = {plan.target.mind for plan in plans if plan.wake}
        new = message.new(tuple(plan.target for plan in plans), now)
        return await self.store(new, also=also, wakes=wakes)

    def _count_minute(self, message: Message) -> None:
        size, most = len(message.raw), MINUTE_MAX
        if message.by and (wait_s := self._lately.wait_s(message.by, size, time.monotonic())):
            text = f"{message.by} sent up to {most} bytes within a minute, which is the most"
            more = f"a message of {size} bytes can be sent in {ceil(wait_s)} s"
            raise too_fast(f"{text}: {more}", retry_after=ceil(wait_s))

    async def _let_older_go(self, minds: Sequence[str]) -> None:
        """Wait while rows of the minds leave quarantine: a newer one must not overtake them."""
        under_way = {task for mind in minds if (task := self._held.releasing(mind)) is not None}
        if under_way and (await asyncio.wait(under_way, timeout=ANSWER_S))[1]:
            raise unavailable("the device accepts no writes; nothing is accepted, try again")

    async def store(
        self, new: New, client: RunClient | None = None, also: Also | None = None, wakes: Collection[str] = ()
    ) -> Accepted:
        """Store rows durably, with `also` in the same transaction. `client` waits for the row of a new run.

        `wakes`: sleeping minds that are woken for their row, if it is new.

        Raises Problem: then nothing was stored. Only where the device hangs in the commit itself is that
        not certain; a message with a key is then delivered if it was stored after all, one without is not.
        """
        counted = _counted(new)
        full = {
            mind for mind, apart in counted if self._waiting(mind, apart) >= self._policy.config.rows_per_mind
        }
        self._pending.update(counted)  # before anything else runs: see `pending`
        task = self._tasks.start(self._store(new, client, also, wakes, full))
        return await asyncio.shield(task)  # a client that leaves must not leave its rows half accepted

    def _waiting(self, mind: str, apart: bool) -> int:
        """Rows of the mind that have not begun, due or not, held back or being stored.

        Those that are counted apart, or all others: a schedule leaves the room of a sender alone.
        """
        queued, stored = self._backlog.apart(mind), self._pending[mind, apart]
        if apart:
            return queued + stored
        return self._backlog.total(mind) - queued + sum(self._held.counts(mind)) + stored

    def pending(self, mind: str) -> int:
        """Rows of the mind that are planned and being stored."""
        return self._pending[mind, False] + self._pending[mind, True]

    async def _store(
        self, new: New, client: RunClient | None, also: Also | None, wakes: Collection[str], full: set[str]
    ) -> Accepted:
        minds, floor = [target.mind for target in new.targets], self._ledger.floor
        now = self._clock.now()
        new = replace(new, accepted=now.stamp, limited=True)

        def enqueue(db: Connection) -> _Stored:
            rows, fresh = deliveries.enqueue(db, new, full, floor)
            quarantined = quarantine_rows.quarantine(db, fresh, new.payload, now.date)
            woken = [row.mind for row in fresh if row.mind in wakes]
            # A guard that is killed now wakes them at its start.
            changes = [*(WOKEN.to(mind, True) for mind in woken), *(also(rows, bool(fresh)) if also else ())]
            write_settings(db, *changes)
            return _Stored(rows, fresh, quarantined, woken, [key for key, _ in changes])

        write = self._queue.submit(enqueue)
        try:
            stored = await asyncio.wait_for(asyncio.shield(write.future), ANSWER_S)
        except TimeoutError:
            if not self._queue.withdraw(write):
                self._follow(write, new)
            again = "again with the same key" if new.key else "again"
            raise unavailable(f"the device accepts no writes; nothing is accepted, try {again}") from None
        except Unavailable as error:
            raise unavailable(f"the queue accepts no writes: {error}") from error
        except Faulty as error:
            raise internal(str(error)) from error
        except deliveries.KeyReused as used:
            text = f"the key {new.key} was used for another message, delivery {used.delivery}"
            more = {"delivery": used.delivery, "differs": used.differs}
            raise conflict(f"{text}; different here: {', '.join(used.differs)}", more=more) from None
        except deliveries.Late:
            raise never_starts() from None
        except deliveries.Full:
            names, most = ", ".join(sorted(full)), self._policy.config.rows_per_mind
            raise queue_full(f"the queue of {names} has its {most} rows (limits.rows_per_mind)") from None
        except deliveries.NoRoom as full_of_bytes:
            whose = (
                f"for {', '.join(sorted(full_of_bytes.minds))}" if full_of_bytes.minds else f"from {new.by}"
            )
            text = f"the messages that wait {whose} have too many bytes for another {len(new.payload)}"
            do = "let some be delivered, or cancel or drop them: hostguard queue"
            raise no_room(f"{text}: {WAITING_MAX} are allowed; {do}") from None
        finally:
            self._pending.subtract(_counted(new))
        if stored.fresh and client is not None:
            self._run_clients.attach(stored.fresh[0].row, client)
        self._take(stored, new.payload)
        refused = sorted(set(minds) - {row.mind for row in stored.rows})
        return Accepted(stored.rows, refused, bool(stored.fresh))

    def _take(self, stored: _Stored, raw: bytes) -> None:
        """Offer what was stored to the gate, or hold it back."""
        if stored.fresh:
            self._held.stored(stored.fresh, raw, stored.quarantined)
            new = (*stored.fresh, *stored.quarantined.invites)
            self._dispatcher.admit([row for row in new if row.state is State.QUEUED])
        for mind in stored.woken:
            self._mind_woken.send(MindWoken(mind))

    def _follow(self, write: Write[_Stored], new: New) -> None:
        def late(stored: _Stored) -> None:
            if stored.fresh and new.key is not None:
                self._take(stored, new.payload)
            elif stored.fresh:
                self._undo(stored)

        once_stored(write.future, late)

    def _undo(self, stored: _Stored) -> None:
        """Remove a message that was stored after its sender was told that it was not."""

        def forget(db: Connection) -> None:
            deliveries.forget(db, [row.id for row in stored.fresh])
            for invite in stored.quarantined.invites:
                deliveries.forget(db, [invite.id])

        self._ledger.write(forget)
        self._settings.restore(*stored.settings)
        self._held.stored([], b"{}", stored.quarantined)  # what was archived for its sake stays archived


def _counted(new: New) -> list[tuple[str, bool]]:
    """The mind of each row, and whether the row is counted apart."""
    return [(target.mind, target.kind.counted_apart) for target in new.targets]
