"""Callers that wait for a delivery's final state, and the turns that they belong to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Waiters:
    """The callers that wait, by row, and the rows that each turn waits for."""

    def __init__(self) -> None:
        self._rows: dict[int, set[asyncio.Future[None]]] = {}
        self._units: dict[str, Counter[int]] = {}

    @contextmanager
    def waiter(self, id_: int) -> Iterator[asyncio.Future[None]]:
        """A future that is done once the row's final state is stored, if that happens from now on."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._rows.setdefault(id_, set())
        waiting.add(future)
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting:
                self._rows.pop(id_, None)

    @contextmanager
    def turn(self, unit: str | None, id_: int) -> Iterator[None]:
        """A process of the turn's scope waits for the row; None: the caller is in no turn."""
        if unit is None:
            yield
            return
        rows = self._units.setdefault(unit, Counter())
        rows[id_] += 1
        try:
            yield
        finally:
            rows[id_] -= 1
            if not rows[id_]:
                del rows[id_]
            if not rows:
                self._units.pop(unit, None)

    @property
    def units(self) -> dict[str, set[int]]:
        """The rows that each waiting turn waits for."""
        return {unit: set(rows) for unit, rows in self._units.items()}

    def tell(self, id_: int) -> None:
        """The row's final state is stored."""
        for future in self._rows.get(id_, ()):
            if not future.done():
                future.set_result(None)
