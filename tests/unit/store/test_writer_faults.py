"""The queue on a damaged file and on a full disk."""

import asyncio
import contextlib
import os
import resource
import sqlite3

import pytest
from onqueue import failure, message, on_queue, put
from until import until

from hostguard.core.model import State
from hostguard.store import deliveries, history
from hostguard.store.connection import BUSY_MS, ROOM
from hostguard.store.settings import stored
from hostguard.store.writer import RETRY_S, Faulty, Locked, Unavailable


def damage(path):
    """Spoil the pages behind the header, as a bad card does."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))


def test_a_damaged_file_is_kept_aside_and_said(tmp_path):
    async def fill(queue):
        for i in range(50):
            await put(queue, message(f"m{i}"))

    async def look(queue):
        assert "damaged" in queue.notice
        kept = [path for path in tmp_path.iterdir() if ".damaged-" in path.name]
        assert any(str(path) in queue.notice for path in kept)
        assert await queue.read(deliveries.last_id) == 0
        await put(queue, message())

    async def again(queue):
        assert await queue.read(deliveries.last_id) == 1
        return queue.notice

    on_queue(tmp_path, fill)
    damage(tmp_path / "queue.db")
    on_queue(tmp_path, look)
    assert "damaged" in on_queue(tmp_path, again)
    for path in tmp_path.glob("*.damaged-*"):
        path.unlink()
    assert on_queue(tmp_path, again) is None


def test_not_a_database_is_kept_aside(tmp_path):
    (tmp_path / "queue.db").write_bytes(b"my shopping list" * 1000)

    async def look(queue):
        assert "kept as" in queue.notice

    on_queue(tmp_path, look)
    assert any(path.read_bytes().startswith(b"my shopping") for path in tmp_path.glob("*.damaged-*"))


def test_damage_met_at_work_is_told_and_checked_at_the_next_start(tmp_path):
    async def work(queue):
        told = []
        queue.damaged.subscribe(lambda fact: told.append(fact.text))

        def read(db):
            raise _corrupt()

        with pytest.raises(Unavailable):
            await queue.read(read)
        await asyncio.sleep(0)
        assert "damaged" in told[0]
        assert (tmp_path / "queue.db.suspect").exists()

    async def fine(queue):
        assert queue.notice is None
        return (tmp_path / "queue.db.suspect").exists()

    on_queue(tmp_path, work)
    assert on_queue(tmp_path, fine), "a check found nothing: that is remembered for once"
    assert not on_queue(tmp_path, fine)


def test_damage_met_again_after_a_check_found_nothing_moves_the_file_aside(tmp_path):
    """Otherwise the guard would stop and start for ever."""

    async def work(queue):
        def read(db):
            raise _corrupt()

        with pytest.raises(Unavailable):
            await queue.read(read)
        return queue.notice

    assert [on_queue(tmp_path, work) for _ in range(2)] == [None, None]
    assert "kept as" in on_queue(tmp_path, work)


@pytest.mark.parametrize("how", ["read", "write"])
def test_damage_is_told_although_the_folder_takes_no_mark(tmp_path, how):
    async def work(queue):
        told = []
        queue.damaged.subscribe(lambda fact: told.append(fact.text))
        (tmp_path / "queue.db.suspect").symlink_to(tmp_path / "none" / "there")

        def damaged(db):
            raise _corrupt()

        with pytest.raises(Unavailable):
            await (queue.read(damaged) if how == "read" else queue.write(damaged))
        await asyncio.sleep(0)
        assert "damaged" in told[0]
        await asyncio.wait_for(queue.write(lambda db: None), 5)  # the writing thread lives

    on_queue(tmp_path, work)


def test_what_looks_like_damage_while_the_card_fails_is_not_taken_for_it(tmp_path):
    """Of a file that it cannot read SQLite may say that it is malformed."""

    async def work(queue):
        told = []
        queue.damaged.subscribe(lambda fact: told.append(fact.text))

        def damaged(db):
            raise _corrupt()

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))
        with pytest.raises(Unavailable):
            await put(queue, message())
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        with pytest.raises(Unavailable, match="disk I/O error"):
            await queue.read(damaged)
        with pytest.raises(Unavailable):
            await queue.write(damaged)
        await put(queue, message())
        assert told == []
        with pytest.raises(Unavailable):
            await queue.write(damaged)
        await asyncio.sleep(0)
        assert "damaged" in told[0]

    on_queue(tmp_path, work)


def _corrupt():
    with (
        contextlib.closing(sqlite3.connect("/etc/passwd")) as db,
        pytest.raises(sqlite3.DatabaseError) as caught,
    ):
        db.execute("SELECT * FROM sqlite_master")
    return caught.value


def test_a_full_disk_refuses_and_recovers(tmp_path):
    """RLIMIT_FSIZE makes the write itself fail, as a full disk does."""

    async def work(queue):
        await put(queue, message())
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))
        kept = queue.submit(lambda db: deliveries.enqueue(db, message("kept")), keep=True)
        with pytest.raises(Unavailable):
            await put(queue, message(body=b"x" * 100_000))
        assert not kept.future.done()
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        rows, _ = await asyncio.wait_for(kept.future, 10)
        assert (rows[0].mind, rows[0].id) == ("kept", 2)

    on_queue(tmp_path, work)


def test_trouble_lasts_until_the_file_takes_a_write_and_is_said_once(tmp_path, caplog):
    async def work(queue):
        told = []
        queue.trouble_changed.subscribe(lambda fact: told.append(fact.trouble))
        await put(queue, message())
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))
        for _ in range(3):
            with pytest.raises(Unavailable):
                await put(queue, message())
        await asyncio.sleep(2 * RETRY_S)
        assert queue.trouble is not None, "an empty look is no write"
        assert told == [queue.trouble]
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        for _ in range(100):
            await asyncio.sleep(RETRY_S / 10)
            if queue.trouble is None:
                break
        assert told[1:] == [None], "nobody need write for it"
        said = [record.getMessage() for record in caplog.records]
        assert ["cannot write" in line for line in said] == [True, False]
        await asyncio.sleep(0)

    on_queue(tmp_path, work)


def test_trouble_lasts_while_only_small_writes_fit(tmp_path):
    """What ends would not fit, and to start and hold by turns would run what waits before they are stored."""

    async def work(queue):
        told = []
        queue.trouble_changed.subscribe(lambda fact: told.append(fact.trouble))
        await put(queue, message())
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        left = (tmp_path / "queue.db-wal").stat().st_size + ROOM // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (left, limit[1]))
        with pytest.raises(Unavailable):
            await put(queue, message(body=b"x" * 2 * ROOM))
        await put(queue, message("small"))
        await asyncio.sleep(2.5 * RETRY_S)
        await put(queue, message("small"))
        assert told == [queue.trouble] != [None]
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        await put(queue, message("small"))
        await until(lambda: told[1:] == [None])
        assert await queue.read(stored) == {}, "what was written to see if there is room"

    on_queue(tmp_path, work)


def test_a_file_that_another_process_holds_costs_one_wait_for_all(tmp_path):
    async def work(queue):
        await put(queue, message())
        other = sqlite3.connect(queue.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        begun = asyncio.get_running_loop().time()
        results = await asyncio.gather(
            *(put(queue, message(f"m{i}")) for i in range(6)), return_exceptions=True
        )
        took = asyncio.get_running_loop().time() - begun
        other.close()
        assert {type(result) for result in results} == {Locked}
        assert took < 3 * BUSY_MS / 1000  # not one wait each
        await put(queue, message("later"))

    on_queue(tmp_path, work)


def _divide(db):
    raise ZeroDivisionError("a secret")


def _misspelled(db):
    db.execute("UPDATE deliveries SET sate = 'a secret'")


def _duplicate(db):
    db.execute("INSERT INTO settings (name, value) VALUES ('a secret', '1'), ('a secret', '2')")


@pytest.mark.parametrize(
    ("wrong", "bug"),
    [
        (_divide, "ZeroDivisionError in _divide (test_writer_faults.py:"),
        (_misspelled, "SQLITE_ERROR in _misspelled (test_writer_faults.py:"),
        (_duplicate, "SQLITE_CONSTRAINT_PRIMARYKEY in _duplicate (test_writer_faults.py:"),
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_a_bug_of_a_write_is_its_own_and_told_once(tmp_path, caplog, keep, wrong, bug):
    """It was tried again each second for ever, row by row, with a traceback each."""

    async def work(queue):
        results = await asyncio.gather(
            *(queue.write(wrong, keep=keep) for _ in range(3)), put(queue, message()), return_exceptions=True
        )
        assert [type(result) for result in results[:3]] == [Faulty] * 3
        assert results[3][0][0].id == 1, "the rest goes on"
        queue.submit(wrong, keep=True)  # nobody awaits it
        await asyncio.sleep(2.2 * RETRY_S)
        await put(queue, message())
        [(told, count)] = queue.faults.items()
        assert told.startswith(bug)
        assert count == 4, "none was tried again"
        assert queue.trouble is None

    on_queue(tmp_path, work)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.startswith("a change is given up") for line in lines] == [True]
    assert "secret" not in caplog.text


def test_a_bug_in_trimming_comes_again_only_with_more_ends(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(history, "trim", lambda db, rows: calls.append(rows) or 1 / 0)
    monkeypatch.setattr(history, "TRIM_EVERY", 2)

    async def work(queue):
        queue.keep_history(5)
        await put(queue, message())
        first = len(calls)
        assert first > 0
        for _ in range(6):
            await put(queue, message())
        assert len(calls) == first
        await queue.write(lambda db: deliveries.close(db, [1, 2], State.CANCELLED, 1, "x"))
        await put(queue, message())
        second = len(calls)
        assert second > first
        for _ in range(6):
            await put(queue, message())
        assert len(calls) == second

    on_queue(tmp_path, work)


def test_a_queue_that_is_closed_is_unavailable(tmp_path):
    async def work(queue):
        await queue.close()
        with pytest.raises(Unavailable, match="the guard stops"):
            await queue.read(deliveries.last_id)
        queue.close = lambda: asyncio.sleep(0)  # it is

    on_queue(tmp_path, work)


def test_a_caller_that_left_is_passed_over(tmp_path):
    async def work(queue):
        gone = queue.submit(lambda db: deliveries.enqueue(db, message()))
        gone.future.cancel()
        await put(queue, message())
        assert await queue.read(deliveries.last_id) == 2

    on_queue(tmp_path, work)


def test_a_write_that_never_succeeds_is_lost_at_the_stop_and_said(tmp_path, caplog):
    async def work(queue):
        def fails(db):
            raise failure(sqlite3.SQLITE_IOERR)

        queue.submit(fails, keep=True)
        await put(queue, message())

    on_queue(tmp_path, work)
    assert "1 writes to" in caplog.text


def test_a_queue_that_cannot_be_opened_says_why(tmp_path):
    (tmp_path / "queue.db").mkdir()
    with pytest.raises(Unavailable, match=r"cannot open .*queue.db: "):
        on_queue(tmp_path, lambda queue: None)
