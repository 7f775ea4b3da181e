"""The limits on bytes, on a real queue: what waits for a mind, what a sender has waiting, and what has ended.

They are a thousandth of the guard's, which take seconds to fill.
"""

from __future__ import annotations

import pytest
from onqueue import message, on_queue

from hostguard.core.clock import Now
from hostguard.core.model import State
from hostguard.store import deliveries, history, quota
from hostguard.store.deliveries import NoRoom
from hostguard.store.quota import LARGE, MINUTE_MAX, PerMinute

WAITING_MAX = ENDED_MAX = 64 << 10
HALF = b'"' + b"x" * (WAITING_MAX // 2) + b'"'  # two of them are too many


@pytest.fixture(autouse=True)
def _low(monkeypatch):
    monkeypatch.setattr(quota, "WAITING_MAX", WAITING_MAX)
    monkeypatch.setattr(quota, "ENDED_MAX", ENDED_MAX)
    monkeypatch.setattr(history, "BYTES_EVERY", ENDED_MAX // 8)


def limited(*minds, body=HALF, by="", **more):
    return message(*minds, body=body, request={}, limited=True, by=by, **more)


def put(queue, new):
    return queue.write(lambda db: deliveries.enqueue(db, new), durable=False)


async def waiting(queue, mind="x"):
    return await queue.write(lambda db: quota.waiting(db, mind), durable=False)


async def close(queue, *ids):
    assert await queue.write(lambda db: deliveries.close(db, ids, State.CANCELLED, 1, "")) == list(ids)


def test_a_mind_has_so_many_bytes_waiting(tmp_path):
    async def work(queue):
        _, [first, _] = await put(queue, limited("x", "y"))
        with pytest.raises(NoRoom) as refused:
            await put(queue, limited("x", "y"))
        assert refused.value.minds == {"x", "y"}
        rows, _ = await put(queue, limited("x", "z"))
        assert [row.mind for row in rows] == ["z"], "those of the minds that have room"
        await put(queue, limited(body=b'"' + b"x" * (LARGE - 2) + b'"'))  # a small one
        assert await waiting(queue) == len(HALF)
        _, [own] = await put(
            queue, message(body=HALF)
        )  # of the guard itself: a batch, which its messages leave for
        assert await waiting(queue) == 2 * len(HALF)
        await close(queue, first.id)
        await close(queue, own.id)
        await put(queue, limited())

    on_queue(tmp_path, work)


def test_a_message_that_is_larger_than_all_is_stored_alone(tmp_path):
    async def work(queue):
        huge = HALF[:-1] + HALF + b"x" * 9
        await put(queue, limited(body=huge, by="uid=1"))
        with pytest.raises(NoRoom):
            await put(queue, limited())

    on_queue(tmp_path, work)


def test_a_key_that_is_known_is_answered_whatever_waits(tmp_path):
    async def work(queue):
        _, [row] = await put(queue, limited(key="k", by="uid=1"))
        again, fresh = await put(queue, limited(key="k", by="uid=1"))
        assert ([one.id for one in again], fresh) == ([row.id], [])

    on_queue(tmp_path, work)


def test_a_sender_has_so_many_bytes_waiting_wherever(tmp_path):
    async def work(queue):
        _, rows = await put(queue, limited("x", "y", "z", by="uid=1"))  # to three minds: counted once
        await put(queue, limited("v", by="uid=2"))
        _, [other] = await put(queue, limited("w", body=HALF[:-100], by="uid=1"))
        with pytest.raises(NoRoom) as refused:
            await put(queue, limited("u", body=b'"' + b"x" * LARGE + b'"', by="uid=1"))
        assert refused.value.minds == ()
        await close(queue, *(row.id for row in rows[:2]))
        with pytest.raises(NoRoom):
            await put(queue, limited("u", by="uid=1"))
        await close(queue, other.id)
        await put(queue, limited("u", body=HALF[:-100], by="uid=1"))

    on_queue(tmp_path, work)


def test_what_was_queued_again_waits_again_and_what_began_waits_still(tmp_path):
    async def work(queue):
        _, [row] = await put(queue, limited())
        await queue.write(lambda db: deliveries.mark_delivering(db, row.id, "t", Now(1), {}))
        assert await waiting(queue) == len(HALF)
        await queue.write(lambda db: deliveries.finish(db, row.id, "t", State.DONE, 0, 1, {}))
        assert await waiting(queue) == 0
        await queue.write(lambda db: deliveries.retry(db, row.id, Now(2)))
        assert await waiting(queue) == len(HALF)
        await queue.write(lambda db: deliveries.mark_delivering(db, row.id, "u", Now(1), {}))
        await queue.write(lambda db: deliveries.finish(db, row.id, "u", State.DEAD, 9, 1, {}))
        assert await waiting(queue) == len(HALF), "until somebody drops it"
        await queue.write(lambda db: deliveries.drop(db, row.id, 3))
        assert await waiting(queue) == 0

    on_queue(tmp_path, work)


def test_the_next_guard_counts_what_waits(tmp_path):
    async def before(queue):
        await put(queue, limited("x", "y"))
        await put(queue, limited("z", body=b'"' + b"x" * LARGE + b'"'))

    async def after(queue):
        assert await waiting(queue) == 0
        assert await queue.count_some(0) is None
        assert [await waiting(queue, mind) for mind in "xyz"] == [len(HALF), len(HALF), LARGE + 2]
        assert await queue.count_some(0) is None
        assert await waiting(queue) == len(HALF), "counted once"

    on_queue(tmp_path, before)
    on_queue(tmp_path, after)


def test_of_what_has_ended_the_oldest_leaves_first(tmp_path):
    large = b'"' + b"x" * (ENDED_MAX // 4) + b'"'

    async def ended(queue):
        for _ in range(3):
            await queue.write(lambda db: None)
        found = await queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 100))
        return [row.id for row in found]

    async def work(queue):
        queue.keep_history(100)
        await put(queue, message(body=b'"small"'))
        for _ in range(5):
            await put(queue, message(body=large))
        await close(queue, 1, *range(2, 7))
        assert await ended(queue) == [1, 4, 5, 6], "three are less than ENDED_MAX; small ones stay"
        assert (await queue.read(lambda db: db.execute("SELECT count(*) FROM payloads").fetchone())) == (4,)

    async def after(queue):
        queue.keep_history(100)
        for _ in range(2):
            await put(queue, message(body=large))
        await close(queue, 7, 8)
        assert await queue.count_some(0) is None
        assert await ended(queue) == [1, 6, 7, 8]

    on_queue(tmp_path, work)
    on_queue(tmp_path, after)


def test_a_sender_has_so_many_bytes_a_minute():
    lately, mib = PerMinute(), 1 << 20
    assert not any(lately.wait_s("a", mib, 100.0) for _ in range(MINUTE_MAX // mib))
    assert lately.wait_s("a", mib, 100.0) == pytest.approx(60 * mib / MINUTE_MAX)
    assert lately.wait_s("b", mib, 100.0) == 0, "each has its own"
    assert lately.wait_s("a", mib, 100.0 + 60 * mib / MINUTE_MAX) == 0, "what was refused does not count"
    assert lately.wait_s("a", 1, 100.0 + 60 * mib / MINUTE_MAX) > 0
    assert lately.wait_s("c", 9 * MINUTE_MAX, 100.0) == 0, "one that is larger than all"
    assert lately.wait_s("c", 1, 100.0) == pytest.approx(8 * 60, rel=0.01)
    assert lately.wait_s("c", 9 * MINUTE_MAX, 100.0) == pytest.approx(9 * 60)
