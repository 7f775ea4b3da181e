"""Callers that wait: for a read or write, answered within ANSWER_S or refused, and for a final state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from hostguard.core.errors import internal, unavailable
from hostguard.store.connection import Connection
from hostguard.store.writer import Faulty, Queue, Refused, Unavailable

T = TypeVar("T")

ANSWER_S = 20.0  # a caller waits this long for the card, then gets 503


def _pass() -> None:
    """Nothing is to be undone."""


async def write(
    queue: Queue,
    op: Callable[[Connection], T],
    then: Callable[[T], None],
    undone: Callable[[], None] = _pass,
    *,
    durable: bool = True,
) -> None:
    """Write, by default durably, and call `then` with the result once it is stored.

    Raises Problem, or the Refused of `op`. `undone` is called in place of `then` once it is certain that
    nothing is stored. If the device hangs in the commit itself, the Problem says so, and either is still
    called later.
    """
    pending = queue.submit(op, durable=durable)
    try:
        result = await asyncio.wait_for(asyncio.shield(pending.future), ANSWER_S)
    except TimeoutError:
        if queue.withdraw(pending):
            undone()
            raise unavailable("the device accepts no writes; nothing was done") from None

        def late(future: asyncio.Future[T]) -> None:
            if future.cancelled() or future.exception() is not None:
                undone()
            else:
                then(future.result())

        pending.future.add_done_callback(late)
        raise unavailable("the device accepts no writes; it is done once it works again") from None
    except Unavailable as error:
        undone()
        raise unavailable(f"the queue accepts no writes: {error}") from error
    except Faulty as error:
        undone()
        raise internal(str(error)) from error
    except Refused:
        undone()
        raise
    then(result)


async def read(queue: Queue, op: Callable[[Connection], T]) -> T:
    """Read the database. Raises Problem."""
    try:
        return await asyncio.wait_for(queue.read(op), ANSWER_S)
    except TimeoutError:
        raise unavailable("the device does not answer; hostguard status does") from None
    except Unavailable as error:
        raise unavailable(f"the queue cannot be read: {error}") from error


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call in a thread what may wait for a disk. Raises Problem."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(function, *args), ANSWER_S)
    except TimeoutError:
        raise unavailable("the device does not answer; nothing was done") from None


class Waiters:
    """The callers that wait for a delivery's final state, by row."""

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
