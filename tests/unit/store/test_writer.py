"""The queue on a real file: durability of the answer, group commit, refusals, damage, schema."""

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing

import pytest
from onqueue import message, on_queue, put

from hostguard.core.clock import Now
from hostguard.core.model import Kind, Row, State
from hostguard.store import deliveries, writer
from hostguard.store.deliveries import Full, KeyReused, WrongState
from hostguard.store.history import trim
from hostguard.store.schema import SCHEMA, SchemaTooNew, migrate, version
from hostguard.store.sums import row_sum


def commits(queue):
    """WAL frames that end a transaction, from the file itself: one per commit."""
    with open(f"{queue.path}-wal", "rb") as wal:
        data = wal.read()
    size = 24 + 1024
    return sum(data[at + 4 : at + 8] != b"\0\0\0\0" for at in range(32, len(data) - size + 1, size))


def test_rows_come_back_as_they_were_given(tmp_path):
    async def work(queue):
        new = message("a", "b", key="k", sender="s", channel="#c", not_before=5, expires_at=9)
        rows, fresh = await put(queue, new)
        assert rows == fresh
        assert [(r.id, r.mind, r.state, r.sender, r.channel) for r in rows] == [
            (1, "a", State.QUEUED, "s", "#c"),
            (2, "b", State.QUEUED, "s", "#c"),
        ]
        assert await queue.read(lambda db: deliveries.get(db, 2)) == rows[1]
        assert await queue.read(lambda db: deliveries.with_payload(db, 2)) == (rows[1], new.payload)

    on_queue(tmp_path, work)


def test_rows_and_ids_survive(tmp_path):
    async def first(queue):
        await put(queue, message("a", "b"))

    async def second(queue):
        assert await queue.read(lambda db: list(deliveries.queued(db))) == [
            (1, "a", "main", 0, "message", 0, 1000, 0),
            (2, "b", "main", 0, "message", 0, 1000, 0),
        ]
        rows, _ = await put(queue, message("c"))
        assert rows[0].id == 3

    on_queue(tmp_path, first)
    on_queue(tmp_path, second)


def test_a_closed_queue_leaves_one_file(tmp_path):
    kept = []

    async def work(queue):
        kept.append(queue)  # so that it is closed by its own close alone
        await put(queue, message())

    on_queue(tmp_path, work)
    assert [path.name for path in tmp_path.iterdir()] == ["queue.db"]


