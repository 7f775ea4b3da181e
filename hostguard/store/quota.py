"""Limits on bytes: what waits for a mind, what a sender has waiting, and what it sends in a minute.

Large messages are counted one by one. Small ones need no count: a mind may have limits.rows_per_mind of them.
Functions of the writing connection, which alone has the count, in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from hostguard.core.model import PENDING, State

LARGE = 4 << 10  # bytes; 10,000 rows of this size are 40 MB
# Of one mind, and of one sender: 64 of the largest messages that are allowed by default.
WAITING_MAX = 64 << 20
ENDED_MAX = 64 << 20  # of all ended messages, of which the oldest go first
# Of one sender. A full minute is a second of a card's time; a day is 23 GB, which a card stands for years.
MINUTE_MAX = 16 << 20
FAN_OUT_MAX = 1000  # rows that follow the row which carries their payload
SOME = 2_000  # payloads that are looked at in one transaction

# Dead letters wait, too: until somebody drops them.
WAITS = "(" + ", ".join(f"'{state}'" for state in (*PENDING, State.DEAD)) + ")"
_COLUMNS = f"d.id, d.payload, d.mind, NULL, length(p.body), d.state IN {WAITS}"
# Temporary tables and triggers are this connection's alone: the file does not have them.
_COUNT = f"""
CREATE TEMP TABLE large (
    id INTEGER PRIMARY KEY, payload INTEGER NOT NULL, mind TEXT NOT NULL, sender TEXT, bytes INTEGER NOT NULL,
    waits INTEGER NOT NULL
);
CREATE INDEX temp.large_mind ON large (mind) WHERE waits;
CREATE INDEX temp.large_sender ON large (sender) WHERE waits;
CREATE TEMP TRIGGER large_stored AFTER INSERT ON main.deliveries
    BEGIN INSERT OR REPLACE INTO large
        SELECT {_COLUMNS} FROM payloads p, deliveries d
            WHERE d.id = new.id AND p.id = new.payload AND length(p.body) > {LARGE}; END;
CREATE TEMP TRIGGER large_changed AFTER UPDATE OF state ON main.deliveries
    BEGIN UPDATE large SET waits = new.state IN {WAITS} WHERE id = new.id; END;
CREATE TEMP TRIGGER large_gone AFTER DELETE ON main.deliveries
    BEGIN DELETE FROM large WHERE id = old.id; END;
"""  # noqa: S608


def watch(db: sqlite3.Connection) -> None:
    """Count what is stored and ends through this connection from now on; `count_some` adds what is there."""
    db.executescript(_COUNT)


def count_some(db: sqlite3.Connection, after: int) -> int | None:
    """Count the next SOME payloads after this id. Returns after which one to go on; None at the end.

    Whose messages they are is not known any more: they count only for their minds.
    """
    last = db.execute(
        "SELECT id FROM payloads WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", (after, SOME - 1)
    ).fetchone()
    upto = (1 << 63) - 1 if last is None else last[0]
    db.execute(
        f"INSERT OR IGNORE INTO large SELECT {_COLUMNS} FROM payloads p CROSS JOIN deliveries d"  # noqa: S608
        f" WHERE p.id > ? AND p.id <= ? AND length(p.body) > {LARGE} AND d.payload = p.id"
        f" AND d.id BETWEEN p.id AND p.id + {FAN_OUT_MAX}",
        (after, upto),
    )
    return None if last is None else upto


def waiting(db: sqlite3.Connection, mind: str) -> int:
    """Bytes of large messages that wait for the mind."""
    return _sum(db, "SELECT bytes FROM large WHERE mind = ? AND waits", mind)


def sent(db: sqlite3.Connection, sender: str) -> int:
    """Bytes of large messages of the sender that wait; one to several minds counts once."""
    return _sum(
        db, "SELECT max(bytes) AS bytes FROM large WHERE sender = ? AND waits GROUP BY payload", sender
    )


def _sum(db: sqlite3.Connection, rows: str, value: str) -> int:
    return int(db.execute(f"SELECT coalesce(sum(bytes), 0) FROM ({rows})", (value,)).fetchone()[0])  # noqa: S608


def full(db: sqlite3.Connection, minds: Collection[str], size: int) -> set[str]:
    """The minds for which a message of this size may not be stored. A first one is always."""
    if size <= LARGE:
        return set()
    return {mind for mind in minds if (has := waiting(db, mind)) and has + size > WAITING_MAX}


def sender_full(db: sqlite3.Connection, sender: str, size: int) -> bool:
    """True if the sender may not have a message of this size stored."""
    return size > LARGE and (has := sent(db, sender)) > 0 and has + size > WAITING_MAX


def note_sender(db: sqlite3.Connection, payload: int, sender: str) -> None:
    """Note who sent a message that was just stored."""
    db.execute(
        f"UPDATE large SET sender = ? WHERE id BETWEEN ?2 AND ?2 + {FAN_OUT_MAX} AND payload = ?2",  # noqa: S608
        (sender, payload),
    )


def beyond(db: sqlite3.Connection, most: int) -> list[tuple[int, int]]:
    """(row, payload) of the oldest ended large messages, so that ENDED_MAX bytes are left; `most` at once."""
    return db.execute(
        "SELECT id, payload FROM (SELECT id, payload, sum(bytes) OVER (ORDER BY id DESC) AS newer FROM large"
        " WHERE NOT waits) WHERE newer > ? AND id < (SELECT max(id) FROM deliveries) ORDER BY id LIMIT ?",
        (ENDED_MAX, most),
    ).fetchall()


class PerMinute:
    """What each sender sent lately: it drains evenly. One that is larger than all may go when it is empty."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}  # bytes, and when, on the monotonic clock

    def wait_s(self, sender: str, size: int, now: float) -> float:
        """0: the sender may send so many bytes now, and they count. Otherwise: in how many seconds it may."""
        level, at = self._levels.get(sender, (0.0, now))
        level = max(0.0, level - (now - at) * MINUTE_MAX / 60)
        if level and level + size > MINUTE_MAX:
            return min(level, level + size - MINUTE_MAX) * 60 / MINUTE_MAX
        self._levels[sender] = level + size, now
        return 0.0
