"""What each function stores and finds, on a real file."""

from __future__ import annotations

import pytest
from onqueue import message, on_queue, put, to

from hostguard.core.clock import Now
from hostguard.core.model import PENDING, Kind, Row, State
from hostguard.store import deliveries
from hostguard.store.deliveries import New, WrongState


async def stored(queue, *news):
    """Store messages; their rows."""
    return [row for new in news for row in (await put(queue, new))[1]]


async def get(queue, id_):
    return await queue.read(lambda db: deliveries.get(db, id_))


async def begun(queue, id_, turn=None, now=7):
    await queue.write(lambda db: deliveries.mark_delivering(db, id_, turn or str(id_), Now(now), {}))


def test_a_row_that_is_final_from_the_start_has_its_end(tmp_path):
    async def work(queue):
        result = {"outcome": "filtered", "reason": "x"}
        targets = [*to("a", state=State.SKIPPED, result=result), *to("b")]
        skipped, queued = await stored(queue, New(targets, b"{}", 1000))
        assert (skipped.ended_at, queued.ended_at) == (1000, 0)
        assert await get(queue, 1) == skipped
        assert (skipped.result, queued.result) == (result, {})

    on_queue(tmp_path, work)


def test_what_is_not_there_is_none(tmp_path):
    async def work(queue):
        assert await queue.read(deliveries.last_id) == 0
        assert await get(queue, 1) is None
        assert await queue.read(lambda db: deliveries.with_payload(db, 1)) is None

    on_queue(tmp_path, work)


def test_a_row_whose_payload_is_gone_is_damaged(tmp_path):
    async def work(queue):
        await stored(queue, message())
        await queue.write(lambda db: db.execute("DELETE FROM payloads"))
        assert await queue.read(lambda db: deliveries.with_payload(db, 1)) is None
        assert "1 row (deliveries 1)" in queue.notice

    on_queue(tmp_path, work)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("2.1", True),
        ("2", False),
        ("2.2", False),
        ("x", False),
        ("", False),
        ("9" * 18, False),
        ("9" * 19, False),
    ],
)
def test_a_row_is_found_by_its_last_turn_alone(tmp_path, asked, found):
    async def work(queue):
        await stored(queue, message("a", "b"))
        await begun(queue, 2, "2.1")
        row = await queue.read(lambda db: deliveries.by_turn(db, asked))
        assert (row is not None and row.id == 2) if found else row is None

    on_queue(tmp_path, work)


def test_a_selection(tmp_path):
    async def work(queue):
        await stored(queue, *(message(mind) for mind in "ababa"))
        await queue.write(lambda db: deliveries.close(db, [5], State.EXPIRED, 1, "x"))

        async def ids(*args):
            return [row.id for row in await queue.read(lambda db: deliveries.select(db, *args))]

        assert await ids((), None, 0, 9) == [1, 2, 3, 4], "without states those that have not ended"
        assert await ids(PENDING, None, 0, 9) == [1, 2, 3, 4]
        assert await ids((State.EXPIRED,), None, 0, 9) == [5]
        assert await ids((State.QUEUED, State.EXPIRED), "a", 0, 9) == [1, 3, 5]
        assert await ids((), "b", 2, 9) == [4], "after an id"
        assert await ids((), None, 1, 2) == [2, 3], "at most so many"

    on_queue(tmp_path, work)


def test_the_backlog_gets_queued_messages_and_the_special_rows_apart(tmp_path):
    async def work(queue):
        await stored(
            queue, message("plain", not_before=5), message("run", kind=Kind.RUN), message("expires", expires_at=9),
            message("again"), message("live"), message("ended"),
        )  # fmt: skip
        await begun(queue, 4)
        await queue.write(lambda db: deliveries.give_back(db, 4, "4", 1, Row(0, "", "", 0), {}))
        await begun(queue, 5)
        await queue.write(lambda db: deliveries.close(db, [6], State.CANCELLED, 1, "x"))
        assert await queue.read(lambda db: list(deliveries.queued(db))) == [
            (1, "plain", "main", 5, "message", 0, 1000, 0), (3, "expires", "main", 0, "message", 0, 1000, 0),
            (4, "again", "main", 0, "message", 0, 1000, 0),
        ]  # fmt: skip
        assert sorted(row.id for row in await queue.read(deliveries.special)) == [2, 3, 4, 5]

    on_queue(tmp_path, work)


def test_a_turn_from_its_mark_to_its_end(tmp_path):
    async def work(queue):
        await stored(queue, message())
        await begun(queue, 1, "1", now=7)
        row = await get(queue, 1)
        assert (row.state, row.turn, row.started_at, row.posted_at) == (State.DELIVERING, "1", 7, 0)
        await queue.write(lambda db: deliveries.mark_posted(db, 1, "1.1", 8))
        assert (await get(queue, 1)).posted_at == 0, "another turn's confirmation"
        await queue.write(lambda db: deliveries.mark_posted(db, 1, "1", 8))
        assert (await get(queue, 1)).posted_at == 8
        await begun(queue, 1, "1.1", now=9)
        assert (await get(queue, 1)).posted_at == 0, "not confirmed in its new turn"
        assert await queue.write(lambda db: deliveries.finish(db, 1, "1.1", State.DEAD, 3, 11, {"exit": 1}))
        row = await get(queue, 1)
        assert (row.state, row.attempts, row.ended_at, row.result) == (State.DEAD, 3, 11, {"exit": 1})
        await queue.write(lambda db: deliveries.mark_posted(db, 1, "1.1", 12))
        assert (await get(queue, 1)).posted_at == 0, "too late"

    on_queue(tmp_path, work)


