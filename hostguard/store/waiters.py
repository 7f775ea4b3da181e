"""Callers that wait for a delivery's final state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Waiters:
    """The callers that wait, by row."""

    def __init__(self) -> None:
        self._rows: dict[int, set[asyncio.Future[None]]] = {}
        self._released = False

    @contextmanager
    def waiter(self, id_: int) -> Iterator[asyncio.Future[None]]:
        """A future that is done once the row's final state is stored, if that happens from now on.

        It is done earlier if the guard stops.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._released:
            future.set_result(None)
        waiting = self._rows.setdefault(id_, set())
        waiting.add(future)
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting:
                self._rows.pop(id_, None)

    def tell(self, *ids: int) -> None:
        """The final states of these rows are stored, or they are gone."""
        for future in (future for id_ in ids for future in self._rows.get(id_, ())):
            if not future.done():
                future.set_result(None)

    async def release(self, seconds: float) -> None:
        """Let nobody wait any more, and allow them so many seconds to go."""
        self._released = True
        for id_ in self._rows:
            self.tell(id_)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._rows:  # noqa: ASYNC110  # once, as the guard stops
                    await asyncio.sleep(0.01)
