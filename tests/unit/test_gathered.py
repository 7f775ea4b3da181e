"""What becomes of gathered rows over a restart, when one is cancelled, and when the card takes no batch."""

import asyncio

import pytest
from gathering import SHORT, hosted, message
from onqueue import on_queue

from hostguard import batched, deliveries
from hostguard.clock import now_ms
from hostguard.model import State
from hostguard.problems import Problem


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


def test_a_cancelled_message_does_not_go_out(tmp_path):
    async def work(host):
        ids = [await host.send(message(text)) for text in "123"]
        row = await host.row(ids[1])
        host.batcher.taken_back(row)
        await host.manager.ledger.close(row.row, State.CANCELLED, "by request")
        assert host.batcher.count("bob") == 2
        await host.send(message("now"))
        assert await host.contents() == [["1", "3", "now"]]

    hosted(tmp_path, work)


def test_one_cancelled_as_its_batch_goes_out_counts_once(tmp_path):
    async def work(host):
        id_ = await host.send(message("1"))
        row = await host.row(id_)
        close = host.manager.ledger.close(row.row, State.CANCELLED, "by request")  # ahead of the batch
        sent = await host.send(message("now"))
        await close
        assert await host.contents() == [["now"]]
        host.batcher.taken_back(row)
        assert host.batcher.count("bob") == 0
        assert [(await host.row(i)).state for i in (id_, sent)] == [State.CANCELLED, State.BATCHED]

    hosted(tmp_path, work)


def test_one_that_is_going_out_is_not_cancelled(tmp_path):
    async def work(host):
        row = await host.row(await host.send(message("1")))
        sent = await host.send(message("now"))  # its batch is on its way to the card
        with pytest.raises(Problem, match=f"{row.id} is going out in a batch"):
            host.batcher.taken_back(row)
        assert await host.contents() == [["1", "now"]]
        assert (await host.row(sent)).state is State.BATCHED

    hosted(tmp_path, work)


def test_a_batch_that_cannot_be_stored_holds_up_those_behind_it(tmp_path):
    large = "a" * 920  # with any other one more than payload_max

    async def work(host):
        await host.send(message(large))
        await host.queue.write(
            lambda db: db.execute(
                "CREATE TEMP TRIGGER full BEFORE INSERT ON payloads WHEN length(NEW.body) > 600"
                " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
            )
        )
        await host.send(message("b"))
        await host.send(message("now"))
        await asyncio.sleep(0.3)
        assert host.batcher.count("bob") == 3
        await host.queue.write(lambda db: db.execute("DROP TRIGGER full"))
        assert await host.contents() == [[large], ["b", "now"]]

    hosted(tmp_path, work, payload_max=1000)


def test_nothing_goes_out_where_all_was_cancelled(tmp_path):
    async def work(queue):
        _, (row,) = await queue.write(lambda db: deliveries.enqueue(db, message()))
        await queue.write(lambda db: deliveries.close(db, [row.id], State.CANCELLED, 1, "by request"))
        return await queue.write(lambda db: batched.flush(db, [row.id], False, 1, 0))

    assert on_queue(tmp_path, work) is None


def test_looking_for_gathered_rows_uses_their_index(tmp_path):
    async def work(queue):
        def plan(db):
            said = []
            db.set_trace_callback(said.append)
            list(batched.waiting(db))
            db.set_trace_callback(None)
            return str(db.execute(f"EXPLAIN QUERY PLAN {said[0]}").fetchall())

        return await queue.write(plan)

    assert "deliveries_kept" in on_queue(tmp_path, work)
