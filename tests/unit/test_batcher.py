"""Gathering on a real queue and a real clock, with short times."""

import asyncio
import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onqueue import on_queue
from test_manager import Silent

from hostguard import batched, deliveries, dispatch
from hostguard.batcher import Batcher
from hostguard.clock import now_ms
from hostguard.deliveries import New
from hostguard.events import Events
from hostguard.live import Phase, Resident, Turn
from hostguard.manager import Manager
from hostguard.model import NOT_HELD, Config, Kind, LiveTurn, Mind, State, Target
from hostguard.policy import Policy
from hostguard.problems import Problem
from hostguard.routing import parse_routes

SHORT = {"debounce_s": 0.15, "max_wait_s": 0.6, "triggers": ["now"]}
LONG = {"debounce_s": 60, "max_wait_s": 60, "triggers": ["now"]}


def message(content="x", sender="ann", channel="#a", session="s", batch=LONG, mind="bob", created_at=None):
    body = json.dumps({"content": content, "channel": channel, "sender": sender}).encode()
    target = Target(mind, session, State.BATCHING, result={"batch": batch})
    return New((target,), body, created_at or now_ms(), sender=sender, channel=channel)


class Host:
    """A manager that starts nothing: what goes out stays in its backlog."""

    def __init__(self, queue, payload_max=1 << 20):
        self.queue = queue
        self.manager = Manager(queue, Events(Silent()), lambda: None)
        minds = {name: Mind(name, url="http://x") for name in ("bob", "eve")}
        self.manager.policy = Policy(Config(minds=minds, payload_max=payload_max), {}, "boot")
        self.batcher = Batcher(self.manager)

    async def send(self, new):
        _, (row,) = await self.queue.write(lambda db: deliveries.enqueue(db, new))
        self.batcher.add(row, new.payload)
        return row.id

    def begin(self, row, takes_input=True):
        """A turn of the row's session is live, and its mind took the row."""
        turn = Turn(
            LiveTurn(f"u{row.id}", row.mind, row.session, str(row.id), takes_input), 0, Phase.RUNNING, row
        )
        turn.resident = Resident(posted=True)
        self.manager.runner.live.add(turn)
        self.batcher.session_changed(row.mind, row.session, True)
        return turn

    def end(self, turn):
        self.manager.runner.live.remove(turn)
        self.batcher.session_changed(turn.live.mind, turn.live.session, False)

    async def row(self, id_):
        return await self.queue.read(lambda db: deliveries.get(db, id_))

    async def stored(self):
        """Wait for what goes out: one batch may follow another."""
        while self.manager._tasks:
            await self.manager.settled(5)
            await asyncio.sleep(0)

    async def batches(self):
        """(row, payload) of what went out."""
        await self.stored()

        def select(db):
            ids = db.execute("SELECT id FROM deliveries WHERE kind = 'batch' ORDER BY id").fetchall()
            return [deliveries.with_payload(db, id_) for (id_,) in ids]

        return [(row, json.loads(raw)) for row, raw in await self.queue.read(select)]

    async def contents(self):
        """The messages' contents of each batch."""
        return [
            [one["content"] for messages in payload["batch"]["channels"].values() for one in messages]
            for _, payload in await self.batches()
        ]


def hosted(path, work, **more):
    async def run(queue):
        host = Host(queue, **more)
        await host.batcher.start()
        try:
            return await work(host)
        finally:
            host.batcher.close()

    return on_queue(path, run)


def test_a_batch_is_one_row_and_each_source_says_which(tmp_path):
    async def work(host):
        ids = [
            await host.send(message("1", batch=SHORT)),
            await host.send(message("2", "eve", "#b", batch=SHORT)),
            await host.send(message("3", batch=SHORT)),
        ]
        assert host.batcher.count("bob") == 3
        with host.manager.ledger.waiters.waiter(ids[0]) as ended:
            await asyncio.wait_for(ended, 5)
        ((row, payload),) = await host.batches()
        assert (row.mind, row.session, row.state, row.kind) == ("bob", "s", State.QUEUED, Kind.BATCH)
        assert (row.sender, row.channel) == (None, None)
        assert row.result == {"messages": 3, "channels": ["#a", "#b"], "senders": ["ann", "eve"]}
        channels = payload["batch"]["channels"]
        assert [one["content"] for one in channels["#a"]] == ["1", "3"]
        assert [one["sender"] for one in channels["#b"]] == ["eve"]
        assert payload["interrupt"] is False
        for id_ in ids:
            source = await host.row(id_)
            assert (source.state, source.result) == (
                State.BATCHED,
                {"outcome": "batched", "delivery": row.id},
            )
            assert source.ended_at > 0
        assert host.manager.backlog.has(row.id, "bob", "s")
        assert not host.manager.backlog.has(ids[0], "bob", "s")
        assert host.batcher.count("bob") == 0

    hosted(tmp_path, work)


def test_a_batch_of_one_channel_and_sender_is_theirs(tmp_path):
    async def work(host):
        await host.send(message("a"))
        await host.send(message("now"))
        ((row, _),) = await host.batches()
        assert (row.sender, row.channel) == ("ann", "#a")

    hosted(tmp_path, work)


