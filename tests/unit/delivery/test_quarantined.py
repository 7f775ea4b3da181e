"""Messages that no rule matches: invites, and which of them a later rule lets go."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onqueue import on_queue
from unmatched import store, unmatched

from hostguard.core.model import Kind, Mind, State, Target
from hostguard.delivery import planner, quarantine_rows
from hostguard.delivery.quarantine_rows import NOTHING, QUARANTINE_MAX, invite, move, read, release, totals
from hostguard.delivery.routes import parse_routes
from hostguard.store import deliveries
from hostguard.store.deliveries import New

BOB = Mind("bob")


def told(db, id_):
    return json.loads(deliveries.with_payload(db, id_)[1])


# -- invites


def test_an_invite_on_the_first_and_again_every_ten(tmp_path):
    async def work(queue):
        return [await queue.write(store(unmatched())) for _ in range(25)]

    invited = [number for number, (_, done) in enumerate(on_queue(tmp_path, work), 1) if done.invites]
    assert invited == [1, 11, 21]


def test_what_an_invite_is(tmp_path):
    async def work(queue):
        _, done = await queue.write(store(unmatched(content="hi\nthere", channel="discord:general")))
        (row,) = done.invites
        return row, await queue.read(lambda db: told(db, row.id))

    row, payload = on_queue(tmp_path, work)
    assert (row.mind, row.session, row.kind, row.state) == ("bob", "main", Kind.NOTICE, State.QUEUED)
    assert (row.channel, row.sender, row.key) == ("@volute", "volute", None)
    assert payload["participants"] == ["volute", "bob"]
    assert payload["content"] == (
        "[hostguard] a message is kept back, not delivered: no rule of your routes.json matches the channel"
        " discord:general. The newest is from ann: hi\nthere\n"
        "To get them, add a rule to your routes.json, such as"
        ' {"channel": "discord:general", "session": "main"}: the newest 10 then follow, older ones are archived'
    )


def test_the_rule_that_an_invite_names_lets_the_message_go(tmp_path):
    async def work(queue):
        (row,), done = await queue.write(store(unmatched(channel=None, sender="ann")))
        text = (await queue.read(lambda db: told(db, done.invites[0].id)))["content"]
        return row, text, await queue.read(lambda db: told(db, row.id))

    _, text, payload = on_queue(tmp_path, work)
    rule = json.loads(text[text.index("{") : text.index("}") + 1])
    assert rule == {"channel": "@ann", "session": "main"}
    routes = parse_routes(json.dumps({"rules": [rule]}))
    assert planner.place(BOB, routes, planner.told(payload)).state is State.QUEUED


def test_a_long_message_is_cut_and_its_number_told():
    row = deliveries.Delivery(
        1, "bob", "main", State.QUARANTINED, Kind.MESSAGE, None, None, "#x", 0, 0, 0, 0, None, 0, 0, {}
    )
    text = invite(row, {"channel": "#x", "content": "y" * 300}, 11)
    assert "11 messages are kept back" in text
    assert f"from nobody: {'y' * 200}...\n" in text


@pytest.mark.parametrize(
    "other",
    [
        {"channel": "#y"},
        {"channel": None},
        {"minds": ("eve",)},
    ],
)
def test_each_channel_of_each_mind_counts_for_itself(tmp_path, other):
    minds = other.pop("minds", ("bob",))

    async def work(queue):
        for _ in range(3):
            await queue.write(store(unmatched()))
        return await queue.write(store(unmatched(*minds, **other)))

    assert len(on_queue(tmp_path, work)[1].invites) == 1


def test_direct_messages_count_by_sender(tmp_path):
    async def work(queue):
        return [
            len((await queue.write(store(unmatched(channel=None, sender=who))))[1].invites)
            for who in ("ann", "ann", "eve", None, None)
        ]

    assert on_queue(tmp_path, work) == [1, 0, 1, 1, 0]


def test_a_fan_out_invites_each_mind_that_gates_it(tmp_path):
    async def work(queue):
        new = unmatched("bob", "eve")
        new = New([*new.targets, Target("dan", "main")], new.payload, 1000, channel="#x", sender="ann")
        return await queue.write(store(new))

    _, done = on_queue(tmp_path, work)
    assert [row.mind for row in done.invites] == ["bob", "eve"]


def test_a_message_that_is_sent_again_with_its_key_invites_nobody(tmp_path):
    async def work(queue):
        new = unmatched()
        new = New(new.targets, new.payload, 1000, key="k", sender="ann", channel="#x")
        await queue.write(store(new))
        return await queue.write(store(new))

    assert on_queue(tmp_path, work) == ([], NOTHING)


def test_a_mind_keeps_a_bounded_number(tmp_path):
    def fill(db):
        return [
            store(unmatched(channel=f"#{number % 7}"))(db)[1].archived for number in range(QUARANTINE_MAX)
        ]

    async def work(queue):
        archived = await queue.write(fill)
        one = await queue.read(lambda db: deliveries.get(db, archived[-1][0][1]))
        return archived, one, await queue.read(totals), await queue.read(lambda db: list(read(db, "bob")))

    archived, one, counts, left = on_queue(tmp_path, work)
    assert [len(some) for some in archived] == [0] * (QUARANTINE_MAX - 1) + [500]
    assert counts == {"bob": 500}
    assert (one.state, one.result["outcome"]) == (State.SKIPPED, "archived")
    assert min(id_ for id_, _ in left) > max(id_ for _, id_ in archived[-1])


def test_looking_for_gated_rows_uses_their_index(tmp_path):
    async def work(queue):
        def plans(db):
            said = []
            db.set_trace_callback(said.append)
            store(unmatched())(db)
            list(read(db, "bob"))
            totals(db)
            db.set_trace_callback(None)
            selects = [sql for sql in said if "'gated'" in sql and sql.startswith("SELECT")]
            return [str(db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()) for sql in selects]

        return await queue.write(plans)

    plans = on_queue(tmp_path, work)
    assert len(plans) == 4
    assert all("deliveries_kept" in plan for plan in plans), plans


# -- the release


def rows_of(*channels):
    """Rows as quarantine_rows.read gives them, of ids 1, 2, ..., the newest first."""
    bodies = [json.dumps({"channel": channel, "sender": "s", "content": ""}).encode() for channel in channels]
    return list(enumerate(bodies, 1))[::-1]


def by(file):
    routes = parse_routes(json.dumps(file))

    def place(payload):
        target = planner.place(BOB, routes, payload)
        return None if target.state is State.QUARANTINED else target

    return place


def test_the_newest_ten_go_out_in_order_and_older_ones_are_archived():
    moves = release("bob", rows_of(*["#x"] * 13), by({"rules": [{"session": "s"}]}))
    assert [one.id for one in moves] == list(range(1, 14))
    assert [one.target.state for one in moves] == [State.SKIPPED] * 3 + [State.QUEUED] * 10
    assert {one.target.session for one in moves[3:]} == {"s"}
    assert moves[0].target.result == {
        "outcome": "archived",
        "reason": "a rule matches now, and the newest 10 of #x went out",
    }


def test_only_what_a_rule_matches_is_let_go_ten_of_each_channel():
    rows = rows_of(*["#x", "#y", "#z"] * 12)
    moves = release("bob", rows, by({"rules": [{"channel": "#x"}, {"channel": "#y"}]}))
    out = [one.id for one in moves if one.target.state is State.QUEUED]
    assert out == [id_ for id_ in range(7, 37) if id_ % 3 != 0]
    assert {one.id % 3 for one in moves} == {1, 2}


def test_a_released_row_goes_where_its_rule_says():
    file = {
        "rules": [
            {"channel": "#file", "destination": "file", "path": "a"},
            {"channel": "#mention", "mode": "mention"},
            {"channel": "#batch", "batch": 1},
        ]
    }
    moves = release("bob", rows_of("#file", "#mention", "#batch"), by(file))
    assert [(one.target.state, one.target.kind) for one in moves] == [
        (State.QUEUED, Kind.FILE),
        (State.SKIPPED, Kind.MESSAGE),
        (State.BATCHING, Kind.MESSAGE),
    ]
    assert moves[1].target.result["outcome"] == "filtered"
    assert moves[2].target.result["batch"]["max_wait_s"] == 60


@given(st.lists(st.sampled_from(["#a", "#b", "#c"])), st.sets(st.sampled_from(["#a", "#b", "#c"])))
def test_each_matched_row_moves_once_and_no_other(channels, matched):
    file = {"rules": [{"channel": channel} for channel in sorted(matched)]}
    moves = release("bob", rows_of(*channels), by(file))
    ids = [one.id for one in moves]
    assert ids == [id_ for id_, channel in enumerate(channels, 1) if channel in matched]
    for channel in matched:
        own = [one for one in moves if channels[one.id - 1] == channel]
        assert [one.target.state for one in own[-10:]] == [State.QUEUED] * len(own[-10:])
        assert {one.target.state for one in own[:-10]} <= {State.SKIPPED}


def test_a_move_changes_only_gated_rows(tmp_path):
    async def work(queue):
        ids = [(await queue.write(store(unmatched(channel=f"#{n}"))))[0][0].id for n in range(3)]
        await queue.write(
            lambda db: deliveries.close(db, [ids[0]], State.CANCELLED, 1, "by request", State.QUARANTINED)
        )
        targets = [
            Target("bob", "s"),
            Target("bob", "s", kind=Kind.FILE, uid=1001),
            quarantine_rows.archive("bob", "old"),
        ]
        moves = [quarantine_rows.Move(*one) for one in zip(ids, targets, strict=True)]
        moved = await queue.write(lambda db: move(db, moves, 77))
        return moved, [await queue.read(lambda db, i=i: deliveries.get(db, i)) for i in ids]

    moved, rows = on_queue(tmp_path, work)
    assert [row.id for row, _ in moved.out] == [rows[1].id]
    assert moved.ended == [rows[2].id]
    assert [row.state for row in rows] == [State.CANCELLED, State.QUEUED, State.SKIPPED]
    assert (rows[1].session, rows[1].kind, rows[1].ended_at, rows[1].uid) == ("s", Kind.FILE, 0, 1001)
    assert (rows[2].ended_at, rows[2].result) == (77, {"outcome": "archived", "reason": "old"})


def test_a_row_with_times_is_not_gathered(tmp_path):
    async def work(queue):
        new = unmatched()
        for times in ({}, {"not_before": 5}, {"expires_at": 1 << 40}):
            await queue.write(store(New(new.targets, new.payload, 1000, channel="#x", **times)))
        rows = await queue.read(lambda db: list(read(db, "bob")))
        moves = release("bob", rows, by({"rules": [{"batch": 1, "session": "s"}]}))
        return (await queue.write(lambda db: move(db, moves, 77))).out

    out = on_queue(tmp_path, work)
    assert [row.state for row, _ in out] == [State.BATCHING, State.QUEUED, State.QUEUED]
    assert [row.session for row, _ in out] == ["s"] * 3
    assert [bool(row.result) for row, _ in out] == [True, False, False]
