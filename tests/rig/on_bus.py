"""Runs what speaks to the bus in an event loop of its own."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Coroutine
from typing import Any


def on_bus(work: Coroutine[Any, Any, None]) -> None:
    with warnings.catch_warnings():
        # dbus-next leaves the closing of its sockets to the garbage collector, which may come at any time.
        warnings.filterwarnings(
            "ignore", r"unclosed <socket.socket fd=\d+, family=1, type=1", ResourceWarning
        )
        asyncio.run(work)
        gc.collect()
