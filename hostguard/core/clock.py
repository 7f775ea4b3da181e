"""The wall clock, and the pauses that parts have in common."""

from __future__ import annotations

import time

# The wall clock may jump (a Pi has no clock of its own): a timer for a wall time checks it this often.
CHECK_S = 30.0
AGAIN_MS = 1_000  # until a row that cannot be read or started now is tried again
AGAIN_S = 5.0  # until what a card, systemd or a port did not take is tried again


def now_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return int(time.time() * 1000)
