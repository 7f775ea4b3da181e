"""The history on the disk: when it is stored, what a day writes, and that it is read as it was."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onqueue import on_queue
from set_clock import SetClock
from test_timeline import T0, TEN

from hostguard.core.settings import Level
from hostguard.store.connection import open_database
from hostguard.telemetry import timeline_recorder, timeline_rows
from hostguard.telemetry.timeline import Incident, Point, Seen, Trouble


class Host:
    """A recorder on a real store; its clock runs as the test says."""

    def __init__(self, queue: Any, clock: SetClock) -> None:
        self.queue, self.level = queue, Level.CALM
        self.notes = timeline_recorder.TimelineRecorder(queue, range(3), clock)

    def note(self, await_ms: int | None = None) -> None:
        self.notes.note(self.level, 4, 2, Trouble("e", 4), await_ms)


def on_recorder(path: Path, monkeypatch: pytest.MonkeyPatch, work: Any) -> Any:
    clock = SetClock(T0)

    async def with_queue(queue: Any) -> Any:
        host = Host(queue, clock)
        return await work(host.notes, host, clock)

    return on_queue(path, with_queue)


async def stored(host: Host) -> tuple[list[Point], list[Incident]]:
    await host.queue.write(lambda db: None)  # after what was handed in before
    return (
        await host.queue.read(lambda db: timeline_rows.points(db, 0)),
        await host.queue.read(lambda db: timeline_rows.incidents(db, 0)),
    )


def test_it_is_stored_seldom_while_calm_and_never_in_trouble(tmp_path, monkeypatch):
    async def work(notes, host, clock):
        host.note(5)
        clock.passed += timeline_recorder.STORE_MS - 1
        host.note(5)
        assert await stored(host) == ([], [])
        host.level = Level.STALLED
        clock.passed += timeline_recorder.STORE_MS
        host.note()
        assert notes.store() is None
        assert await stored(host) == ([], [])
        host.level = Level.CALM
        clock.passed += 1000
        host.note()
        points, incidents = await stored(host)
        assert [point.first for point in points] == [True] + [False] * (len(points) - 1)
        assert points[0].seen == Seen(0, 4, 2, 3, 5)
        assert incidents == [*notes.timeline.incidents]
        assert incidents[0].until == clock.date()
        clock.passed += 60_000
        host.note(5)
        assert len((await stored(host))[0]) == len(points)
        host.queue.trouble = "full"
        assert notes.store() is None
        host.queue.trouble = None
        await notes.store()  # as at the guard's end
        assert len((await stored(host))[0]) >= len(points)

    on_recorder(tmp_path, monkeypatch, work)


def test_what_did_not_change_is_not_stored_again(tmp_path, monkeypatch):
    async def work(notes, host, clock):
        host.note(5)
        await notes.store()
        clock.passed += 2 * timeline_recorder.STORE_MS
        host.note()
        await stored(host)
        assert notes.store() is None

    on_recorder(tmp_path, monkeypatch, work)


@pytest.mark.parametrize("jump", [-6 * 3_600_000, 6 * 3_600_000])
def test_a_clock_that_is_set_in_an_incident_makes_it_no_longer(tmp_path, monkeypatch, jump):
    async def work(notes, host, clock):
        host.note(5)
        await notes.store()
        host.level = Level.STALLED
        clock.passed += 60_000
        host.note()
        clock.passed += 2_000
        clock.skew = jump
        host.note()
        clock.passed += 2_000
        host.level = Level.CALM
        host.note()
        await notes.store()
        points, incidents = await stored(host)
        [one] = notes.timeline.incidents
        assert (one.until - one.at, one.until) == (4_000, clock.date())
        assert incidents == [one], "it is stored once"
        dates = [point.at for point in notes.timeline.points]
        assert dates == sorted(dates)
        assert all(0 <= clock.date() - at <= 80_000 for at in dates), "all have the date that they had had"
        assert points

    on_recorder(tmp_path, monkeypatch, work)


def test_a_store_that_failed_is_made_again(tmp_path, monkeypatch):
    async def work(notes, host, clock):
        real, host.queue.submit = host.queue.submit, None
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(OSError("no"))
        host.queue.submit = lambda op, durable: SimpleNamespace(future=failed)
        host.note(5)
        with pytest.raises(OSError, match="no"):
            await notes.store()
        host.queue.submit = real
        await notes.store()
        assert len((await stored(host))[0]) == 1

    on_recorder(tmp_path, monkeypatch, work)


def written() -> int:
    """Bytes that this process gave to write(2) so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


