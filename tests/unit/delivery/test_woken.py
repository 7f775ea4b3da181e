"""What wakes a mind, and when one that a message woke sleeps again."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import pytest
from sleeping_host import CONFIG, DOWN, HOUR, on_host

from hostguard.core.clock import now_ms
from hostguard.core.errors import unavailable
from hostguard.core.model import Kind, State
from hostguard.core.signals import MindWoken
from hostguard.delivery import message as intake
from hostguard.delivery import sleep
from hostguard.store import deliveries
from hostguard.store.settings import SLEEP, WOKEN, stored


def test_what_waited_follows_in_order_once_the_mind_is_awake(tmp_path):
    async def work(host):
        await host.fall_asleep()
        held = [(await host.send(session=f"s{i % 5}", whileSleeping="queue")).id for i in range(50)]
        assert host.live() == []
        await host.wake()
        assert await host.stored() == {}, "it is awake before anything starts"
        [wake] = await host.rows(Kind.WAKE)
        assert "Messages that waited: 50." in await host.content(wake)
        ended = []
        while host.live():
            assert len(host.live()) == 1
            ended.append((await host.end()).id)
        assert ended == [*held, wake.id]
        assert len(host.told("awake")) == 1
        await host.wake()
        assert len(await host.rows(Kind.WAKE)) == 1, "it was awake"

    on_host(tmp_path, work)


@pytest.mark.parametrize(
    ("fields", "asleep", "state"),
    [
        ({"whileSleeping": "skip"}, True, State.SKIPPED),
        ({"whileSleeping": "queue"}, True, State.QUEUED),
        ({"whileSleeping": "trigger-wake", "to": "#x"}, False, State.QUEUED),
        ({"to": "#x"}, True, State.QUEUED),
        ({"to": "#x", "content": "@bob?"}, False, State.QUEUED),
        ({}, False, State.QUEUED),  # to the mind itself: a direct message
    ],
)
def test_what_a_message_does_to_a_sleeping_mind(tmp_path, fields, asleep, state):
    async def work(host):
        await host.fall_asleep()
        await host.manager.parts.control.pause("bob", True)  # so that the row stays where it is
        row = await host.send(**fields)
        assert host.asleep() == asleep
        assert (await host.manager.parts.deliveries.find(row.id)).state is state
        assert await host.rows(Kind.WAKE) == [], "the message itself tells it"
        assert await host.stored() == (
            {SLEEP.key("bob"): host.parts.settings.get(SLEEP, "bob")}
            if asleep
            else {WOKEN.key("bob"): {"until": None}}
        )

    on_host(tmp_path, work)


def test_a_mind_that_a_message_woke_sleeps_again_when_it_is_idle(tmp_path):
    async def work(host):
        until = now_ms() + HOUR
        await host.fall_asleep(until=until)
        await host.send(content="@bob")
        await asyncio.sleep(1.3)
        assert not host.asleep(), "it has a turn"
        await host.end(DOWN)
        await asyncio.sleep(1.3)
        assert not host.asleep(), "its message is to be tried again"
        await host.until(host.live)
        ended = time.monotonic()
        assert (await host.end()).kind is Kind.MESSAGE
        await host.until(host.asleep)
        assert time.monotonic() - ended > 0.9
        assert (await host.stored())[SLEEP.key("bob")]["until"] == until
        assert WOKEN.key("bob") not in await host.stored()
        assert len(await host.rows(Kind.LIFECYCLE)) == 1, "without a word"

    on_host(tmp_path, work)


def test_one_whose_message_waits_in_a_batch_stays_awake_until_that_goes_out(tmp_path):
    async def work(host):
        await host.fall_asleep()
        await host.send(content="@bob")
        await host.end()
        host.sleeper._held = SimpleNamespace(counts=lambda mind: (mind == "bob", 0))
        await asyncio.sleep(1.3)
        assert not host.asleep()
        # What no route matches waits for the mind, not the mind for it.
        host.sleeper._held = SimpleNamespace(counts=lambda mind: (0, 1))
        await host.until(host.asleep)

    on_host(tmp_path, work)


def test_one_whose_wake_is_noted_with_its_message_alone_sleeps_again_too(tmp_path):
    async def work(host):
        await host.send()
        host.parts.settings.use(WOKEN.to("bob", True))
        await host.end()
        await host.until(host.asleep)
        assert (await host.stored())[SLEEP.key("bob")]["until"] is None

    on_host(tmp_path, work)


def test_one_that_was_woken_for_nothing_sleeps_again_too(tmp_path):
    async def work(host):
        await host.fall_asleep()
        await host.manager.parts.control.pause("bob", True)
        row = await host.send()
        assert not host.asleep()
        await host.manager.parts.deliveries.cancel(row.id)
        await host.until(host.asleep)  # although it had no turn

    on_host(tmp_path, work)


def test_a_woken_mind_is_put_to_sleep(tmp_path):
    async def work(host):
        await host.fall_asleep(until=now_ms() + HOUR)
        await host.send()
        await host.end()
        await host.fall_asleep()
        [(name, state)] = (await host.stored()).items()
        assert (name, state["until"]) == (SLEEP.key("bob"), None)

    on_host(tmp_path, work)


def test_one_that_was_woken_by_request_stays_awake(tmp_path):
    async def work(host):
        await host.fall_asleep()
        await host.send()
        await host.wake()
        while host.live():
            await host.end()
        await asyncio.sleep(1.5)
        assert not host.asleep()
        assert await host.stored() == {}

    on_host(tmp_path, work)


def test_a_mind_without_a_service_leaves_no_note_to_start_one(tmp_path):
    async def work(host):
        await host.fall_asleep()
        await host.wake()
        assert not host.asleep()
        assert await host.queue.read(stored) == {}

    on_host(tmp_path, work)


@pytest.mark.parametrize("by", ["request", "message"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_message_comes_while_the_mind_wakes(tmp_path, by, steps):
    """It was planned for a mind that sleeps, and may be stored when that is awake."""

    async def work(host):
        until = now_ms() + HOUR
        await host.fall_asleep(until=until)
        first, second = (intake.message({"to": "bob", "content": i}, CONFIG, now_ms()) for i in (1, 2))
        if by == "request":
            waking = asyncio.create_task(host.sleeper.wake("bob", "by request"))
        else:
            waking = asyncio.create_task(host.acceptor.send(first))
        for _ in range(steps):
            await asyncio.sleep(0)
        assert host.asleep()
        await host.acceptor.send(second)
        await waking
        await host.idle()
        woken = None if by == "request" else {"until": until}
        assert host.parts.settings.get(WOKEN, "bob") == woken
        assert await host.stored() == ({WOKEN.key("bob"): woken} if woken else {})
        assert not host.manager.policy.sleepy("bob")

    on_host(tmp_path, work)


def test_a_mind_wakes_at_its_time_also_if_the_clock_is_set(tmp_path):
    async def work(host):
        await host.fall_asleep(until=now_ms() + HOUR)
        host.sleeper.check()
        await host.idle()
        assert host.asleep()
        host.skew = HOUR
        host.sleeper.check()
        await host.idle()
        assert not host.asleep()
        assert "woken at the time that was set" in host.told("awake")[0]

        await host.end()
        host.skew = 0
        await host.fall_asleep(until=now_ms() + 1000)
        await host.until(lambda: not host.asleep())  # by itself

    on_host(tmp_path, work)


@pytest.mark.parametrize("skew", [-6 * HOUR, 6 * HOUR])
def test_a_mind_is_told_how_long_it_slept_whatever_the_clock_says(tmp_path, skew):
    async def work(host):
        await host.fall_asleep()
        host.clock.passed, host.skew = HOUR + 125_000, skew
        await host.wake()
        [row] = await host.rows(Kind.WAKE)
        _, raw = await host.queue.read(lambda db: deliveries.with_payload(db, row.id))
        assert "You slept for 1 h 2 min " in json.loads(raw)["content"]

    on_host(tmp_path, work)


def test_a_woken_minds_time_comes_too(tmp_path):
    async def work(host):
        await host.fall_asleep(until=now_ms() + HOUR)
        await host.send()
        await host.end()
        host.skew = HOUR - 200
        host.sleeper.check()  # the clock was set
        await asyncio.sleep(1.5)
        assert not host.asleep()
        assert len(host.told("asleep")) == 1, "it does not sleep again when its time to wake has come"
        assert await host.stored() == {}

    on_host(tmp_path, work)


@pytest.mark.parametrize("by", ["request", "message"])
def test_a_mind_that_falls_asleep_can_be_woken(tmp_path, by):
    async def work(host):
        busy = await host.send()
        await host.sleep()
        if by == "request":
            await host.wake()
        else:
            await host.send(content="wait!")
        assert not host.manager.policy.sleepy("bob")
        [row] = await host.rows(Kind.LIFECYCLE)
        assert row.state is State.CANCELLED
        assert (await host.end()).id == busy.id
        assert not host.asleep()
        assert len(host.live()) == (by == "message")

    on_host(tmp_path, work)


def test_a_wake_that_the_card_does_not_take_is_tried_again_after_a_pause(tmp_path, monkeypatch):
    monkeypatch.setattr(sleep, "AGAIN_S", 0.1)
    tries = []

    async def work(host):
        wake = host.sleeper._wake

        async def fails_twice(*args, **more):
            tries.append(time.monotonic())
            if len(tries) < 3:
                raise unavailable("x")
            await wake(*args, **more)

        await host.fall_asleep()
        host.sleeper._wake = fails_twice
        host.sleeper.wake_for_message(MindWoken("bob"))
        await host.until(lambda: not host.asleep())
        assert len(tries) == 3
        assert tries[2] - tries[0] >= 0.2

    on_host(tmp_path, work)


def test_a_mind_whose_time_has_come_is_woken_by_one_task_alone(tmp_path):
    async def work(host):
        await host.fall_asleep(until=now_ms() + HOUR)

        async def fails(*args, **more):
            raise unavailable("x")

        host.sleeper._wake = fails
        host.skew = 2 * HOUR
        for _ in range(3):
            host.sleeper.check()
            await asyncio.sleep(0.01)
        assert len(host.sleeper._tasks) == 1

    on_host(tmp_path, work)


def test_a_woken_mind_is_awake_for_good_once_its_time_has_come(tmp_path):
    async def work(host):
        settings = host.parts.settings
        later = {"until": now_ms() + HOUR}
        settings.use(WOKEN.to("bob", later), WOKEN.to("two", {"until": None}), WOKEN.to("run", True))
        host.sleeper.check()
        assert settings.all(WOKEN) == {"bob": later, "run": True, "two": {"until": None}}
        host.skew = 2 * HOUR
        host.sleeper.check()
        assert settings.all(WOKEN) == {"run": True, "two": {"until": None}}

    on_host(tmp_path, work)


def test_a_closed_sleeper_sets_no_timer(tmp_path):
    async def work(host):
        await host.fall_asleep(until=now_ms() + HOUR)
        assert host.sleeper._timer is not None
        host.sleeper.close()
        host.sleeper.check()
        assert host.sleeper._timer is None

    on_host(tmp_path, work)