def test_a_trigger_lets_all_go_at_once(tmp_path):
    async def work(host):
        await host.send(message("1"))
        await host.send(message("2"))
        assert await host.contents() == []
        await host.send(message("do it NOW"))
        assert await host.contents() == [["1", "2", "do it NOW"]]

    hosted(tmp_path, work)


def test_sessions_and_minds_are_apart(tmp_path):
    async def work(host):
        await host.send(message("1"))
        await host.send(message("2", session="t"))
        await host.send(message("3", mind="eve"))
        await host.send(message("now", session="t"))
        assert await host.contents() == [["2", "now"]]
        assert (host.batcher.count("bob"), host.batcher.count("eve")) == (1, 1)

    hosted(tmp_path, work)


def test_fifty_messages_go_out(tmp_path):
    async def work(host):
        for number in range(51):
            await host.send(message(str(number)))
        assert await host.contents() == [[str(number) for number in range(50)]]
        assert host.batcher.count("bob") == 1

    hosted(tmp_path, work)


def test_a_batch_has_about_the_size_of_one_message(tmp_path):
    async def work(host):
        for letter in "abc":
            await host.send(message(letter * 400))
        assert await host.contents() == [["a" * 400, "b" * 400]]

    hosted(tmp_path, work, payload_max=1000)


def test_a_busy_session_waits_for_its_end_and_then_the_debounce(tmp_path):
    async def work(host):
        turn = host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, message())))[1][0])
        await host.send(message("1", batch={**SHORT, "max_wait_s": 60}))
        await asyncio.sleep(0.3)
        assert await host.contents() == []
        host.end(turn)
        await asyncio.sleep(0.05)
        assert await host.contents() == []
        await asyncio.sleep(0.3)
        assert await host.contents() == [["1"]]

    hosted(tmp_path, work)


def test_the_longest_wait_ends_also_while_the_session_is_busy(tmp_path):
    async def work(host):
        host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, message())))[1][0])
        await host.send(message("1", batch=SHORT))
        await asyncio.sleep(0.4)
        assert await host.contents() == []
        await asyncio.sleep(0.5)
        assert await host.contents() == [["1"]]

    hosted(tmp_path, work)


HEARD = {"content": "0", "sender": "ann", "channel": "#a"}


@pytest.mark.parametrize(
    ("why", "more", "takes_input", "interrupts"),
    [
        ("a new speaker", {"sender": "eve"}, True, True),
        ("the same one", {}, True, False),
        ("nobody", {"sender": None}, True, False),
        ("in another channel", {"sender": "eve", "channel": "#b"}, True, False),
        ("a turn that takes nothing more", {"sender": "eve"}, False, False),
    ],
)
def test_a_new_speaker_interrupts(tmp_path, why, more, takes_input, interrupts):
    async def work(host):
        first = New((Target("bob", "s"),), json.dumps(HEARD).encode(), 1, sender="ann", channel="#a")
        host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, first)))[1][0], takes_input)
        await host.send(message("1"))
        await host.send(message("2", **more))
        assert await host.contents() == ([["1", "2"]] if interrupts else [])
        assert [payload["interrupt"] for _, payload in await host.batches()] == [True] * interrupts

    hosted(tmp_path, work)


def test_an_idle_session_is_not_interrupted(tmp_path):
    async def work(host):
        first = New((Target("bob", "s"),), json.dumps(HEARD).encode(), 1, sender="ann", channel="#a")
        host.end(host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, first)))[1][0]))
        await host.send(message("1", "eve"))
        assert await host.contents() == []

    hosted(tmp_path, work)


def test_what_interrupted_is_heard_and_the_next_one_waits_for_the_debounce(tmp_path):
    async def work(host):
        batch = {**LONG, "debounce_s": 0.2}
        first = New((Target("bob", "s"),), json.dumps(HEARD).encode(), 1, sender="ann", channel="#a")
        host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, first)))[1][0])
        await host.send(message("1", "eve", batch=batch))
        assert await host.contents() == [["1"]]
        await host.send(message("2", "eve", batch=batch))  # was heard just now
        await host.send(message("3", "dan", batch=batch))  # is new, but too soon
        assert await host.contents() == [["1"]]
        await asyncio.sleep(0.25)
        await host.send(message("4", "dan", batch=batch))
        assert await host.contents() == [["1"], ["2", "3", "4"]]

    hosted(tmp_path, work)


def test_a_turn_of_a_batch_has_heard_its_speakers(tmp_path):
    async def work(host):
        await host.send(message("1"))
        await host.send(message("now", "dan"))
        ((row, _),) = await host.batches()
        host.begin(row)
        await host.send(message("2"))
        await host.send(message("3", "dan"))
        assert len(await host.batches()) == 1
        await host.send(message("4", "eve"))
        assert (await host.contents())[1:] == [["2", "3", "4"]]

    hosted(tmp_path, work)