def test_a_row_given_back_is_as_before_its_turn_but_for_its_attempts(tmp_path):
    async def work(queue):
        await stored(queue, message())
        await begun(queue, 1)
        await queue.write(lambda db: deliveries.mark_posted(db, 1, "1", 8))
        assert (
            await queue.write(
                lambda db: deliveries.give_back(db, 1, "1", 2, Row(0, "", "", 99), {"why": "down"})
            )
            is True
        )
        row = await get(queue, 1)
        assert (row.state, row.turn, row.started_at, row.posted_at) == (State.QUEUED, None, 0, 0)
        assert (row.attempts, row.not_before, row.result) == (2, 99, {"why": "down"})

    on_queue(tmp_path, work)


def test_only_rows_in_the_state_are_closed(tmp_path):
    async def work(queue):
        await stored(queue, message("a"), message("b"), New(to("c", state=State.BATCHING), b"{}", 1))
        await begun(queue, 2)
        close = deliveries.close
        assert await queue.write(lambda db: close(db, [1, 2, 3, 4], State.EXPIRED, 5, "late")) == [1]
        row = await get(queue, 1)
        assert (row.state, row.ended_at, row.result) == (
            State.EXPIRED, 5, {"outcome": "expired", "reason": "late"},
        )  # fmt: skip
        assert await queue.write(lambda db: close(db, [1, 3], State.CANCELLED, 6, "x", State.BATCHING)) == [3]

    on_queue(tmp_path, work)


def test_a_message_is_forgotten_with_its_payload(tmp_path):
    async def work(queue):
        await stored(queue, message("a", "b"), message("c"))
        await queue.write(lambda db: deliveries.forget(db, [1, 2]))
        assert [await get(queue, id_) for id_ in (1, 2)] == [None, None]
        assert await queue.read(lambda db: db.execute("SELECT id FROM payloads").fetchall()) == [(3,)]

    on_queue(tmp_path, work)


def test_a_retry_begins_anew(tmp_path):
    async def work(queue):
        await stored(queue, message(expires_at=50, not_before=40))
        await begun(queue, 1)
        await queue.write(lambda db: deliveries.mark_posted(db, 1, "1", 8))
        await queue.write(lambda db: deliveries.finish(db, 1, "1", State.DEAD, 10, 11, {"exit": 1}))
        row = await queue.write(lambda db: deliveries.retry(db, 1, Now(60)))
        assert row == await get(queue, 1)
        assert (row.state, row.turn, row.started_at, row.posted_at) == (State.QUEUED, None, 0, 0)
        assert (row.ended_at, row.attempts, row.not_before, row.expires_at, row.result) == (0, 0, 60, 0, {})

    on_queue(tmp_path, work)


@pytest.mark.parametrize(
    ("kind", "state"),
    [(Kind.RUN, "done"), (Kind.MESSAGE, "batched"), (Kind.MESSAGE, "queued"), (Kind.MESSAGE, "delivering")],
)
def test_a_run_a_batched_row_and_one_that_has_not_ended_are_not_tried_again(tmp_path, kind, state):
    async def work(queue):
        await stored(queue, message(kind=kind))
        await queue.write(lambda db: db.execute("UPDATE deliveries SET state = ?", (state,)))
        with pytest.raises(WrongState) as refused:
            await queue.write(lambda db: deliveries.retry(db, 1, Now(5)))
        assert refused.value.args == (State(state),)
        assert (await get(queue, 1)).state == state

    on_queue(tmp_path, work)


def test_only_a_dead_letter_is_dropped(tmp_path):
    async def work(queue):
        await stored(queue, message())
        for id_, was in ((1, State.QUEUED), (2, None)):
            with pytest.raises(WrongState) as refused:
                await queue.write(lambda db, i=id_: deliveries.drop(db, i, 5))
            assert refused.value.args == (was,)
        await queue.write(lambda db: db.execute("UPDATE deliveries SET state = 'dead'"))
        await queue.write(lambda db: deliveries.drop(db, 1, 5))
        row = await get(queue, 1)
        assert (row.state, row.ended_at) == (State.CANCELLED, 5)

    on_queue(tmp_path, work)


def test_a_message_sent_again_with_its_key_answers_with_its_rows_of_now(tmp_path):
    async def work(queue):
        await stored(queue, message("a", key="k"))
        await begun(queue, 1)
        await queue.write(lambda db: deliveries.mark_posted(db, 1, "1", 8))
        rows, fresh = await put(queue, message("a", key="k"))
        assert (rows, fresh) == ([await get(queue, 1)], [])
        assert rows[0].posted_at == 8

    on_queue(tmp_path, work)
