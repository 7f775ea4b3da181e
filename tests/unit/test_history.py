"""What is noted of the host over time, how it is made coarse, and what of it reaches the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onqueue import on_queue

from hostguard import history_db, recorder
from hostguard.database import open_database
from hostguard.history import APART_MS, GRAIN, History, Incident, Point, Seen, Trouble, coarse, steps
from hostguard.model import HostView
from hostguard.pressure import Level

TEN = 600_000
T0 = 1_800_000_000_000 - 1_800_000_000_000 % TEN
FINE = Trouble("requests come back", 4)

LOOKS = st.builds(
    Seen,
    level=st.sampled_from([0, 0, 1, 2]),
    cap=st.sampled_from([None, 1, 4]),
    turns=st.integers(0, 2),
    held=st.integers(0, 2),
    await_ms=st.sampled_from([None, 3, 900]),
)
# Pauses between looks: many in a grain, and hours without one.
NOTES = st.lists(
    st.tuples(st.sampled_from([500, 20_000, GRAIN, 7 * GRAIN, 90 * GRAIN]), LOOKS), min_size=1, max_size=12
)


def noted(notes: list[tuple[int, Seen]]) -> tuple[History, list[tuple[int, Seen]]]:
    history, at, told = History(), T0, []
    for pause, seen in notes:
        at += pause
        history.note(at, seen, FINE)
        told.append((at, seen))
    return history, told


def truly(told: list[tuple[int, Seen]], begin: int, width: int, count: int) -> list[Seen | None]:
    """The worst of each span, looked for among all grains."""
    found: list[Seen | None] = []
    for start in range(begin, begin + width * count, width):
        worst: Seen | None = None
        for grain in range(start, start + width, GRAIN):
            before = [seen for at, seen in told if at < grain]
            here = [seen for at, seen in told if grain <= at < grain + GRAIN]
            for seen in ([replace(before[-1], await_ms=None)] if before else []) + here:
                worst = seen if worst is None else worst.worst(seen)
        found.append(worst)
    return found


@settings(deadline=None, max_examples=60)
@given(NOTES)
def test_the_points_tell_the_worst_of_each_span(notes: list[tuple[int, Seen]]) -> None:
    history, told = noted(notes)
    count = (told[-1][0] - T0) // TEN + 2
    expected = truly(told, T0, TEN, count)
    assert steps(history.known(), T0, TEN, count) == expected
    assert steps(list(coarse(history.known(), TEN)), T0, TEN, count) == expected
    late = T0 + 3 * TEN  # what was before the span is carried into it
    assert steps(history.known(), late, TEN, count) == truly(told, late, TEN, count)


def test_there_is_no_point_while_nothing_changes_and_few_when_it_is_coarse() -> None:
    history, _ = noted([(1000, Seen(cap=4))] * 5000)
    assert len(history.points) == 1
    busy, _ = noted([(10_000, Seen(cap=4, turns=i % 3, await_ms=i % 50)) for i in range(60 * 6 * 3)])
    assert len(busy.points) == pytest.approx(1080, abs=2)
    assert len([*coarse(busy.known(), TEN)]) <= 20


def test_nothing_is_held_to_run_while_the_guard_was_down() -> None:
    before, after = Point(T0, Seen(2, 1, 3, 7, 900)), Point(T0 + 5 * TEN, Seen(cap=4), first=True)
    found = steps([before, after], T0 - TEN, TEN, 8)
    assert found[0] is None
    assert found[1] == before.seen
    assert found[2:6] == [Seen(cap=1)] * 4 or found[2:5] == [Seen(cap=1)] * 3
    assert found[7] == Seen(cap=4)


def test_a_clock_that_is_set_back_leaves_no_point_in_the_future() -> None:
    history, _ = noted([(TEN, Seen(turns=i)) for i in range(5)])
    history.note(T0 + 2 * TEN, Seen(turns=9), FINE)
    assert [point.at for point in history.points] == [T0 + TEN, T0 + 2 * TEN]


# -- incidents


def stall(history: History, begin: int, seconds: int, **more: Any) -> None:
    history.note(begin, Seen(1, 2), Trouble("a request took 0.6 s", 4))
    history.note(begin + 1000, Seen(2, 1), Trouble("3 in flight", 4, **more))
    history.note(begin + seconds * 1000, Seen(0, 1), FINE)


def test_an_incident_tells_its_worst_moment_and_what_was_done() -> None:
    history = History()
    history.note(T0, Seen(0, 4), FINE)
    stall(history, T0 + 5000, 16, frozen=2, tightened=1_000_000)
    assert [*history.incidents] == [
        Incident(T0 + 5000, T0 + 21_000, 2, "3 in flight", 1, 4, frozen=2, tightened=1_000_000)
    ]


def test_what_is_said_of_a_stall_that_is_over_is_not_its_evidence() -> None:
    history = History()
    history.note(T0, Seen(2, 1), Trouble("none completed for 1.5 s", 4))
    history.note(T0 + 9000, Seen(2, 1), Trouble("none completed for 10.5 s", 4))
    history.note(T0 + 12_000, Seen(2, 1), Trouble("", 4))
    history.note(T0 + 15_000, Seen(1, 1), Trouble("requests take 0.6 s", 4))
    assert [one.evidence for one in history.incidents] == ["none completed for 10.5 s"]


def test_trouble_that_comes_back_at_once_is_the_same_incident() -> None:
    history = History()
    stall(history, T0, 10)
    stall(history, T0 + 10_000 + APART_MS - 1, 10)
    assert len(history.incidents) == 1
    assert history.incidents[0].until == T0 + 20_000 + APART_MS - 1
    stall(history, T0 + 30_000 + 2 * APART_MS, 10)
    assert len(history.incidents) == 2


def test_an_incident_that_lasts_has_no_end_yet() -> None:
    history = History()
    history.note(T0, Seen(1, 2), Trouble("slow", None))
    assert history.incidents[0].until is None


# -- on the disk


class Host:
    """What the recorder needs of a manager; its clock runs as the test says."""

    def __init__(self, queue: Any) -> None:
        self.queue, self.backlog, self.cap = queue, range(3), 4
        self.level, self.limit = Level.CALM, None
        self.watcher = SimpleNamespace(
            state=SimpleNamespace(level=Level.CALM, evidence="e", last=None),
            freezer=SimpleNamespace(frozen=()),
            tightener=SimpleNamespace(limit=None),
        )

    def host(self) -> HostView:
        return HostView(live=2, cap=4, effective_cap=self.cap)


def on_recorder(path: Path, monkeypatch: pytest.MonkeyPatch, work: Any) -> Any:
    clock = SimpleNamespace(now=T0)
    monkeypatch.setattr(recorder, "now_ms", lambda: clock.now)

    async def with_queue(queue: Any) -> Any:
        host = Host(queue)
        return await work(recorder.Recorder(host), host, clock)  # type: ignore[arg-type]

    return on_queue(path, with_queue)


async def stored(host: Host) -> tuple[list[Point], list[Incident]]:
    await host.queue.write(lambda db: None)  # after what was handed in before
    return (
        await host.queue.read(lambda db: history_db.points(db, 0)),
        await host.queue.read(lambda db: history_db.incidents(db, 0)),
    )


def test_it_is_stored_seldom_while_calm_and_never_in_trouble(tmp_path, monkeypatch):
    async def work(notes, host, clock):
        notes.note(5)
        clock.now += recorder.STORE_MS - 1
        notes.note(5)
        assert await stored(host) == ([], [])
        host.watcher.state.level = Level.STALLED
        clock.now += recorder.STORE_MS
        notes.note()
        assert notes.store() is None
        assert await stored(host) == ([], [])
        host.watcher.state.level = Level.CALM
        clock.now += 1000
        notes.note()
        points, incidents = await stored(host)
        assert [point.first for point in points] == [True] + [False] * (len(points) - 1)
        assert points[0].seen == Seen(0, 4, 2, 3, 5)
        assert incidents == [*notes.history.incidents]
        assert incidents[0].until == clock.now
        clock.now += 60_000
        notes.note(5)
        assert len((await stored(host))[0]) == len(points)
        host.queue.trouble = "full"
        assert notes.store() is None
        host.queue.trouble = None
        await notes.store()  # as at the guard's end
        assert len((await stored(host))[0]) >= len(points)

    on_recorder(tmp_path, monkeypatch, work)


def test_what_did_not_change_is_not_stored_again(tmp_path, monkeypatch):
    async def work(notes, host, clock):
        notes.note(5)
        await notes.store()
        clock.now += 2 * recorder.STORE_MS
        notes.note()
        await stored(host)
        assert notes.store() is None

    on_recorder(tmp_path, monkeypatch, work)


def test_a_store_that_failed_is_made_again(tmp_path, monkeypatch):
    async def work(notes, host, clock):
        real, host.queue.submit = host.queue.submit, None
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(OSError("no"))
        host.queue.submit = lambda op, durable: SimpleNamespace(future=failed)
        notes.note(5)
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
    [(0, 0, 20_000, 80_000), (2, recorder.INCIDENTS_MAX, 80_000, 200_000)],
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
            for at in range(T0 + number * 86_400_000, T0 + (number + 1) * 86_400_000, recorder.STORE_MS):
                points = [Point(at + i * TEN, Seen(level, 1, 30, 5000, 16_500)) for i in range(13)]
                troubles = [Incident(at + i, at + i + 999, 2, text, 1, 4, 9, 10**6) for i in range(incidents)]
                db.execute("BEGIN IMMEDIATE")
                history_db.store(db, points, troubles, at)
                db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return written() - before

        days = [day(number) for number in range(60)]
        print("bytes on the first and the worst day:", days[0], max(days))
        assert least < min(days)
        assert max(days) < most
        count = lambda table: db.execute(f"SELECT count(*), min(at) FROM {table}").fetchone()  # noqa: E731
        assert count("points")[0] <= history_db.POINTS_MAX
        assert count("points")[1] >= T0 + 60 * 86_400_000 - history_db.POINTS_AGE - recorder.STORE_MS
        assert count("incidents")[0] <= history_db.INCIDENTS_MAX


def test_what_is_stored_is_read_as_it_was(tmp_path):
    points = [Point(T0, Seen(2, 1, 3, 4, 5), first=True), Point(T0 + TEN, Seen(0, None, 0, 0, None))]
    over = Incident(T0, T0 + 5, 2, "e", None, None, 0, None)
    on = Incident(T0 + TEN, None, 1, "f", 1, 4, 2, 7)
    with closing(open_database(tmp_path / "queue.db")[0]) as db:
        history_db.store(db, points, [over, on], T0)
        assert history_db.points(db, 0) == points
        assert history_db.points(db, T0 + TEN - 1) == points  # the one before tells how it was
        assert history_db.points(db, T0 + TEN) == points[1:]
        assert history_db.incidents(db, T0 + 6) == [on]
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
            ' \'{"held_ms": 4, "held_for": "mind_busy", "cpu_ms": null}\', ?3, ?4, ?5, ?6)',
            rows,
        )
        found = history_db.ended(db, 3)
    assert [(row.starts, row.started_at, row.failed) for row in found] == [
        (True, 5, 0), (False, 6, 0), (True, 7, 3), (False, 7, 0),
    ]  # fmt: skip
    assert found[0][5:] == (4, "mind_busy", None, None, None)
