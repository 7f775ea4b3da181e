"""Idempotency keys outlive the history, for a time and in a number that are bounded. On a real file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from onqueue import message, on_queue, put, to

from hostguard.core.clock import Now, now_ms
from hostguard.core.model import Kind, State
from hostguard.store import deliveries, keys
from hostguard.store.deliveries import KeyReused, New
from hostguard.store.history import trim
from hostguard.store.schema import SCHEMA, migrate

WEEK_MS = 7 * 24 * 3_600_000


async def ended(queue, new, state=State.DONE, result=None):
    """Store a message and end it, in a turn; its row."""
    (row,) = (await put(queue, new))[1]
    await queue.write(lambda db: deliveries.mark_delivering(db, row.id, str(row.id), Now(1), {}))
    result = (
        {"outcome": "exited", "exit": 0, "reason": "exit status 0", "run_ms": 5} if result is None else result
    )
    await queue.write(lambda db: deliveries.finish(db, row.id, str(row.id), state, 0, 2, result))
    return row


async def forgotten(queue, new, **more):
    """A message that ended and has left the history; its row."""
    row = await ended(queue, new, **more)
    await put(queue, message("other"))  # the newest row stays
    await queue.write(lambda db: trim(db, 0))
    assert await queue.read(lambda db: deliveries.get(db, row.id)) is None
    return row


def known(queue):
    return queue.read(lambda db: [key for (key,) in db.execute("SELECT key FROM keys ORDER BY delivery")])


def test_a_key_outlives_its_row_with_what_became_of_it(tmp_path):
    async def work(queue):
        new = message("a", key="k", session="s", sender="eve", channel="#c")
        row = await forgotten(queue, new, result={"outcome": "exited", "exit": 3, "reason": "exit status 3"})
        rows, fresh = await put(queue, new)
        assert fresh == []
        [again] = rows
        assert (again.id, again.mind, again.session, again.key) == (row.id, "a", "s", "k")
        assert (again.state, again.kind, again.sender, again.channel) == (
            State.DONE,
            Kind.MESSAGE,
            "eve",
            "#c",
        )
        assert (again.created_at, again.ended_at) == (1000, 2)
        assert again.result == {"outcome": "exited", "exit": 3, "reason": "exit status 3"}
        assert await queue.read(lambda db: db.execute("SELECT count(*) FROM payloads").fetchone()) == (1,)

    on_queue(tmp_path, work)


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(
    "changed",
    [("content",), ("kind",), ("not_before",), ("expires_at",), ("whileSleeping",), ("kind", "sender")],
)
def test_another_request_with_the_key_is_refused_by_name(tmp_path, gone, changed):
    async def work(queue):
        request = {"content": "x", "kind": "message", "not_before": 5, "sender": None}
        new = message(key="k", request=request)
        await (forgotten if gone else put)(queue, new)
        other = message(key="k", request={**request, **dict.fromkeys(changed, 7)})
        with pytest.raises(KeyReused) as used:
            await put(queue, other)
        assert (used.value.delivery, used.value.differs) == (1, changed)
        assert (await put(queue, new))[1] == []

    on_queue(tmp_path, work)


def test_a_row_whose_result_is_no_json_still_leaves(tmp_path):
    async def work(queue):
        row = await ended(queue, message(key="k"))
        await queue.write(lambda db: db.execute("PRAGMA ignore_check_constraints=ON"))
        await queue.write(lambda db: db.execute("UPDATE deliveries SET result = 'x' WHERE id = ?", (row.id,)))
        await put(queue, message())
        assert await queue.write(lambda db: trim(db, 0)) == 1
        [again], _ = await put(queue, message(key="k"))
        assert again.result == dict.fromkeys(("outcome", "exit", "reason"))

    on_queue(tmp_path, work)


def test_keys_go_a_week_after_their_rows(tmp_path):
    async def work(queue):
        await forgotten(queue, message(key="k"))
        await put(queue, message(key="waits"))
        now = now_ms()
        assert await queue.write(lambda db: keys.drop(db, now + WEEK_MS - 60_000)) == 0
        assert await known(queue) == ["k", "waits"]
        assert await queue.write(lambda db: keys.drop(db, now + WEEK_MS + 60_000)) == 1
        assert await known(queue) == ["waits"], "that of a row that is there stays, however old"
        assert len((await put(queue, message(key="k")))[1]) == 1

    on_queue(tmp_path, work)


def test_no_more_keys_are_kept_than_allowed_and_the_oldest_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "KEPT_MAX", 3)
    monkeypatch.setattr(keys, "DROP_MAX", 4)

    async def work(queue):
        for number in range(9):
            await forgotten(queue, message(key=f"k{number}"))
        assert await queue.write(lambda db: keys.drop(db, now_ms())) == 4
        assert await queue.write(lambda db: keys.drop(db, now_ms())) == 2
        assert await known(queue) == ["k6", "k7", "k8"]

    on_queue(tmp_path, work)


def test_the_history_drops_old_keys_by_the_way_and_writes_nothing_otherwise(tmp_path, monkeypatch):
    async def work(queue):
        queue.keep_history(0)
        await forgotten(queue, message(key="k"))
        await queue.write(lambda db: db.execute("UPDATE keys SET left_at = ?", (now_ms() - WEEK_MS - 1,)))
        queue.keep_history(0)
        await queue.write(lambda db: None)
        assert await known(queue) == []
        before = await queue.read(lambda db: db.execute("PRAGMA data_version").fetchone())
        queue.keep_history(0)
        await queue.write(lambda db: None)
        assert await queue.read(lambda db: db.execute("PRAGMA data_version").fetchone()) == before

    on_queue(tmp_path, work)


@pytest.mark.parametrize("owner", [keys.RUN, keys.SCHEDULE])
def test_keys_that_nobody_repeats_later_go_with_their_rows(tmp_path, owner):
    async def work(queue):
        new = message(key="k", owner=owner)
        await ended(queue, new)
        assert (await put(queue, new))[1] == []
        await put(queue, message())
        await queue.write(lambda db: trim(db, 0))
        assert await known(queue) == []

    on_queue(tmp_path, work)


def test_nobody_uses_up_the_key_of_a_schedule_or_a_run(tmp_path):
    async def work(queue):
        rows = [(await put(queue, message(key="k", owner=one)))[1] for one in ("", keys.RUN, keys.SCHEDULE)]
        assert [len(fresh) for fresh in rows] == [1, 1, 1]

    on_queue(tmp_path, work)


def test_a_row_that_is_tried_again_keeps_its_key(tmp_path):
    async def work(queue):
        new = message(key="k", expires_at=2_000, request={"content": "x", "expires_at": 2_000})
        row = await ended(queue, new, State.CANCELLED)
        await queue.write(lambda db: deliveries.retry(db, row.id, Now(77)))
        [again], fresh = await put(queue, new)
        assert (again.state, again.not_before, fresh) == (State.QUEUED, 77, [])
        await queue.write(lambda db: deliveries.close(db, [row.id], State.CANCELLED, 3, "x"))
        await put(queue, message())
        await queue.write(lambda db: trim(db, 0))
        [again], fresh = await put(queue, new)
        assert (again.id, again.state, fresh) == (row.id, State.CANCELLED, [])

    on_queue(tmp_path, work)


def test_a_fan_out_that_is_half_forgotten_is_known_whole(tmp_path):
    async def work(queue):
        new = message("a", "b", key="k")
        await put(queue, new)
        await queue.write(lambda db: deliveries.close(db, [1], State.CANCELLED, 1, "x"))
        await queue.write(lambda db: trim(db, 0))
        rows, fresh = await put(queue, new)
        assert [(row.id, row.mind, row.state) for row in rows] == [
            (1, "a", State.CANCELLED), (2, "b", State.QUEUED)
        ]  # fmt: skip
        assert fresh == []

    on_queue(tmp_path, work)


def test_a_row_that_somebody_deleted_frees_its_key(tmp_path):
    async def work(queue):
        await put(queue, message(key="k"))
        await put(queue, message())
        await queue.write(lambda db: db.execute("DELETE FROM deliveries WHERE id = 1"))
        [row], fresh = await put(queue, message(key="k"))
        assert ([row], row.id) == (fresh, 3)
        assert (await put(queue, message(key="k")))[1] == []

    on_queue(tmp_path, work)


def test_the_text_of_a_message_is_not_kept(tmp_path):
    async def work(queue):
        await forgotten(
            queue, message(key="k", body=b'{"content":"a secret"}', request={"content": "a secret"})
        )
        [row] = await queue.read(lambda db: db.execute("SELECT * FROM keys").fetchall())
        assert "secret" not in repr(row)
        assert len(json.dumps(row)) < 500

    on_queue(tmp_path, work)


def test_keys_of_an_older_hostguard_are_taken_over(tmp_path):
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, 0, 3)
        for id_, key, kind in (
            (1, "k", "message"),
            (2, "schedule:x:5", "schedule"),
            (3, "r", "run"),
            (4, None, "message"),
        ):
            db.execute("INSERT INTO payloads VALUES (?, ?)", (id_, message().payload))
            db.execute(
                "INSERT INTO deliveries (id, mind, session, state, kind, key, created_at, not_before, expires_at,"
                " payload) VALUES (?, 'x', 'main', 'queued', ?, ?, 1, 0, 0, ?)",
                (id_, kind, key, id_),
            )

    async def work(queue):
        assert await queue.read(lambda db: db.execute("PRAGMA user_version").fetchone()) == (SCHEMA,)
        assert (await put(queue, message(key="k", request={"content": "x", "expires_at": 9})))[1] == []
        with pytest.raises(KeyReused):
            await put(queue, message(key="k", body=b'{"content":"y"}'))
        for key, owner in (("schedule:x:5", keys.SCHEDULE), ("r", keys.RUN)):
            assert (await put(queue, message(key=key, owner=owner)))[1] == []
        await queue.write(lambda db: deliveries.close(db, [1], State.CANCELLED, 1, "x"))
        await queue.write(lambda db: trim(db, 0))
        [row], fresh = await put(queue, New(to("x"), b"{}", 1, key="k"))
        assert (row.id, fresh) == (1, []), "what it was is not known any more"

    on_queue(tmp_path, work)


def test_a_key_that_the_card_changed_is_set_aside(tmp_path):
    async def work(queue):
        await put(queue, message(key="k"))
        await queue.write(lambda db: db.execute("UPDATE keys SET sum = sum + 1"))
        assert len((await put(queue, message(key="k")))[1]) == 1, "at least once"
        assert "(keys 1)" in queue.notice

    on_queue(tmp_path, work)
    [record] = map(json.loads, next(tmp_path.glob("queue.db.damaged-*.rows")).read_text().splitlines())
    assert (record["table"], record["content"]["key"]) == ("keys", "k")
