"""What is read and written of the history: functions of a connection, for hostguard.store.writer.

Most of what a report tells of turns is in their rows anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hostguard.store.connection import Connection
from hostguard.telemetry.timeline import Incident, Point, Seen

DAY = 86_400_000  # ms
POINTS_AGE = 35 * DAY  # a month, and some days to look back on it
POINTS_MAX = 5_100  # rows, some 30 bytes each: what 35 days of ten minutes can have
INCIDENTS_MAX = 1_000  # rows, some 120 bytes each
ROWS_MAX = 100_000  # of the newest deliveries are looked at: a second's work for a Pi


class Ended(NamedTuple):
    """A delivery whose turn is over; `starts` says whether it began the turn, or only went into it.

    Times in ms since the epoch, spans in ms; None: not known.
    """

    mind: str
    starts: bool
    started_at: int
    ended_at: int
    failed: int  # attempts
    held_ms: int | None
    held_for: str | None  # model.Reason
    cpu_ms: int | None
    read_bytes: int | None
    write_bytes: int | None


def store(db: Connection, points: Iterable[Point], incidents: Iterable[Incident], now: int) -> None:
    """Add to what is stored, and drop what is too old, or too much."""
    db.executemany(
        "INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (p.at, p.seen.level, p.seen.cap, p.seen.turns, p.seen.held, p.seen.await_ms, p.first)
            for p in points
        ],
    )
    db.executemany("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [
        (one.at, one.until, one.level, one.evidence, one.cap, one.configured, one.frozen, one.tightened)
        for one in incidents
    ])  # fmt: skip
    db.execute("DELETE FROM points WHERE at < ?", (now - POINTS_AGE,))
    for table, most in (("points", POINTS_MAX), ("incidents", INCIDENTS_MAX)):
        newest = f"SELECT at FROM {table} ORDER BY at DESC LIMIT 1 OFFSET ?"  # noqa: S608
        db.execute(f"DELETE FROM {table} WHERE at <= ({newest})", (most,))  # noqa: S608


def points(db: Connection, since: int) -> list[Point]:
    """The points from the last one before `since` on, in order."""
    first = db.execute("SELECT max(at) FROM points WHERE at <= ?", (since,)).fetchone()[0]
    rows = db.execute("SELECT * FROM points WHERE at >= ? ORDER BY at", (since if first is None else first,))
    return [Point(at, Seen(*seen), bool(begun)) for at, *seen, begun in rows]


def incidents(db: Connection, since: int) -> list[Incident]:
    """The incidents that were not over at `since`, in order."""
    rows = db.execute("SELECT * FROM incidents WHERE coalesce(until, at) >= ? ORDER BY at", (since,))
    return [Incident(*row) for row in rows]


def ended(db: Connection, since: int) -> list[Ended]:
    """The deliveries of turns that ended since then, in order of id; of failed attempts only the last."""
    rows = db.execute(
        "SELECT mind, turn = id OR turn LIKE id || '.%', started_at, ended_at, attempts,"
        " json_extract(result, '$.held_ms'), json_extract(result, '$.held_for'),"
        " json_extract(result, '$.cpu_ms'), json_extract(result, '$.read_bytes'),"
        " json_extract(result, '$.write_bytes')"
        " FROM deliveries WHERE id > (SELECT max(id) FROM deliveries) - ? AND ended_at >= ?"
        " AND turn IS NOT NULL AND started_at > 0 ORDER BY id",
        (ROWS_MAX, since),
    )
    return [Ended(mind, bool(starts), *rest) for mind, starts, *rest in rows]
