"""What a killed guard leaves behind, and what becomes of it. On a real queue and real records; scopes are listed by a fake."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from onqueue import message, on_queue, put
from played import parts

from hostguard.core import paths
from hostguard.core.clock import Now, now_ms
from hostguard.core.model import Config, Kind, LiveTurn, Mind, Row, State
from hostguard.core.units import turn_unit
from hostguard.gate import recovery
from hostguard.gate.backlog import Backlog
from hostguard.gate.shutdown import leave_mark
from hostguard.store import deliveries
from hostguard.turns.live import Phase, Turn

CONFIG = Config(minds={"m": Mind("m", ("/bin/true",)), "r": Mind("r", url="http://127.0.0.1:9")})


@pytest.fixture
def turns(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "WENT_DOWN", tmp_path / "went-down")
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    paths.TURNS.mkdir()
    return paths.TURNS


class Resumed:
    """A driver that notes what is resumed, and ends turns as the real one does."""

    def __init__(self, real):
        self.takes_input, self.end, self.feed = real.takes_input, real.end, real.feed
        self.turns = []

    async def resume(self, turn, mind):
        self.turns.append((turn, mind))


class Left:
    """A queue as a guard left it; `live` are units that systemd lists."""

    def __init__(self, queue):
        self.queue = queue
        self.parts = parts(queue, CONFIG)
        drivers = self.parts.drivers
        self.exec, self.run, self.resident = (
            Resumed(drivers.exec),
            Resumed(drivers.run),
            Resumed(drivers.resident),
        )
        drivers.exec, drivers.run, drivers.resident = self.exec, self.run, self.resident

    async def row(self, mind="m", delivering=None, posted=False, **more):
        _, (row,) = await put(self.queue, message(mind, **more))
        if delivering is not None:
            await self.queue.write(
                lambda db: deliveries.mark_delivering(
                    db, row.id, delivering, self.parts.recovery._clock.now(), {}
                )
            )
        if posted:
            await self.queue.write(lambda db: deliveries.mark_posted(db, row.id, delivering, now_ms()))
        return row.id

    def live(self, mind, turn_id):
        turn = Turn(LiveTurn(turn_unit(mind, turn_id), mind, None, turn_id), 0, Phase.FOREIGN)
        turn.description = "as listed"
        self.parts.live.add(turn)

    async def recovered(self):
        await self.parts.recovery.run()
        await self.parts.tasks.settled(5)
        await self.queue.write(lambda db: None)

    async def now(self, id_):
        return await self.queue.read(lambda db: deliveries.get(db, id_))

    def queued(self):
        return len(self.parts.backlog) + self.parts.backlog.later


def left(tmp_path, work):
    on_queue(tmp_path, lambda queue: work(Left(queue)))


def test_a_turn_that_lives_goes_on(tmp_path, turns):
    async def work(host):
        id_ = await host.row(delivering="1")
        (turns / "1").write_text("started\n")
        host.live("m", "1")
        await host.recovered()
        [(turn, mind)] = host.exec.turns
        assert (turn.delivery.id, turn.live.session, turn.phase) == (id_, "main", Phase.RUNNING)
        assert (turn.description, mind.name, turn.resident) == ("as listed", "m", None)
        assert not turn.live.takes_input
        assert turn.resumed
        assert abs(turn.since - now_ms()) < 10_000
        assert host.parts.live.by_id("1") is turn
        assert (host.queued(), (await host.now(id_)).state) == (0, State.DELIVERING)
        assert host.parts.ledger.floor == 1

    left(tmp_path, work)


@pytest.mark.parametrize("marked", ["1", None])
def test_a_row_in_a_turn_does_not_expire_nor_wait_for_its_caller(tmp_path, turns, marked):
    async def work(host):
        soon = now_ms() + 60_000
        id_ = await host.row(delivering=marked, kind=Kind.RUN, expires_at=soon)
        host.live("m", "1")
        await host.recovered()
        assert host.parts.live.by_id("1").delivery.id == id_
        assert host.parts.ledger.expires_in(Now(0)) is None
        assert host.parts.run_clients.unpark(id_) is None

    left(tmp_path, work)


@pytest.mark.parametrize(
    ("record", "state", "attempts"),
    [("started\nexit 0\n", State.DONE, 0), (None, State.QUEUED, 1), ("", State.QUEUED, 0)],
)
def test_a_turn_whose_scope_is_gone_ends_by_its_record(tmp_path, turns, record, state, attempts):
    async def work(host):
        id_ = await host.row(delivering="1")
        if record is not None:
            (turns / "1").write_text(record)
        await host.recovered()
        row = await host.now(id_)
        assert (row.state, row.attempts, host.queued()) == (state, attempts, state is State.QUEUED)
        assert host.exec.turns == []
        waits = host.parts.backlog.paused(row.mind, row.session)
        assert (waits is not None) == (attempts > 0), "the host's failure waits, first of its session"
        assert recovery.keeps_place(row) == (attempts > 0), "also after another start"
        assert (turns / "1").exists() == (record == "")

    left(tmp_path, work)


@pytest.mark.parametrize("record", [None, "started\nsignal 15\n", "started\nexit 0\n"])
def test_what_a_shutdown_cut_short_runs_again_and_counts_no_attempt(tmp_path, turns, record):
    async def work(host):
        cut = await host.row(delivering="1")
        run = await host.row(delivering="2", kind=Kind.RUN)
        leave_mark()
        if record is not None:  # of a soft reboot
            (turns / "1").write_text(record)
        await host.recovered()
        row = await host.now(cut)
        assert (row.state, row.attempts, row.result["outcome"]) == (State.QUEUED, 0, "host_down")
        assert (host.queued(), host.parts.backlog.later) == (1, 0), "at once"
        assert (await host.now(run)).state is State.CANCELLED, "its caller is gone"
        assert not paths.WENT_DOWN.exists()
        assert record is None or "started" not in (turns / "1").read_text(), "the next turn has that name"

    left(tmp_path, work)


def test_the_mark_is_removed_off_the_event_loop(tmp_path, turns, monkeypatch):
    """The disk may stall for minutes."""
    places, unlink = [], os.unlink

    def noted(path, **more):
        places.append((os.fspath(path), threading.current_thread() is threading.main_thread()))
        unlink(path, **more)

    async def work(host):
        leave_mark()
        await host.recovered()

    monkeypatch.setattr(os, "unlink", noted)
    left(tmp_path, work)
    assert (os.fspath(paths.WENT_DOWN), False) in places


def test_a_resident_minds_turn_that_ended_with_the_host_is_posted_again_whole(tmp_path, turns):
    async def work(host):
        rows = [await host.row("r", delivering="1", posted=True) for _ in range(2)]
        if marked:
            leave_mark()
        await host.recovered()
        for id_ in rows:
            row = await host.now(id_)
            assert (row.state, row.attempts) == (State.QUEUED, 0 if marked else 1)

    marked = True
    left(tmp_path, work)
    marked = False
    (tmp_path / "other").mkdir()
    left(tmp_path / "other", work)


def test_a_row_that_could_not_be_started_before_its_mark_was_stored(tmp_path, turns):
    async def work(host):
        id_ = await host.row()
        (turns / "1").write_text("not_started no such file\n")
        await host.recovered()
        row = await host.now(id_)
        assert (row.state, row.attempts, row.result["outcome"]) == (State.QUEUED, 1, "not_started")

    left(tmp_path, work)


@pytest.mark.parametrize("lives", [True, False])
def test_a_row_that_ran_before_its_mark_was_stored(tmp_path, turns, lives):
    async def work(host):
        id_ = await host.row()
        (turns / "1").write_text("" if lives else "started\nexit 0\n")
        if lives:
            host.live("m", "1")
        await host.recovered()
        assert (await host.now(id_)).state is (State.DELIVERING if lives else State.DONE)
        assert (host.queued(), len(host.exec.turns)) == (0, int(lives))

    left(tmp_path, work)


@pytest.mark.parametrize("name", ["1", "1.3", "9", "x1"])
def test_a_record_of_a_turn_that_never_ran_is_removed(tmp_path, turns, name):
    async def work(host):
        id_ = await host.row()
        (turns / name).touch()
        await host.recovered()
        assert not (turns / name).exists()
        assert (host.queued(), (await host.now(id_)).state) == (1, State.QUEUED)
        assert host.parts.ledger.floor == {"9": 9, "x1": 0}.get(name, 1), "ids go on above it"

    left(tmp_path, work)


def test_a_scope_without_a_row_keeps_its_record(tmp_path, turns):
    async def work(host):
        (turns / "9").touch()
        (turns / "3").touch()
        host.live("m", "9")
        await host.recovered()
        assert (turns / "9").exists()
        assert host.parts.ledger.floor == 9

    left(tmp_path, work)


@pytest.mark.parametrize("session", ["s", None])
def test_a_resident_minds_turn_goes_on_though_its_row_is_lost(tmp_path, turns, session):
    async def work(host):
        folded = await host.row("r", delivering="9", posted=True)
        first = "" if session is None else 'session "s"\n'
        (turns / "9").write_text(f"{first}started\nanchor 5\n")
        host.live("r", "9")
        await host.recovered()
        [(turn, mind)] = host.resident.turns
        assert (turn.delivery, turn.live.session, turn.live.id) == (None, session or "main", "9")
        assert (turn.phase, turn.description, mind.name) == (Phase.RUNNING, "as listed", "r")
        assert (turn.resident.posted, turn.live.takes_input) == (True, True)
        assert [row.id for row, _ in turn.folded] == [folded], "what went into it is not lost"
        assert [*host.parts.live] == [turn]
        assert host.parts.ledger.floor == 9
        assert (turns / "9").exists(), "the next guard follows it, too"

    left(tmp_path, work)


@pytest.mark.parametrize("posted", [True, False])
def test_a_resident_minds_turn_goes_on_with_what_folded_into_it(tmp_path, turns, posted):
    async def work(host):
        first = await host.row("r", delivering="1", posted=posted)
        taken = await host.row("r", delivering="1", posted=True)
        unsure = await host.row("r", delivering="1")
        (turns / "1").write_text("started\nanchor 5\n")
        host.live("r", "1")
        await host.recovered()
        [(turn, _)] = host.resident.turns
        assert (turn.delivery.id, turn.resident.posted, turn.live.takes_input) == (first, posted, True)
        assert [row.id for row, _ in turn.folded] == [taken]
        assert host.parts.backlog.first_in("r", "main") == Row(unsure, "r", "main")
        assert (await host.now(unsure)).attempts == 0

    left(tmp_path, work)


def test_what_folded_into_a_turn_that_is_gone_ends_or_comes_again(tmp_path, turns):
    async def work(host):
        taken = await host.row("r", delivering="77", posted=True)
        unsure = await host.row("r", delivering="77")
        await host.recovered()
        row = await host.now(taken)
        assert (row.state, row.result["outcome"]) == (State.DONE, "gone")
        assert (await host.now(unsure)).state is State.QUEUED
        assert host.queued() == 1

    left(tmp_path, work)


def test_queued_rows_keep_their_kinds_attempts_and_expiry_and_runs_wait_for_their_callers(tmp_path, turns):
    async def work(host):
        soon = now_ms() + 60_000
        script = await host.row(session="$script:x:main", kind=Kind.SCRIPT, expires_at=soon)
        run = await host.row(session="r", kind=Kind.RUN)
        await host.queue.write(
            lambda db: db.execute("UPDATE deliveries SET attempts = 3 WHERE id = ?", (script,))
        )
        await host.recovered()
        first = host.parts.backlog.next()
        assert (first.id, first.kind) == (script, Kind.SCRIPT)
        assert host.parts.ledger.attempts(script) == 3
        assert host.parts.ledger.expires_in(Now(0)) == soon
        assert host.queued() == 1
        assert host.parts.run_clients.unpark(run).kind is Kind.RUN
        assert host.parts.ledger.loaded == run
        assert host.parts.backlog.fresh() == []

    left(tmp_path, work)


def test_a_mark_that_was_set_by_hand(tmp_path, turns):
    async def work(host):
        id_ = await host.row()
        await host.queue.write(
            lambda db: db.execute("UPDATE deliveries SET state = 'delivering', attempts = 2")
        )
        (turns / f"{id_}.2").write_text("started\nexit 0\n")
        await host.recovered()
        row = await host.now(id_)
        assert (row.state, row.turn, row.attempts) == (State.DONE, f"{id_}.2", 2)

    left(tmp_path, work)


def test_no_row_is_lost_while_the_backlog_is_asked_meanwhile(tmp_path, turns, monkeypatch):
    """Rows came due later than those before them, and a timer asks for the next: 1 to 5 of 20,000 were lost."""
    rows, slice_ = 6_000, 300
    monkeypatch.setattr(recovery, "SLICE", slice_)

    async def work(host):
        far = now_ms() + 10**9

        def fill(db):
            db.execute("INSERT INTO payloads (id, body) VALUES (1, x'7b7d')")
            db.executemany(
                "INSERT INTO deliveries (id, mind, session, state, kind, created_at, not_before, expires_at,"
                " payload) VALUES (?, 'm', ?, 'queued', 'message', 1, ?, 0, 1)",
                ((id_, f"s{id_ % 7}", far - id_) for id_ in range(1, rows + 1)),
            )

        await host.queue.write(fill)
        asked, sizes = 0, set()

        async def poll():
            nonlocal asked
            while True:
                host.parts.backlog.due_in(Now(0))
                sizes.add(host.parts.backlog.later)
                asked += 1
                await asyncio.sleep(0)

        polling = asyncio.create_task(poll())
        await host.recovered()
        polling.cancel()
        assert asked > rows / slice_, "it was asked between the slices"
        assert len(sizes) > 5
        found = []
        backlog: Backlog = host.parts.backlog
        assert backlog.later == rows
        for row in backlog.due(Now(far)):
            found.append(row.id)
        assert found == list(range(1, rows + 1))

    left(tmp_path, work)


def test_nothing_starts_before_the_backlog_is_loaded(tmp_path, turns):
    async def work(host):
        await host.row()
        dispatcher, begun = host.parts.dispatcher, []
        host.parts.starter.begin = lambda row, now: begun.append(row.id) or host.parts.rows.take(row) or True
        await host.recovered()
        dispatcher.pump()
        assert begun == []
        dispatcher.open()
        assert begun == [1]
        dispatcher.close()
        await host.row()
        dispatcher.admit([await host.now(2)])
        assert begun == [1], "nor once the guard stops"

    left(tmp_path, work)
