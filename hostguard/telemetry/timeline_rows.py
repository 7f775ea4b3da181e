"""The timeline in the database: functions of a connection. What a report shows of turns is in their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, fields
from typing import NamedTuple

from hostguard.store.connection import Connection
from hostguard.store.failures import FAILED
from hostguard.store.sums import checked
from hostguard.telemetry.timeline import Incident, Point, Seen

DAY = 86_400_000  # ms
POINTS_AGE = 35 * DAY  # a month and some days
POINTS_MAX = 5_100  # rows of some 30 bytes: 35 days of ten minutes
INCIDENTS_MAX = 1_000  # rows of some 120 bytes
_POINT = "at, level, cap, turns, held, await_ms, first"
_INCIDENT = ", ".join(item.name for item in fields(Incident))
ROWS_MAX = 100_000  # newest deliveries that are read: a second's work for a Pi


class Ended(NamedTuple):
    """A delivery whose turn is over; times are ms since the epoch, spans are ms, None = not known."""

    mind: str
    starts: bool  # it began the turn, others were folded into it
    run_ms: int | None
    ended_at: int
    failed: int  # turns: attempts that were tried again, and one that failed for good
    held_ms: int | None
    held_for: str | None  # core.reasons.Reason
    cpu_ms: int | None
    read_bytes: int | None
    write_bytes: int | None


def store(db: Connection, points: Iterable[Point], incidents: Iterable[Incident], now: int) -> None:
    """Store points and incidents, and delete those that are too old or too many."""
    rows = [(point.at, *astuple(point.seen), point.first) for point in points]
    over = [astuple(one) for one in incidents]
    for table, columns, values in (("points", _POINT, rows), ("incidents", _INCIDENT, over)):
        marks = ", ".join("?" * len(columns.split()))
        db.executemany(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", values)  # noqa: S608
    db.execute("DELETE FROM points WHERE at < ?", (now - POINTS_AGE,))
    for table, most in (("points", POINTS_MAX), ("incidents", INCIDENTS_MAX)):
        newest = f"SELECT at FROM {table} ORDER BY at DESC LIMIT 1 OFFSET ?"  # noqa: S608
        db.execute(f"DELETE FROM {table} WHERE at <= ({newest})", (most,))  # noqa: S608


def points(db: Connection, since: int) -> list[Point]:
    """The points after `since` and the last one before it, in order."""
    first = db.execute("SELECT max(at) FROM points WHERE at <= ?", (since,)).fetchone()[0]
    sql = f"SELECT {_POINT}, sum FROM points WHERE at >= ? ORDER BY at"  # noqa: S608
    found = db.execute(sql, (since if first is None else first,))
    rows = (checked("points", row[0], row) for row in found)
    return [Point(at, Seen(*seen), bool(begun)) for at, *seen, begun in rows]


def incidents(db: Connection, since: int) -> list[Incident]:
    """The incidents that ended after `since` or still last, in order."""
    sql = f"SELECT {_INCIDENT}, sum FROM incidents WHERE coalesce(until, at) >= ? ORDER BY at"  # noqa: S608
    return [Incident(*checked("incidents", row[0], row)) for row in db.execute(sql, (since,))]


def ended(db: Connection, since: int) -> list[Ended]:
    """The deliveries whose turns ended since then, by id; of failed attempts only the last."""
    rows = db.execute(
        "SELECT mind, turn = id OR turn LIKE id || '.%',"  # noqa: S608
        f" json_extract(result, '$.run_ms'), ended_at, attempts + (state = 'done' AND {FAILED}),"
        " json_extract(result, '$.held_ms'), json_extract(result, '$.held_for'),"
        " json_extract(result, '$.cpu_ms'), json_extract(result, '$.read_bytes'),"
        " json_extract(result, '$.write_bytes')"
        " FROM deliveries WHERE id > (SELECT max(id) FROM deliveries) - ? AND ended_at >= ?"
        " AND turn IS NOT NULL AND started_at > 0 ORDER BY id",
        (ROWS_MAX, since),
    )
    return [Ended(mind, bool(starts), *rest) for mind, starts, *rest in rows]
