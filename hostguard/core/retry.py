"""Turn ids, one for each attempt, and how long to wait between attempts. Pure."""

from __future__ import annotations

ATTEMPTS_MAX = 10  # design.md: then the row is a dead letter

BACKOFF_MS = (5_000, 300_000)  # design.md: 5 s * 2^n, up to 5 min


def turn_id(row: int, attempts: int) -> str:
    """The id of the row's next turn: each attempt has a unit name of its own."""
    return f"{row}.{attempts}" if attempts else str(row)


def row_of(turn: str) -> int | None:
    """The row of a turn id, None for a turn without one (`hostguard run` without the daemon)."""
    head = turn.partition(".")[0]
    return int(head) if head.isdecimal() else None


def backoff(attempts: int) -> int:
    """ms to wait after the attempts-th failure."""
    first, longest = BACKOFF_MS
    return min(first << (attempts - 1), longest)