@pytest.mark.parametrize(
    ("level", "incidents", "least", "most"),
    [(0, 0, 20_000, 100_000), (2, timeline_recorder.INCIDENTS_MAX, 70_000, 200_000)],
    ids=["usual", "trouble"],
)
def test_what_a_day_writes(tmp_path, level, incidents, least, most):
    """A change in each ten minutes, also once old days are dropped, and as many incidents as are stored at most.

    With SQLite's own files.
    """
    text = "3 requests in flight, none completed for 16.5 s"
    with closing(open_database(tmp_path / "queue.db")[0]) as db:
        db.execute("PRAGMA synchronous=NORMAL")

        def day(number: int) -> int:
            before = written()
            for at in range(
                T0 + number * 86_400_000, T0 + (number + 1) * 86_400_000, timeline_recorder.STORE_MS
            ):
                points = [Point(at + i * TEN, Seen(level, 1, 30, 5000, 16_500)) for i in range(13)]
                troubles = [Incident(at + i, at + i + 999, 2, text, 1, 4, 9, 10**6) for i in range(incidents)]
                db.execute("BEGIN IMMEDIATE")
                timeline_rows.store(db, points, troubles, at)
                db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return written() - before

        days = [day(number) for number in range(60)]
        print("bytes on the first and the worst day:", days[0], max(days))
        assert least < min(days)
        assert max(days) < most
        count = lambda table: db.execute(f"SELECT count(*), min(at) FROM {table}").fetchone()  # noqa: E731
        assert count("points")[0] <= timeline_rows.POINTS_MAX
        assert (
            count("points")[1] >= T0 + 60 * 86_400_000 - timeline_rows.POINTS_AGE - timeline_recorder.STORE_MS
        )
        assert count("incidents")[0] <= timeline_rows.INCIDENTS_MAX


def test_what_is_stored_is_read_as_it_was(tmp_path):
    points = [Point(T0, Seen(2, 1, 3, 4, 5), first=True), Point(T0 + TEN, Seen(0, None, 0, 0, None))]
    over = Incident(T0, T0 + 5, 2, "e", None, None, 0, None)
    on = Incident(T0 + TEN, None, 1, "f", 1, 4, 2, 7)
    with closing(open_database(tmp_path / "queue.db")[0]) as db:
        timeline_rows.store(db, points, [over, on], T0)
        assert timeline_rows.points(db, 0) == points
        assert timeline_rows.points(db, T0 + TEN - 1) == points  # the one before tells how it was
        assert timeline_rows.points(db, T0 + TEN) == points[1:]
        assert timeline_rows.incidents(db, T0 + 6) == [on]
        assert isinstance(db, sqlite3.Connection)


def test_the_rows_of_ended_turns_tell_which_began_one(tmp_path):
    rows = [  # id, state, turn, started_at, ended_at, attempts
        (17, "done", "17", 5, 9, 0),
        (18, "done", "17", 6, 9, 0),  # folded into it
        (19, "dead", "19.2", 7, 9, 3),  # tried again
        (20, "cancelled", None, 0, 9, 0),  # never began
        (21, "done", "21", 1, 2, 0),  # ended before
        (22, "delivering", "22", 8, 0, 0),
        (23, "done", "1", 7, 9, 0),  # folded into a turn whose id begins its own
    ]
    with closing(open_database(tmp_path / "queue.db")[0]) as db:
        db.executemany(
            "INSERT INTO deliveries (id, mind, session, state, kind, created_at, not_before, expires_at, payload,"
            " result, turn, started_at, ended_at, attempts) VALUES (?1, 'm', 's', ?2, 'message', 1, 0, 0, 1,"
            ' \'{"held_ms": 4, "held_for": "mind_busy", "cpu_ms": null, "run_ms": 4}\', ?3, ?4, ?5, ?6)',
            rows,
        )
        found = timeline_rows.ended(db, 3)
    assert [(row.starts, row.ended_at, row.failed) for row in found] == [
        (True, 9, 0), (False, 9, 0), (True, 9, 3), (False, 9, 0),
    ]  # fmt: skip
    assert found[0].run_ms == 4
    assert found[0][5:] == (4, "mind_busy", None, None, None)