@pytest.mark.parametrize(("most", "expected"), [(writer.BATCH_MAX, 1), (4, 8)])
def test_many_callers_share_commits(tmp_path, monkeypatch, most, expected):
    monkeypatch.setattr(writer, "BATCH_MAX", most)

    async def work(queue):
        gate, begun = threading.Event(), threading.Event()
        held = queue.submit(lambda db: (begun.set(), gate.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        waiting = [queue.submit(lambda db, i=i: deliveries.enqueue(db, message(f"m{i}"))) for i in range(32)]
        gate.set()
        await held.future
        await asyncio.gather(*(write.future for write in waiting))
        assert commits(queue) == expected

    on_queue(tmp_path, work)


def test_a_refusal_spares_the_others_of_its_batch(tmp_path):
    async def work(queue):
        await put(queue, message(key="k"))
        results = await asyncio.gather(
            put(queue, message(key="k", body=b'{"content":"other"}')), put(queue, message("y")),
            return_exceptions=True,
        )  # fmt: skip
        assert isinstance(results[0], KeyReused)
        assert results[1][0][0].mind == "y"

    on_queue(tmp_path, work)


@pytest.mark.parametrize(
    ("again", "outcome"),
    [
        (message("x", "y", key="k"), [1, 2]),  # the same message: the rows of then
        (message("x", key="k"), [1]),  # the channel has fewer minds by now
        (message("z", key="k"), [3]),  # a key is of one mind
        (
            message("x", "z", key="k"),
            [1, 3],
        ),  # one that got no row then, since its queue was full, gets it now
        (message("x", "y", key="k", body=b'{"content":"z"}'), KeyReused),
    ],
)
def test_idempotency_key(tmp_path, again, outcome):
    async def work(queue):
        await put(queue, message("x", "y", key="k"))
        if outcome is KeyReused:
            with pytest.raises(KeyReused):
                await put(queue, again)
        else:
            rows, fresh = await put(queue, again)
            assert [row.id for row in rows] == outcome
            assert [row.id for row in fresh] == [id_ for id_ in outcome if id_ > 2]

    on_queue(tmp_path, work)


def test_full_queues(tmp_path):
    async def work(queue):
        def send(new, full):
            return queue.write(lambda db: deliveries.enqueue(db, new, full))

        await put(queue, message("x", key="k"))
        rows, fresh = await send(message("x", key="k"), {"x"})
        assert ([row.id for row in rows], fresh) == ([1], []), "what was accepted is not refused afterwards"
        rows, _ = await send(message("x", "y"), {"x"})
        assert [row.mind for row in rows] == ["y"]
        with pytest.raises(Full):
            await send(message("x"), {"x"})

    on_queue(tmp_path, work)


def test_ids_begin_above_the_floor(tmp_path):
    async def work(queue):
        rows, _ = await queue.write(lambda db: deliveries.enqueue(db, message("x", "y"), (), 40))
        assert [row.id for row in rows] == [41, 42]
        rows, _ = await queue.write(lambda db: deliveries.enqueue(db, message("x"), (), 40))
        assert rows[0].id == 43

    on_queue(tmp_path, work)


def test_a_waiting_write_can_be_withdrawn_and_a_taken_one_not(tmp_path):
    async def work(queue):
        gate, begun = threading.Event(), threading.Event()
        taken = queue.submit(lambda db: (begun.set(), gate.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        waiting = queue.submit(lambda db: deliveries.enqueue(db, message()))
        assert queue.withdraw(waiting)
        assert not queue.withdraw(taken)
        gate.set()
        await taken.future
        assert await queue.read(deliveries.last_id) == 0

    on_queue(tmp_path, work)


def test_late_and_foreign_ends_change_nothing(tmp_path):
    async def work(queue):
        await put(queue, message())
        await queue.write(lambda db: deliveries.mark_delivering(db, 1, "1", Now(5), {}))
        for end in (
            lambda db: deliveries.finish(db, 1, "1.1", State.DONE, 0, 9, {}),
            lambda db: deliveries.give_back(db, 1, "1.1", 1, Row(0, "", "", 0), {}),
        ):
            assert await queue.write(end) is False
        assert (await queue.read(lambda db: deliveries.get(db, 1))).state is State.DELIVERING
        assert await queue.write(lambda db: deliveries.finish(db, 1, "1", State.DONE, 0, 9, {"exit": 0}))
        assert not await queue.write(lambda db: deliveries.finish(db, 1, "1", State.DEAD, 9, 9, {}))
        row = await queue.read(lambda db: deliveries.get(db, 1))
        assert (row.state, row.attempts, row.result) == (State.DONE, 0, {"exit": 0})

    on_queue(tmp_path, work)


def test_retry_takes_ended_rows_only(tmp_path):
    async def work(queue):
        await put(queue, message())
        with pytest.raises(WrongState):
            await queue.write(lambda db: deliveries.retry(db, 1, Now(5)))
        with pytest.raises(WrongState):
            await queue.write(lambda db: deliveries.retry(db, 77, Now(5)))
        assert await queue.write(lambda db: deliveries.close(db, [1], State.CANCELLED, 5, "x")) == [1]
        assert (await queue.write(lambda db: deliveries.retry(db, 1, Now(7)))).state is State.QUEUED

    on_queue(tmp_path, work)


def test_history_is_trimmed_but_not_dead_letters_nor_shared_payloads(tmp_path):
    def end(db):
        for id_, state in ((1, "done"), (2, "dead"), (3, "done"), (4, "done")):
            db.execute("UPDATE deliveries SET state = ? WHERE id = ?", (state, id_))

    async def work(queue):
        await put(queue, message("a", "b"))
        for mind in ("c", "d", "e"):
            await put(queue, message(mind))
        await queue.write(end)
        assert await queue.write(lambda db: trim(db, 1)) == 2
        left = await queue.read(lambda db: db.execute("SELECT id, payload FROM deliveries").fetchall())
        assert left == [(2, 1), (4, 4), (5, 5)]
        bodies = await queue.read(lambda db: db.execute("SELECT id FROM payloads ORDER BY id").fetchall())
        assert bodies == [(1,), (4,), (5,)]
        rows, _ = await put(queue, message("f"))
        assert rows[0].id == 6

    on_queue(tmp_path, work)


def test_files_are_private(tmp_path):
    async def work(queue):
        await put(queue, message())
        assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
            name: 0o600 for name in ("queue.db", "queue.db-wal", "queue.db-shm")
        }

    on_queue(tmp_path, work)


def test_what_was_told_survives_kill_9(tmp_path):
    """A child enqueues and prints each id once told; it is killed in the middle."""
    script = textwrap.dedent("""
        import asyncio, pathlib, sys
        from hostguard.store import deliveries
        from hostguard.core.model import Target
        from hostguard.store.writer import Queue
        async def main():
            queue = Queue(pathlib.Path(sys.argv[1]) / "queue.db"); await queue.open()
            async def one():
                while True:
                    new = deliveries.New([Target("x", "main")], b"{}", 1)
                    rows, _ = await queue.write(lambda db: deliveries.enqueue(db, new))
                    print(rows[0].id, flush=True)
            await asyncio.gather(*(one() for _ in range(8)))
        asyncio.run(main())
    """)
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    told = [int(child.stdout.readline()) for _ in range(200)]
    child.kill()
    told += [int(line) for line in child.stdout.read().split("\n")[:-1]]
    child.wait()
    child.stdout.close()

    async def work(queue):
        rows = await queue.read(lambda db: {row[0] for row in deliveries.queued(db)})
        assert set(told) <= rows

    on_queue(tmp_path, work)


def test_a_write_that_hangs_keeps_no_process_alive(tmp_path):
    """As on a dead card: the guard must be able to end."""
    script = textwrap.dedent("""
        import asyncio, pathlib, sys, threading
        from hostguard.store.writer import Queue
        async def main():
            queue = Queue(pathlib.Path(sys.argv[1]) / "queue.db"); await queue.open()
            begun = threading.Event()
            queue.submit(lambda db: (begun.set(), threading.Event().wait()))
            await asyncio.to_thread(begun.wait)
        asyncio.run(main())
    """)
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=20)


def test_a_newer_schema_is_left_alone(tmp_path):
    db = sqlite3.connect(tmp_path / "queue.db")
    db.execute("PRAGMA user_version=99")
    db.close()
    before = (tmp_path / "queue.db").read_bytes()

    async def work(queue):
        raise AssertionError

    with pytest.raises(SchemaTooNew, match="schema 99"):
        on_queue(tmp_path, work)
    assert (tmp_path / "queue.db").read_bytes() == before


def test_migration_is_one_transaction_and_runs_once(tmp_path):
    db = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    migrate(db, 0)
    assert version(db, tmp_path / "q.db") == SCHEMA
    migrate(db, SCHEMA)
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(db, 0)
    assert not db.in_transaction
    db.close()


def test_the_user_of_an_older_row_is_not_known_and_a_damaged_row_stays_so(tmp_path):
    with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as db:
        migrate(db, 0, 6)
        for id_, off in ((1, 0), (2, 1)):
            row = (id_, "x", "$file:/f", "queued", "file", None, "eve", None, 1, 0, 0, 0, None, 0, 0, "{}")
            row = (*row, 0, 5, 6, 7, id_)
            db.execute("INSERT INTO payloads VALUES (?, X'7B7D', row_sum(?, X'7B7D'))", (id_, id_))
            marks = ", ".join("?" * (len(row) + 1))
            db.execute(f"INSERT INTO deliveries VALUES ({marks})", (*row, row_sum(*row) + off))

    async def work(queue):
        assert queue.notice is not None, "the damaged one was set aside"
        [found] = await queue.read(lambda db: deliveries.select(db, (), None, 0, 9))
        assert (found.id, found.accepted, found.due, found.started, found.uid) == (1, 5, 6, 7, None)

    on_queue(tmp_path, work)


def test_the_event_loop_never_touches_the_file(tmp_path):
    async def work(queue):
        threads = set()
        await queue.write(lambda db: threads.add(threading.current_thread().name))
        await queue.read(lambda db: threads.add(threading.current_thread().name))
        assert all(name.startswith("queue-") for name in threads)
        assert len(threads) == 2

    on_queue(tmp_path, work)


def test_kinds_are_kept(tmp_path):
    async def work(queue):
        await put(queue, message(kind=Kind.RUN))
        assert [row.kind for row in await queue.read(deliveries.special)] == [Kind.RUN]
        assert await queue.read(lambda db: list(deliveries.queued(db))) == []

    on_queue(tmp_path, work)


def test_a_commit_is_synchronous_if_one_of_its_writes_has_to_be_durable(tmp_path):
    def level(db):
        return db.execute("PRAGMA synchronous").fetchone()[0]

    async def work(queue):
        normal, full = 1, 2
        assert await queue.write(level) == full
        assert await queue.write(level, durable=False) == normal
        go, begun = threading.Event(), threading.Event()
        held = queue.submit(lambda db: (begun.set(), go.wait(10)), durable=False)
        await asyncio.to_thread(begun.wait, 10)
        together = [queue.submit(level, durable=durable) for durable in (False, True)]
        go.set()
        await held.future
        assert [await write.future for write in together] == [full, full]

    on_queue(tmp_path, work)
