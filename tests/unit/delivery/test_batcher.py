"""When what is gathered goes out, and that it does so whole, in order and once."""

import asyncio
import time
from contextlib import suppress

from gathering import LONG, SHORT, hosted, message
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import sized

from hostguard.core.errors import Problem
from hostguard.core.model import Kind, Mind, State
from hostguard.core.signals import SessionChanged
from hostguard.delivery import planner
from hostguard.delivery.routes import parse_routes


def test_a_batch_is_one_row_and_each_source_says_which(tmp_path):
    async def work(host):
        batch = {**LONG, "debounce_s": 0.5}
        ids = [
            await host.send(message("1", batch=batch)),
            await host.send(message("2", "eve", "#b", batch=batch)),
            await host.send(message("3", batch=batch)),
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


def test_only_the_sessions_whose_time_has_come_go_out(tmp_path):
    async def work(host):
        await host.begin_with()  # a session with a turn, and nothing that waits
        await host.send(message("1", session="t", batch={**LONG, "debounce_s": 0.1}))
        later = await host.send(message("2", session="u"))
        assert await host.out() == [["1"]]
        assert (await host.row(later)).state is State.BATCHING
        assert host.batcher.count("bob") == 1
        assert host.batcher._wakes is not None, "the timer is set for the other"

    hosted(tmp_path, work)


def test_a_turn_that_lives_at_the_start_is_known(tmp_path):
    async def work(host):
        await host.begin_with()
        await host.restart()
        await host.send(message("1", batch={**SHORT, "max_wait_s": 60}))
        await asyncio.sleep(3 * SHORT["debounce_s"])
        assert await host.contents() == [], "a pause in the talk counts only while the session is idle"

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


def test_a_closed_batcher_sends_nothing(tmp_path):
    async def work(host):
        await host.send(message("1", batch=SHORT))
        host.batcher.close()
        await asyncio.sleep(SHORT["max_wait_s"] + 0.1)
        for busy in (True, False):
            host.batcher.session_changed(SessionChanged("bob", "s", busy))
        await host.parts.accepting.settled(5)
        assert await host.contents() == []

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


def test_a_batch_has_about_the_items_of_one_message(tmp_path):
    """A batch of 1 MiB of small values took the guard 22 MB and 0.2 s to read."""

    async def work(host):
        for letter in "abc":
            await host.send(message([letter, *[0] * 8]))
        assert [[content[0] for content in batch] for batch in await host.contents()] == [["a"], ["b"]]

    hosted(tmp_path, work, payload_max=1000)


def test_a_busy_session_waits_for_its_end_and_then_the_debounce(tmp_path):
    async def work(host):
        turn = await host.begin_with()
        await host.send(message("1", batch={**SHORT, "max_wait_s": 60}))
        await asyncio.sleep(0.3)
        assert await host.contents() == []
        ended = time.monotonic()
        host.end(turn)
        assert await host.out() == [["1"]]
        assert time.monotonic() - ended > 0.14

    hosted(tmp_path, work)


def test_the_longest_wait_ends_also_while_the_session_is_busy(tmp_path):
    async def work(host):
        await host.begin_with()
        sent = time.monotonic()
        await host.send(message("1", batch=SHORT))
        assert await host.out() == [["1"]]
        assert time.monotonic() - sent > 0.55

    hosted(tmp_path, work)


def test_rows_that_come_out_of_order_go_out_in_order(tmp_path):
    async def work(host):
        rows = []
        for letter in "abc":
            new = message(letter * 400)
            rows.append((await host.store(new), new))
        for row, new in reversed(rows):
            host.batcher.add(row, new.payload)
        await host.send(message("now"))
        assert [[text[0] for text in batch] for batch in await host.contents()] == [["a", "b"], ["c", "n"]]

    hosted(tmp_path, work, payload_max=1000)


def test_the_settings_are_those_that_a_route_gave():
    routes = parse_routes('{"rules": [{"batch": 1}]}')
    target = planner.place(Mind("bob"), routes, {"channel": "#a", "content": ""})
    assert target.result["batch"] == {"debounce_s": 5, "max_wait_s": 60, "triggers": []}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["x", "y", "now"]), st.sampled_from(["ann", "eve", None])),
        st.tuples(st.sampled_from(["begin", "end", "restart", "cancel"]), st.none(), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=sized(13), deadline=None)
@given(STEPS)
def test_nothing_is_lost_or_sent_twice_and_the_order_is_kept(tmp_path_factory, steps):
    async def work(host):
        sent, cancelled, turn = [], set(), None
        for what, content, sender in steps:
            if what == "send":
                sent.append(await host.send(message(f"{len(sent)} {content}", sender)))
            elif what == "begin" and turn is None:
                turn = await host.begin_with()
            elif what == "end" and turn is not None:
                host.end(turn)
                turn = None
            elif what == "restart":
                await host.stored()
                await host.restart()
            elif what == "cancel" and sent and (row := await host.row(sent[-1])).state is State.BATCHING:
                with suppress(Problem):  # it is out already
                    assert (await host.manager.parts.deliveries.cancel(row.id)).state is State.CANCELLED
                    cancelled.add(row.id)
        if turn is not None:
            host.end(turn)
        sent.append(await host.send(message(f"{len(sent)} now")))
        numbers = [int(content.split()[0]) for batch in await host.contents() for content in batch]
        assert numbers == [number for number, id_ in enumerate(sent) if id_ not in cancelled]
        assert host.batcher.count("bob") == 0
        assert not host.batcher._buffers

    hosted(tmp_path_factory.mktemp("q"), work)
