"""What is kept back before the gate sees it: messages in a batch, and those that no route matches yet.

Puts the parts together: the routes' files, the buffers of batches, the gated rows.
"""

from __future__ import annotations

from hostguard.core.model import Config, Delivery, State
from hostguard.delivery.acceptor import Acceptor
from hostguard.delivery.batcher import Batcher
from hostguard.delivery.quarantine import Quarantine
from hostguard.delivery.quarantine_rows import Quarantined
from hostguard.delivery.route_files import RouteFiles
from hostguard.delivery.routes import instructions
from hostguard.gate.dispatcher import Dispatcher


class HeldBack:
    """One for the guard."""

    def __init__(self, manager: Dispatcher) -> None:
        self._manager = manager
        self.files = RouteFiles(lambda mind: self.gating.changed(mind))
        self.batcher = Batcher(manager)
        self.gating = Quarantine(manager, self.files.get, self._take)
        manager.kept = lambda mind: (self.batcher.count(mind), self.gating.count(mind))
        manager.on_taken_back = self._taken_back
        manager.instructions = self._instructions

    async def read(self, config: Config) -> None:
        """Read the routes: before anything is posted, since they have the sessions' instructions."""
        await self.files.start(config)

    async def start(self, acceptor: Acceptor) -> None:
        """Take up what an earlier guard kept back, once the queue is recovered. Raises Unavailable."""
        acceptor.on_kept, acceptor.releasing = self._stored, self.gating.releasing
        await self.batcher.start()
        await self.gating.start()

    async def reload(self, config: Config) -> None:
        """Follow a new configuration."""
        await self.files.reload(config)
        self.gating.reload()

    def counts(self, mind: str) -> tuple[int, int]:
        """Rows of a mind that are kept back: (in batches, without a route)."""
        return self.batcher.count(mind), self.gating.count(mind)

    async def close(self) -> None:
        """Let nothing go any more: the next guard does."""
        self.batcher.close()
        await self.files.close()

    def _take(self, row: Delivery, raw: bytes) -> None:
        if row.state is State.BATCHING:
            self.batcher.add(row, raw)
        elif row.state is State.QUEUED:
            self._manager.admit([row])

    def _stored(self, fresh: list[Delivery], raw: bytes, done: Quarantined) -> None:
        for row in fresh:
            if row.state is State.BATCHING:
                self.batcher.add(row, raw)
        self.gating.stored(fresh, raw, done)

    def _taken_back(self, row: Delivery) -> None:
        if row.state is State.BATCHING:
            self.batcher.taken_back(row)
        else:
            self.gating.taken_back(row)

    def _instructions(self, mind: str, session: str) -> str | None:
        routes = self.files.get(mind)
        return instructions(routes, session) if routes is not None else None
