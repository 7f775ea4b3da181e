"""Background tasks of one owner: none is collected while it runs, none fails without a word."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class Tasks:
    """Holds tasks until they are done, and logs what they raise."""

    def __init__(self, expected: tuple[type[Exception], ...] = ()) -> None:
        """`expected`: exceptions that somebody awaits and handles; they are not logged."""
        self._expected = expected
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def settled(self, seconds: float) -> None:
        """Wait until all tasks are done, at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, self._expected):
            log.error("a background task failed", exc_info=error)
