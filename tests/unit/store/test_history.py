"""The history keeps its size in whatever way rows end, on a real queue; a turn is played by its two writes."""

from __future__ import annotations

import pytest
from onqueue import message, on_queue, put, to
from until import until

from hostguard.core.clock import Now
from hostguard.core.model import Row, State
from hostguard.delivery import batch_rows, quarantine_rows
from hostguard.delivery.quarantine_rows import Move
from hostguard.store import deliveries, history
from hostguard.store.deliveries import New
from hostguard.store.history import TRIM_EVERY, History, trim

KEEP = 10


async def ended(queue):
    """How many ended rows there are, once what was handed in is done: a trim comes one commit later."""
    for _ in range(3):
        await queue.write(lambda db: None)
    rows = await queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 10_000))
    return sum(row.state.final and row.state is not State.DEAD for row in rows)


def synchronous(db):
    return db.execute("PRAGMA synchronous").fetchone()[0]


def begin(queue, id_):
    return queue.write(lambda db: deliveries.mark_delivering(db, id_, str(id_), Now(1), {}), durable=False)


def finish(queue, id_, state=State.DONE):
    return queue.write(lambda db: deliveries.finish(db, id_, str(id_), state, 0, 2, {}), durable=False)


async def turns(queue, count):
    for _ in range(count):
        (row,) = (await put(queue, message()))[1]
        await begin(queue, row.id)
        assert await finish(queue, row.id)


def skipped():
    return New(to("x", state=State.SKIPPED, result={"outcome": "filtered"}), b'{"content":1}', 1)


def test_filtered_messages_and_short_lives_leave_no_more_than_the_history(tmp_path):
    """With 10 rows to keep, 1,000 filtered messages and three lives of 60 turns left 1,180."""

    async def filtered(queue):
        queue.keep_history(KEEP)
        for _ in range(1_000):
            await queue.write(lambda db: deliveries.enqueue(db, skipped()), durable=False)
        assert KEEP <= await ended(queue) < KEEP + TRIM_EVERY

    async def life(queue):
        queue.keep_history(KEEP)
        assert await ended(queue) == KEEP, "trimmed at the start"
        await turns(queue, 60)
        assert await ended(queue) == KEEP + 60

    on_queue(tmp_path, filtered)
    for _ in range(3):
        on_queue(tmp_path, life)


async def _cancelled(queue, id_):
    await queue.write(lambda db: deliveries.close(db, [id_], State.CANCELLED, 1, "x"))


async def _expired(queue, id_):
    await queue.write(lambda db: deliveries.close(db, [id_], State.EXPIRED, 1, "x"))


async def _done(queue, id_):
    await begin(queue, id_)
    await finish(queue, id_)


async def _dropped(queue, id_):
    await begin(queue, id_)
    await finish(queue, id_, State.DEAD)
    await queue.write(lambda db: deliveries.drop(db, id_, 1))


async def _batched(queue, id_):
    await queue.write(lambda db: db.execute("UPDATE deliveries SET state = 'batching' WHERE id = ?", (id_,)))
    await queue.write(lambda db: batch_rows.flush(db, [id_], False, Now(1), 0))


async def _archived(queue, id_):
    await queue.write(lambda db: db.execute("UPDATE deliveries SET state = 'gated' WHERE id = ?", (id_,)))
    move = Move(id_, quarantine_rows.archive("x", "why"))
    await queue.write(lambda db: quarantine_rows.move(db, [move], 1))


@pytest.mark.parametrize("end", [_cancelled, _expired, _done, _dropped, _batched, _archived])
def test_a_row_counts_in_whatever_way_it_ends(tmp_path, monkeypatch, end):
    monkeypatch.setattr(history, "TRIM_EVERY", 3)

    async def work(queue):
        queue.keep_history(0)
        for number in range(1, 4):
            (row,) = (await put(queue, message(body=b'{"content":1,"channel":"c"}')))[1]
            await end(queue, row.id)
            assert await ended(queue) == (number if number < 3 else 0 if end is _batched else 1), (
                "all but the newest row, by which ids go on"
            )

    on_queue(tmp_path, work)


def test_what_has_not_ended_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "TRIM_EVERY", 3)

    async def work(queue):
        queue.keep_history(0)
        await turns(queue, 2)
        for _ in range(3):
            (row,) = (await put(queue, message()))[1]
            await begin(queue, row.id)
            await queue.write(
                lambda db, id_=row.id: deliveries.give_back(db, id_, str(id_), 1, Row(0, "", "", 0), {})
            )
            await begin(queue, row.id)
            await finish(queue, row.id, State.DEAD)
        assert await ended(queue) == 2
        await queue.write(lambda db: deliveries.close(db, [1], State.CANCELLED, 1, "x"))
        assert await ended(queue) == 2, "one that has ended ends no second time"
        await turns(queue, 1)
        assert await ended(queue) == 1

    on_queue(tmp_path, work)


def test_nothing_is_dropped_before_it_is_known_how_much_to_keep(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "TRIM_EVERY", 3)

    async def work(queue):
        await turns(queue, 5)
        assert await ended(queue) == 5
        queue.keep_history(2)
        assert await ended(queue) == 2
        queue.keep_history(1)
        assert await ended(queue) == 1, "a reload with fewer rows takes effect at once"

    on_queue(tmp_path, work)


def test_a_large_rest_goes_in_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "TRIM_MAX", 4)

    async def work(queue):
        for _ in range(11):
            await put(queue, skipped())
        queue.keep_history(2)
        await queue.write(lambda db: None)
        assert await ended(queue) == 2

    on_queue(tmp_path, work)

    async def step(queue):
        for _ in range(7):
            await put(queue, skipped())
        assert await queue.write(lambda db: trim(db, 2)) == 4
        assert await queue.write(lambda db: trim(db, 2)) == 3
        assert await queue.write(lambda db: trim(db, 2)) == 0

    on_queue(tmp_path, step)


def test_it_is_trimmed_by_the_second_when_a_step_was_full(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "TRIM_MAX", 2)

    async def work(queue):
        for _ in range(4):
            await put(queue, skipped())
        watched = History()
        await queue.write(lambda db: watched.keep(db, 1))
        assert watched.due
        await queue.write(watched.trim)
        assert not watched.due

    on_queue(tmp_path, work)


def test_trimming_makes_no_disk_flush_at_a_reload(tmp_path):
    levels = []

    async def work(queue):
        keep = queue._history.keep
        queue._history.keep = lambda db, rows: (levels.append(synchronous(db)), keep(db, rows))
        await queue.write(lambda db: None, durable=True)
        queue.keep_history(KEEP)
        await until(lambda: levels)

    on_queue(tmp_path, work)
    normal = 1
    assert levels == [normal]


def test_the_file_itself_has_no_trigger(tmp_path):
    async def work(queue):
        found = await queue.read(lambda db: db.execute("SELECT type FROM sqlite_master").fetchall())
        assert ("table",) in found
        assert ("trigger",) not in found, "an older hostguard opens the file, too"

    on_queue(tmp_path, work)