def test_what_folded_last_is_what_was_heard(tmp_path):
    async def work(host):
        first = New((Target("bob", "s"),), json.dumps(HEARD).encode(), 1, sender="ann", channel="#a")
        turn = host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, first)))[1][0])
        second = New((Target("bob", "s"),), json.dumps(HEARD).encode(), 1, sender="eve", channel="#a")
        _, (row,) = await host.queue.write(lambda db: deliveries.enqueue(db, second))
        turn.resident.folded.append((row, NOT_HELD))
        host.batcher.session_changed("bob", "s", True)
        await host.send(message("1", "eve"))
        assert await host.contents() == []
        await host.send(message("2", "ann"))
        assert await host.contents() == [["1", "2"]]

    hosted(tmp_path, work)


def test_a_turn_that_takes_nothing_more_is_not_interrupted_after_a_batch(tmp_path):
    async def work(host):
        first = New((Target("bob", "s"),), json.dumps(HEARD).encode(), 1, sender="ann", channel="#a")
        host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, first)))[1][0], False)
        await host.send(message("now"))
        assert await host.contents() == [["now"]]
        await host.send(message("1", "eve"))
        assert await host.contents() == [["now"]]

    hosted(tmp_path, work)


def test_what_an_earlier_turn_heard_is_forgotten(tmp_path):
    async def work(host):
        first = New((Target("bob", "s"),), json.dumps(HEARD).encode(), 1, sender="ann", channel="#a")
        await host.send(message("1"))  # so that there is something to remember by
        host.end(host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, first)))[1][0]))
        starting = Turn(LiveTurn("u", "bob", "s", "u", True), 0, Phase.STARTING)
        host.manager.runner.live.add(starting)
        await host.send(message("2", "eve"))
        assert await host.contents() == []

    hosted(tmp_path, work)


def test_rows_that_come_out_of_order_go_out_in_order(tmp_path):
    async def work(host):
        rows = []
        for letter in "abc":
            new = message(letter * 400)
            rows.append(
                ((await host.queue.write(lambda db, new=new: deliveries.enqueue(db, new)))[1][0], new)
            )
        for row, new in reversed(rows):
            host.batcher.add(row, new.payload)
        await host.send(message("now"))
        assert [[text[0] for text in batch] for batch in await host.contents()] == [["a", "b"], ["c", "n"]]

    hosted(tmp_path, work, payload_max=1000)


def test_after_a_restart_the_buffers_are_as_they_were(tmp_path):
    async def before(host):
        await host.send(message("old", batch=SHORT, created_at=now_ms() - 60_000))
        host.batcher.close()
        late = message("later", "eve", session="t", batch={**SHORT, "max_wait_s": 60, "debounce_s": 60})
        await host.queue.write(lambda db: deliveries.enqueue(db, late))
        trigger = message("now", session="u")  # killed before it went out
        await host.queue.write(lambda db: deliveries.enqueue(db, trigger))

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
        await host.queue.write(lambda db: deliveries.enqueue(db, new))

    async def after(host):
        await asyncio.sleep(0.4)
        assert await host.contents() == [["1"]]

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


def test_the_settings_are_those_that_a_route_gave():
    routes = parse_routes('{"rules": [{"batch": 1}]}')
    target = dispatch.place("bob", routes, {"channel": "#a", "content": ""})
    assert target.result["batch"] == {"debounce_s": 5, "max_wait_s": 60, "triggers": []}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["x", "y", "now"]), st.sampled_from(["ann", "eve", None])),
        st.tuples(st.sampled_from(["begin", "end", "restart", "cancel"]), st.none(), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_nothing_is_lost_or_sent_twice_and_the_order_is_kept(tmp_path_factory, steps):
    async def work(host):
        sent, cancelled, turn = [], set(), None
        for what, content, sender in steps:
            if what == "send":
                sent.append(await host.send(message(f"{len(sent)} {content}", sender)))
            elif what == "begin" and turn is None:
                turn = host.begin((await host.queue.write(lambda db: deliveries.enqueue(db, begun())))[1][0])
            elif what == "end" and turn is not None:
                host.end(turn)
                turn = None
            elif what == "restart":
                await host.stored()
                host.batcher.close()
                host.batcher = Batcher(host.manager)
                await host.batcher.start()
            elif what == "cancel" and sent and (row := await host.row(sent[-1])).state is State.BATCHING:
                with suppress(Problem):  # it is going out
                    host.batcher.taken_back(row)
                    await host.manager.ledger.close(row.row, State.CANCELLED, "by request")
                    assert (await host.row(row.id)).state is State.CANCELLED
                    cancelled.add(row.id)
        if turn is not None:
            host.end(turn)
        sent.append(await host.send(message(f"{len(sent)} now")))
        numbers = [int(content.split()[0]) for batch in await host.contents() for content in batch]
        assert numbers == [number for number, id_ in enumerate(sent) if id_ not in cancelled]
        assert host.batcher.count("bob") == 0
        assert not host.batcher._buffers

    def begun():
        return New((Target("bob", "s"),), json.dumps(HEARD).encode(), 1, sender="ann", channel="#a")

    hosted(tmp_path_factory.mktemp("q"), work)
