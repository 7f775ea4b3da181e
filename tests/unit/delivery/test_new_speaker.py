"""When somebody new to a turn has what is gathered go out at once, and what counts as heard."""

import asyncio

import pytest
from gathering import LONG, heard, hosted, message

from hostguard.core.model import NOT_HELD, LiveTurn
from hostguard.core.signals import SessionChanged
from hostguard.turns.live import Phase, Turn


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
        await host.begin_with(takes_input=takes_input)
        await host.send(message("1"))
        await host.send(message("2", **more))
        assert await host.contents() == ([["1", "2"]] if interrupts else [])
        assert [payload["interrupt"] for _, payload in await host.batches()] == [True] * interrupts

    hosted(tmp_path, work)


def test_an_idle_session_is_not_interrupted(tmp_path):
    async def work(host):
        host.end(await host.begin_with())
        await host.send(message("1", "eve"))
        assert await host.contents() == []

    hosted(tmp_path, work)


def test_what_interrupted_is_heard_and_the_next_one_waits_for_the_debounce(tmp_path):
    async def work(host):
        batch = {**LONG, "debounce_s": 1}
        await host.begin_with()
        await host.send(message("1", "eve", batch=batch))
        assert await host.contents() == [["1"]]
        await host.send(message("2", "eve", batch=batch))  # was heard just now
        await host.send(message("3", "dan", batch=batch))  # is new, but too soon
        assert await host.contents() == [["1"]]
        await asyncio.sleep(1.05)
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
        turn = await host.begin_with()
        turn.folded.append((await host.store(heard("eve")), NOT_HELD))
        host.batcher.session_changed(SessionChanged("bob", "s", True))
        await host.send(message("1", "eve"))
        assert await host.contents() == []
        await host.send(message("2", "ann"))
        assert await host.contents() == [["1", "2"]]

    hosted(tmp_path, work)


def test_a_turn_that_takes_nothing_more_is_not_interrupted_after_a_batch(tmp_path):
    async def work(host):
        await host.begin_with(takes_input=False)
        await host.send(message("now"))
        assert await host.contents() == [["now"]]
        await host.send(message("1", "eve"))
        assert await host.contents() == [["now"]]

    hosted(tmp_path, work)


def test_what_an_earlier_turn_heard_is_forgotten(tmp_path):
    async def work(host):
        await host.send(message("1"))  # so that there is something to remember by
        host.end(await host.begin_with())
        starting = Turn(LiveTurn("u", "bob", "s", "u", True), 0, Phase.STARTING)
        host.manager.runner.live.add(starting)
        await host.send(message("2", "eve"))
        assert await host.contents() == []

    hosted(tmp_path, work)


def test_a_batch_that_went_into_the_turn_is_what_was_heard_last(tmp_path):
    async def work(host):
        await host.begin_with("ann")  # in #a
        await host.send(message("now", "ann", "#b"))
        assert await host.contents() == [["now"]]
        await host.send(message("1", "eve", "#a"))
        assert await host.contents() == [["now"]], "not where the turn was told last"
        await host.send(message("2", "eve", "#b"))
        assert await host.contents() == [["now"], ["1", "2"]]

    hosted(tmp_path, work)
