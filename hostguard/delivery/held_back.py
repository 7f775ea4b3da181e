"""Rows that are held back before the gate is asked: in batches, and in quarantine until a route matches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hostguard.core.model import Delivery, State
from hostguard.delivery.batcher import Batcher
from hostguard.delivery.quarantine import Quarantine
from hostguard.delivery.quarantine_rows import Quarantined


@dataclass(eq=False)
class HeldBack:
    """The batches and the quarantine as one."""

    _batcher: Batcher
    _quarantine: Quarantine

    async def start(self) -> None:
        """Hold again what an earlier guard held, once the queue is recovered. Raises Unavailable."""
        await self._batcher.start()
        await self._quarantine.start()

    def reload(self) -> None:
        """Follow a new configuration, once its routes are read."""
        self._quarantine.reload()

    def close(self) -> None:
        """Let no batch go out any more: the next guard does."""
        self._batcher.close()

    def counts(self, mind: str) -> tuple[int, int]:
        """How many of the mind's rows are in a batch, and in quarantine."""
        return self._batcher.count(mind), self._quarantine.count(mind)

    def stored(self, fresh: list[Delivery], raw: bytes, quarantined: Quarantined) -> None:
        """Hold those of a message's new rows that are not for the gate yet."""
        for row in fresh:
            if row.state is State.BATCHING:
                self._batcher.add(row, raw)
        self._quarantine.stored(fresh, raw, quarantined)

    def cancel(self, row: Delivery) -> None:
        """Forget a row that was cancelled in the database."""
        if row.state is State.BATCHING:
            self._batcher.cancel(row)
        else:
            self._quarantine.cancel(row)

    def releasing(self, mind: str) -> asyncio.Task[None] | None:
        """The task in which the mind's quarantined rows leave at this moment, if there is one."""
        return self._quarantine.releasing(mind)
