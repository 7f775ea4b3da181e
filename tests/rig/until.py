"""Waiting on an event loop for what a test awaits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(happened: Callable[[], object], seconds: float = 10) -> None:
    """Return once `happened` is true. Raises AssertionError if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)
