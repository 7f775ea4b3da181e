"""Gated messages, kept until a mind's routes match them: how many each mind has, and letting them go.

How it is called:
  Daemon          `await start()` once the routes are read and the queue is recovered; `reload()` with each
                  new configuration, after RouteFiles.reload
  RouteFiles      its on_change: changed(mind)
  Acceptor        releasing(mind) before it plans a message: it waits for that;
                  quarantine_rows.gate(db, fresh, raw, now) in the transaction that stores it; once that is
                  stored: stored(fresh, raw, what gate returned), and its invites go to Manager.admit
  control.cancel  its manager.on_taken_back: taken_back(row), for a row in state GATED
`take(row, raw)` gets each row that goes out: QUEUED is for Manager.admit, BATCHING for the batcher.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hostguard.core.clock import now_ms
from hostguard.core.model import Delivery, State, Target
from hostguard.core.names import MAIN_SESSION
from hostguard.core.payload import told
from hostguard.delivery import planner, quarantine_rows
from hostguard.delivery.quarantine_rows import Move, Moved, Quarantined
from hostguard.delivery.routes import Routes, route
from hostguard.gate.dispatcher import Dispatcher
from hostguard.store.connection import Connection
from hostguard.store.writer import Unavailable

log = logging.getLogger(__name__)

AGAIN_S = 30.0  # after the queue could not be read

Take = Callable[[Delivery, bytes], None]


class Quarantine:
    """One for the guard. The rows are in the database; here is how many there are."""

    def __init__(self, manager: Dispatcher, routes: Callable[[str], Routes | None], take: Take) -> None:
        self._manager = manager
        self._routes = routes
        self._take = take
        self._counts: Counter[str] = Counter()
        self._due: set[str] = set()  # minds whose gated rows are to be looked at
        self._now: str | None = None  # the mind whose gated rows are being looked at
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Count what an earlier guard gated, and let go what is matched by now. Raises Unavailable."""
        self._counts = Counter(await self._manager.queue.read(quarantine_rows.totals))
        self.reload()

    def reload(self) -> None:
        """Look at all gated rows again: the configuration may have given a mind other routes, or none."""
        minds = self._manager.policy.config.minds
        for mind in [*self._counts]:
            # A file that is named but could not be read is no reason to let anything go.
            if mind in minds and (minds[mind].routes is None or self._routes(mind) is not None):
                self.changed(mind)

    def count(self, mind: str) -> int:
        """How many gated rows the mind has."""
        return self._counts[mind]

    def stored(self, fresh: Sequence[Delivery], raw: bytes, done: Quarantined) -> None:
        """The new rows of a message are stored; some of them may be quarantine_rows."""
        for row in fresh:
            if row.state is State.GATED:
                self._counts[row.mind] += 1
        for mind, id_ in done.archived:
            self._counts[mind] -= 1
            self._manager.ledger.waiters.tell(id_)
        for row in fresh:  # the routes may have changed while it was being stored
            if row.state is State.GATED and self._placed(row.mind, told(json.loads(raw))) != "gated":
                self.changed(row.mind)

    def taken_back(self, row: Delivery) -> None:
        """A gated row is cancelled."""
        self._counts[row.mind] -= 1

    def changed(self, mind: str) -> None:
        """The mind's routes are others now: let go what they match."""
        if self._counts[mind] > 0:
            self._due.add(mind)
            if self._work is None or self._work.done():
                self._work = asyncio.create_task(self._release_due())
                self._manager.keep(self._work)

    def releasing(self, mind: str) -> asyncio.Task[None] | None:
        """What looks at the mind's gated rows at this moment, or is about to."""
        return self._work if mind in self._due or mind == self._now else None

    def _placed(self, mind: str, payload: Mapping[str, Any]) -> str:
        routes = self._routes(mind)
        return "deliver" if routes is None else route(routes, mind, payload).action

    async def _release_due(self) -> None:
        while self._due:
            mind = self._due.pop()
            if mind not in self._manager.policy.config.minds:
                continue  # its rows wait for it
            self._now = mind
            try:
                await self._release(mind)
            except Unavailable as error:
                log.warning("gated messages of %s cannot be read: %s", mind, error)
                asyncio.get_running_loop().call_later(AGAIN_S, self.changed, mind)
            finally:
                self._now = None

    async def _release(self, mind: str) -> None:
        routes = self._routes(mind)

        def place(payload: Mapping[str, Any]) -> Target:
            if routes is None:
                return Target(mind, MAIN_SESSION)
            return planner.place(mind, routes, payload)

        manager = self._manager
        moves = await manager.queue.read(
            lambda db: quarantine_rows.release(mind, quarantine_rows.read(db, mind), place)
        )
        if not moves:
            return
        moved = await manager.ledger.write(_mover(moves))
        self._counts[mind] -= len(moved.out) + len(moved.ended)
        out, ended = len(moved.out), len(moved.ended)
        log.info("%s: a rule matches now: %d gated messages go out, %d do not", mind, out, ended)
        for id_ in moved.ended:
            manager.ledger.waiters.tell(id_)
        for row, raw in moved.out:
            self._take(row, raw)


def _mover(moves: Sequence[Move]) -> Callable[[Connection], Moved]:
    return lambda db: quarantine_rows.move(db, moves, now_ms())
