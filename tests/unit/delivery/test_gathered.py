"""What becomes of gathered rows over a restart, when one is cancelled, and when the card takes no batch."""

import asyncio
import sqlite3

import pytest
from gathering import SHORT, hosted, message
from onqueue import failure, on_queue

from hostguard.core.clock import Now, now_ms
from hostguard.core.errors import Problem
from hostguard.core.model import State
from hostguard.delivery import batch_rows
from hostguard.store import deliveries


def test_after_a_restart_the_buffers_are_as_they_were(tmp_path):
    async def before(host):
        await host.send(message("old", batch=SHORT, created_at=now_ms() - 60_000))
        host.batcher.close()
        late = message("later", "eve", session="t", batch={**SHORT, "max_wait_s": 60, "debounce_s": 60})
        await host.store(late)
        trigger = message("now", session="u")  # killed before it went out
        await host.store(trigger)

    async def after(host):
        assert await host.contents() == [["old"], ["now"]]
        assert host.batcher.count("bob") == 1
        await host.send(message("now", session="t"))
        assert (await host.contents())[2:] == [["later", "now"]]

    async def again(host):
        assert len(await host.batches()) == 3
        assert host.batcher.count("bob") == 0

    hosted(tmp_path, before)
    hosted(tmp_path, after)
    hosted(tmp_path, again)


def test_a_clock_that_was_set_back_lets_nothing_wait_longer(tmp_path):
    async def before(host):
        host.batcher.close()
        new = message("1", batch=SHORT, created_at=now_ms() + 3_600_000)
        await host.store(new)

    async def after(host):
        assert await host.out() == [["1"]]

    hosted(tmp_path, before)
    hosted(tmp_path, after)


def test_a_batch_takes_no_more_bytes_for_other_letters(tmp_path):
    async def work(host):
        await host.send(message("grün"))
        await host.send(message("now"))
        ((row, _),) = await host.batches()
        _, raw = await host.queue.read(lambda db: deliveries.with_payload(db, row.id))
        assert "grün".encode() in raw

    hosted(tmp_path, work)


def test_a_cancelled_message_does_not_go_out(tmp_path):
    async def work(host):
        ids = [await host.send(message(text)) for text in "123"]
        await host.manager.parts.deliveries.cancel(ids[1])
        assert host.batcher.count("bob") == 2
        await host.send(message("now"))
        assert await host.contents() == [["1", "3", "now"]]

    hosted(tmp_path, work)


def test_one_cancelled_as_its_batch_goes_out_counts_once(tmp_path):
    async def work(host):
        id_ = await host.send(message("1"))
        now = await host.store(message("now"))
        submit = host.queue.submit

        def submit_and_let_go(op, **more):
            host.queue.submit = submit
            write = submit(op, **more)
            host.batcher.add(now, message("now").payload)  # its batch follows the cancellation to the card
            return write

        host.queue.submit = submit_and_let_go
        assert (await host.manager.parts.deliveries.cancel(id_)).state is State.CANCELLED
        assert await host.contents() == [["now"]]
        assert host.batcher.count("bob") == 0
        assert (await host.row(now.id)).state is State.BATCHED

    hosted(tmp_path, work)


def test_one_that_went_out_since_it_was_read_is_not_cancelled(tmp_path):
    async def work(host):
        id_ = await host.send(message("1"))
        read = host.queue.read

        async def read_and_let_go(op):
            host.queue.read = read
            found = await read(op)
            await host.send(message("now"))
            await host.stored()
            return found

        host.queue.read = read_and_let_go
        with pytest.raises(Problem, match=f"{id_} is batched already"):
            await host.manager.parts.deliveries.cancel(id_)
        assert await host.contents() == [["1", "now"]]
        assert host.batcher.count("bob") == 0

    hosted(tmp_path, work)


def no_memory_for(size):
    enqueue = deliveries.enqueue

    def fail(db, new, *args, **more):
        if len(new.payload) > size:
            raise failure(sqlite3.SQLITE_NOMEM)
        return enqueue(db, new, *args, **more)

    return fail


def test_a_batch_whose_end_is_a_bug_holds_up_nothing(tmp_path, monkeypatch):
    """Its rows wait for the next guard; what came later goes on."""

    async def work(host):
        row = await host.store(message("now"))
        with monkeypatch.context() as patch:
            patch.setattr(deliveries, "enqueue", lambda *_, **__: 1 / 0)
            host.batcher.add(row, message("now").payload)
            await host.stored()
        assert host.batcher.count("bob") == 0
        assert len(host.queue.faults) == 1
        await host.send(message("b now"))
        assert await host.contents() == [["b now"]]
        assert (await host.row(row.id)).state is State.BATCHING

    hosted(tmp_path, work)


def test_a_batch_that_cannot_be_stored_holds_up_those_behind_it(tmp_path, monkeypatch):
    large = "a" * 920  # with any other one more than payload_max

    async def work(host):
        await host.send(message(large))
        with monkeypatch.context() as patch:
            patch.setattr(deliveries, "enqueue", no_memory_for(600))
            await host.send(message("b"))
            await host.send(message("now"))
            await asyncio.sleep(0.3)
            assert host.batcher.count("bob") == 3
        assert await host.contents() == [[large], ["b", "now"]]

    hosted(tmp_path, work, payload_max=1000)


def test_nothing_goes_out_where_all_was_cancelled(tmp_path):
    async def work(queue):
        _, (row,) = await queue.write(lambda db: deliveries.enqueue(db, message()))
        await queue.write(
            lambda db: deliveries.close(db, [row.id], State.CANCELLED, 1, "by request", State.BATCHING)
        )
        return await queue.write(lambda db: batch_rows.flush(db, [row.id], False, Now(1), 0))

    assert on_queue(tmp_path, work) is None


def test_looking_for_gathered_rows_uses_their_index(tmp_path):
    async def work(queue):
        def plan(db):
            said = []
            db.set_trace_callback(said.append)
            list(batch_rows.waiting(db))
            db.set_trace_callback(None)
            return str(db.execute(f"EXPLAIN QUERY PLAN {said[0]}").fetchall())

        return await queue.write(plan)

    assert "deliveries_kept" in on_queue(tmp_path, work)
