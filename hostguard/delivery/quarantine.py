"""Messages that no route of their mind matches: how many each mind has, and releasing them once a route does.

Those that came before the mind's routes could be read get their place here, too. They wait in the backlog.

quarantine_rows.quarantine stores what a new one brings with it, in the message's own transaction.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hostguard.core.clock import Clock, now_ms
from hostguard.core.model import Delivery, State, Target
from hostguard.core.names import MAIN_SESSION
from hostguard.core.payload import told
from hostguard.core.ports import Configured, Dispatching
from hostguard.core.signals import MindWoken, RoutesChanged, RoutesRead, Signal
from hostguard.core.tasks import Tasks
from hostguard.delivery import planner, quarantine_rows
from hostguard.delivery.batcher import Batcher
from hostguard.delivery.quarantine_rows import Quarantined
from hostguard.delivery.routes import Routes, Unread
from hostguard.gate.backlog import Backlog
from hostguard.gate.ledger import Ledger
from hostguard.gate.times import queued
from hostguard.store.requests import Waiters
from hostguard.store.writer import Faulty, Queue, Unavailable

log = logging.getLogger(__name__)

AGAIN_S = 30.0  # after the queue could not be read


@dataclass(eq=False)
class Quarantine:
    """Counts the quarantined rows, which are in the database, and releases them to a batch or to the gate."""

    _policy: Configured
    _routes: Callable[[str], Routes | Unread | None]
    _queue: Queue
    _ledger: Ledger
    _waiters: Waiters
    _batcher: Batcher
    _dispatcher: Dispatching
    _backlog: Backlog
    _mind_woken: Signal[MindWoken]
    _clock: Clock
    _tasks: Tasks
    _counts: Counter[str] = field(default_factory=Counter, init=False)
    _unrouted: set[str] = field(default_factory=set, init=False)  # minds with rows that have no place yet
    _due: set[str] = field(default_factory=set, init=False)  # minds whose rows are to be checked
    _now: str | None = field(default=None, init=False)  # the mind whose rows are being checked
    _work: asyncio.Task[None] | None = field(default=None, init=False)

    async def start(self) -> None:
        """Count what an earlier guard left, and release what a route matches by now. Raises Unavailable."""
        self._counts = Counter(await self._queue.read(quarantine_rows.totals))
        self._unrouted |= await self._queue.read(quarantine_rows.unrouted_minds)
        self.reload()
        for mind in [*self._unrouted]:
            self._check(mind)

    def reload(self) -> None:
        """Check all rows again: a new configuration may have given a mind other routes, or none."""
        minds = self._policy.config.minds
        for mind in [*self._counts]:
            # A file that is configured but cannot be read is no reason to release anything.
            if mind in minds and (minds[mind].routes is None or isinstance(self._routes(mind), Routes)):
                self._check(mind)

    def count(self, mind: str) -> int:
        """How many quarantined rows the mind has."""
        return self._counts[mind]

    def stored(self, fresh: Sequence[Delivery], raw: bytes, done: Quarantined) -> None:
        """Count the quarantined ones of a message's new rows."""
        rows = [row for row in fresh if row.state is State.QUARANTINED]
        self._counts.update(row.mind for row in rows)
        for mind, id_ in done.archived:
            self._counts[mind] -= 1
            self._waiters.tell(id_)
        for row in fresh:  # the routes may have changed, or been read, while it was being stored
            if row.unrouted:
                self._unrouted.add(row.mind)
                self._check(row.mind)
            elif row.state is State.QUARANTINED and self._place(row.mind, told(json.loads(raw))) is not None:
                self._check(row.mind)

    def cancel(self, row: Delivery) -> None:
        """Forget a quarantined row that was cancelled."""
        self._counts[row.mind] -= 1

    def routes_changed(self, changed: RoutesChanged) -> None:
        """Release what the mind's new routes match."""
        self._check(changed.mind)

    def routes_read(self, read: RoutesRead) -> None:
        """Give the messages that waited for the mind's routes their place."""
        self._check(read.mind)

    def releasing(self, mind: str) -> asyncio.Task[None] | None:
        """The task that checks the mind's rows at this moment, or is about to."""
        return self._work if mind in self._due or mind == self._now else None

    def _check(self, mind: str) -> None:
        if self._counts[mind] > 0 or (mind in self._unrouted and not isinstance(self._routes(mind), Unread)):
            self._due.add(mind)
            if self._work is None or self._work.done():
                self._work = self._tasks.start(self._release_due())

    def _place(self, mind: str, payload: Mapping[str, Any]) -> Target | None:
        """Where a quarantined message goes now; None if it stays."""
        routes = self._routes(mind)
        if isinstance(routes, Unread):
            return None
        if routes is None:
            return Target(mind, MAIN_SESSION)
        known = self._policy.config.minds.get(mind)  # a reload may just have removed it: its rows wait
        target = planner.place(known, routes, payload) if known is not None else None
        return None if target is None or target.state is State.QUARANTINED else target

    async def _release_due(self) -> None:
        while self._due:
            mind = self._due.pop()
            if mind not in self._policy.config.minds:
                continue  # its rows wait for it
            self._now = mind
            try:
                if mind in self._unrouted:
                    await self._give_places(mind)
                if self._counts[mind] > 0:
                    await self._release(mind)
            except Unavailable as error:
                log.warning("messages of %s that wait for its routes cannot be read: %s", mind, error)
                asyncio.get_running_loop().call_later(AGAIN_S, self._check, mind)
            except Faulty:
                pass  # a bug, which is reported: they stay as they are
            finally:
                self._now = None

    async def _give_places(self, mind: str) -> None:
        after = 0
        while (known := self._policy.config.minds.get(mind)) is not None:
            if isinstance(routes := self._routes(mind), Unread):
                return
            rows = await self._queue.read(partial(quarantine_rows.unrouted, mind=mind, after=after))
            if not rows:
                self._unrouted.discard(mind)
                return
            after = rows[-1][0]
            # One that is not in the backlog is being cancelled, or expires.
            ids = [id_ for id_, session in rows if self._backlog.remove(id_, mind, session)]
            give = partial(
                quarantine_rows.give_places, mind=mind, ids=ids, place=partial(planner.place, known, routes),
                now=self._clock.date(),
            )  # fmt: skip
            self._placed(mind, await self._ledger.write(give))

    def _placed(self, mind: str, placed: quarantine_rows.Placed) -> None:
        now = self._clock.now()
        for row, raw, brought in placed.gated:
            self.stored([row], raw, brought)
            self._dispatcher.admit(brought.invites)
        for id_ in placed.moved.ended:
            self._waiters.tell(id_)
        for row, raw in placed.moved.out:
            if row.state is State.BATCHING:
                self._batcher.add(row, raw)
            elif row.state is State.QUEUED:  # it was admitted before: only its place is new
                self._backlog.add(queued(row, now), now)
                self._ledger.remember(row)
        if placed.woken:
            self._mind_woken.send(MindWoken(mind))
        self._dispatcher.pump()

    async def _release(self, mind: str) -> None:
        moves = await self._queue.read(
            lambda db: quarantine_rows.release(
                mind, quarantine_rows.read(db, mind), lambda payload: self._place(mind, payload)
            )
        )
        if not moves:
            return
        moved = await self._ledger.write(lambda db: quarantine_rows.move(db, moves, now_ms()))
        out, ended = len(moved.out), len(moved.ended)
        self._counts[mind] -= out + ended
        log.info("%s: a rule matches now: %d gated messages go out, %d do not", mind, out, ended)
        for id_ in moved.ended:
            self._waiters.tell(id_)
        for row, raw in moved.out:
            if row.state is State.BATCHING:
                self._batcher.add(row, raw)
            else:
                self._dispatcher.admit([row])
