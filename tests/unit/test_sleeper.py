"""Sleep and wake over a real queue and a real gate. Only systemd is played: turns end when told to."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from test_manager import OK, Played, Silent

from hostguard import control, deliveries, intake, turns
from hostguard.accept import Acceptor
from hostguard.clock import now_ms
from hostguard.events import Events
from hostguard.manager import Manager
from hostguard.model import Config, Kind, Mind, Reason, State
from hostguard.policy import Policy, sleep_key, woken_key
from hostguard.problems import Problem
from hostguard.queue import Queue
from hostguard.sleeper import Sleeper

HOUR = 3_600_000
MINDS = {
    "bob": Mind("bob", ("/bin/true",), sleep_after=0),
    "two": Mind("two", ("/bin/true",), concurrent_turns=2),
    "run": Mind("run"),
}
CONFIG = Config(minds=MINDS, channels={"#x": ("bob", "two")})
DOWN = turns.Ending("down", "connection refused", back=True, pause_ms=2_500)


class Host:
    """A guard's life; the next one is on the same queue. `skew` sets the clock of sleep, in ms."""

    def __init__(self, folder, config=CONFIG):
        self.folder, self.config, self.skew = folder, config, 0

    async def __aenter__(self):
        self.queue = Queue(self.folder / "queue.db")
        await self.queue.open()
        self.manager = manager = Manager(self.queue, Events(Silent()), lambda: None)
        manager.policy = Policy(self.config, await self.queue.read(deliveries.settings), "boot")
        manager.runner = Played(manager._over)
        waiting = await self.queue.read(lambda db: list(deliveries.queued(db)))
        manager.backlog.load(waiting, now_ms())
        self.acceptor = Acceptor(manager, lambda mind: None, lambda mind: self.sleeper.wake_for_message(mind))
        self.sleeper = Sleeper(manager, self.acceptor, lambda: now_ms() + self.skew)
        manager.on_session = self.sleeper.on_session
        manager.ready = True
        manager.pump()
        self.sleeper.start()
        await self.idle()
        return self

    async def __aexit__(self, *_):
        self.manager.closing = True
        self.sleeper.close()
        await self.manager.settled(5)
        await self.queue.close()

    async def idle(self):
        """Until nothing is under way but what waits for a time."""
        while tasks := {*self.manager._tasks, *self.sleeper._tasks}:
            await asyncio.wait(tasks, timeout=5)
        await self.queue.write(lambda db: None)

    async def send(self, to="bob", content="x", **fields):
        body = {"to": to, "content": content, **fields}
        accepted = await self.acceptor.send(intake.message(body, self.config, now_ms()))
        await self.idle()
        return accepted.rows[0]

    async def sleep(self, mind="bob", until=None):
        await self.sleeper.sleep(mind, until)
        await self.idle()

    async def fall_asleep(self, mind="bob", until=None):
        await self.sleep(mind, until)
        await self.end()
        assert self.asleep(mind)

    async def wake(self, mind="bob"):
        await self.sleeper.wake(mind, "by request")
        await self.idle()

    def live(self):
        return [turn.delivery.id for turn in self.manager.runner.live]

    async def end(self, ending=OK):
        """End the oldest turn; its row."""
        turn = next(iter(self.manager.runner.live))
        self.manager.runner.end(turn, ending)
        await self.idle()
        return turn.delivery

    def asleep(self, mind="bob"):
        return self.manager.policy.asleep(mind)

    async def stored(self):
        found = await self.queue.read(deliveries.settings)
        return {name: value for name, value in found.items() if name.startswith(("sleep.", "woken."))}

    async def rows(self, *kinds):
        found = await self.queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 10_000))
        return [row for row in found if not kinds or row.kind in kinds]

    async def content(self, row):
        return (await self.queue.read(partial(deliveries.with_payload, id_=row.id)))[1].decode()

    def told(self, type_):
        return [event["text"] for event in self.manager.events.kept(0) if event["type"] == type_]


def on_host(path, work, config=CONFIG):
    async def main():
        async with Host(path, config) as host:
            await work(host)

    asyncio.run(main())


# -- to sleep


def test_a_mind_is_told_first_and_sleeps_when_that_turn_is_over(tmp_path):
    async def work(host):
        await host.sleep(until=now_ms() + HOUR)
        [row] = await host.rows(Kind.LIFECYCLE)
        assert "You are about to sleep until" in await host.content(row)
        assert host.live() == [row.id]
        assert not host.asleep()
        later = await host.send(whileSleeping="queue")
        await host.end()
        assert host.asleep()
        assert host.live() == [], "what came later waits, and had no slot in between"
        assert host.manager.verdict(later.row).reason is Reason.ASLEEP
        stored = await host.stored()
        assert stored[sleep_key("bob")]["since"] > 0
        assert stored[sleep_key("bob")]["until"] > now_ms()
        assert len(host.told("asleep")) == 1

    on_host(tmp_path, work)


def test_rows_before_it_go_first(tmp_path):
    async def work(host):
        first = [(await host.send(session=f"s{i}")).id for i in range(3)]
        await host.sleep()
        for id_ in first:
            assert not host.asleep()
            assert (await host.end()).id == id_
        assert (await host.end()).kind is Kind.LIFECYCLE
        assert host.asleep()

    on_host(tmp_path, work)


def test_a_turn_beside_it_goes_on_and_none_begins(tmp_path):
    async def work(host):
        long = await host.send("two", session="long")
        await host.sleep("two")
        [notice] = await host.rows(Kind.LIFECYCLE)
        later = await host.send("two", session="later", whileSleeping="queue")
        assert host.live() == [long.id, notice.id]
        host.manager.runner.end([*host.manager.runner.live][1], OK)
        await host.idle()
        assert host.asleep("two")
        assert host.live() == [long.id]
        await host.end()
        assert host.live() == []
        await host.wake("two")
        assert host.live()[0] == later.id

    on_host(tmp_path, work)


def test_a_message_that_is_given_back_is_still_to_come(tmp_path):
    async def work(host):
        await host.sleep()
        await host.end(DOWN)
        assert not host.asleep()
        assert host.manager.backlog.total("bob") == 1

    on_host(tmp_path, work)


def test_a_mind_that_can_be_told_nothing_sleeps_at_once(tmp_path):
    async def work(host):
        await host.sleep("run")
        assert host.asleep("run")
        host.manager.policy.config = Config(minds=MINDS, rows_per_mind=1)
        await control.pause(host.manager, "bob", True)
        await host.send()
        await host.sleep("bob")
        assert host.asleep("bob"), "its queue is full"
        assert await host.rows(Kind.LIFECYCLE) == []
        await host.wake("bob")
        assert not host.asleep("bob")
        assert await host.rows(Kind.WAKE) == []

    on_host(tmp_path, work)


def test_a_message_that_is_cancelled_is_not_waited_for(tmp_path):
    async def work(host):
        await control.pause(host.manager, "bob", True)
        await host.sleep()
        [row] = await host.rows(Kind.LIFECYCLE)
        assert row.expires_at > now_ms(), "nor is one that cannot start"
        await control.cancel(host.manager, row.id)
        host.sleeper.check()
        assert host.asleep()

    on_host(tmp_path, work)


def test_until_can_be_changed_and_is_in_the_future(tmp_path):
    async def work(host):
        with pytest.raises(Problem, match="in the past"):
            await host.sleep(until=now_ms() - 1)
        with pytest.raises(Problem, match="no mind zoe"):
            await host.sleep("zoe")
        await host.fall_asleep()
        later = now_ms() + HOUR
        await host.sleep(until=later)
        assert (await host.stored())[sleep_key("bob")]["until"] == later
        assert len(await host.rows(Kind.LIFECYCLE)) == 1
        assert host.asleep()

    on_host(tmp_path, work)


def test_until_can_be_changed_while_the_mind_falls_asleep(tmp_path):
    async def work(host):
        await host.sleep()
        change = asyncio.create_task(host.sleeper.sleep("bob", now_ms() + HOUR))
        await asyncio.sleep(0)  # it is being stored
        host.manager.runner.end(next(iter(host.manager.runner.live)), OK)
        await change
        await host.idle()
        assert host.asleep()
        stored = (await host.stored())[sleep_key("bob")]
        assert stored["since"] is not None
        assert stored["until"] is not None

    on_host(tmp_path, work)


@pytest.mark.parametrize("what", ["sleep", "wake"])
def test_a_card_that_takes_no_write_changes_nothing(tmp_path, what):
    async def work(host):
        if what == "wake":
            await host.fall_asleep()
        await host.queue.write(
            lambda db: db.execute(
                "CREATE TRIGGER t BEFORE INSERT ON deliveries BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        )
        before = await host.stored()
        with pytest.raises(Problem, match="bob is as it was"):
            await getattr(host, what)()
        await host.idle()
        assert await host.stored() == before
        assert host.manager.policy.sleepy("bob") == (what == "wake")

    on_host(tmp_path, work)


# -- awake


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
        await control.pause(host.manager, "bob", True)  # so that the row stays where it is
        row = await host.send(**fields)
        assert host.asleep() == asleep
        assert (await control.delivery(host.manager, row.id)).state is state
        assert await host.rows(Kind.WAKE) == [], "the message itself tells it"
        assert await host.stored() == (
            {sleep_key("bob"): host.manager.policy.setting(sleep_key("bob"))}
            if asleep
            else {woken_key("bob"): {"until": None}}
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
        await asyncio.sleep(1.4)
        assert (await host.end()).kind is Kind.MESSAGE
        assert not host.asleep()
        await asyncio.sleep(1.3)
        await host.idle()
        assert host.asleep()
        assert (await host.stored())[sleep_key("bob")]["until"] == until
        assert woken_key("bob") not in await host.stored()
        assert len(await host.rows(Kind.LIFECYCLE)) == 1, "without a word"

    on_host(tmp_path, work)


def test_one_whose_message_waits_in_a_batch_stays_awake_until_that_goes_out(tmp_path):
    async def work(host):
        await host.fall_asleep()
        await host.send(content="@bob")
        await host.end()
        host.manager.kept = lambda mind: (mind == "bob", 0)
        await asyncio.sleep(1.3)
        assert not host.asleep()
        host.manager.kept = lambda mind: (0, 1)  # what no route matches waits for the mind, not it for that
        await asyncio.sleep(1.3)
        assert host.asleep()

    on_host(tmp_path, work)


def test_one_that_was_woken_for_nothing_sleeps_again_too(tmp_path):
    async def work(host):
        await host.fall_asleep()
        await control.pause(host.manager, "bob", True)
        row = await host.send()
        assert not host.asleep()
        await control.cancel(host.manager, row.id)
        await asyncio.sleep(1.3)
        assert host.asleep(), "although it had no turn"

    on_host(tmp_path, work)


def test_a_woken_mind_is_put_to_sleep(tmp_path):
    async def work(host):
        await host.fall_asleep(until=now_ms() + HOUR)
        await host.send()
        await host.end()
        await host.fall_asleep()
        [(name, state)] = (await host.stored()).items()
        assert (name, state["until"]) == (sleep_key("bob"), None)

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
        assert host.manager.policy.setting(woken_key("bob")) == woken
        assert await host.stored() == ({woken_key("bob"): woken} if woken else {})
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
        await host.fall_asleep(until=now_ms() + 300)
        await asyncio.sleep(0.6)
        await host.idle()
        assert not host.asleep(), "by itself"

    on_host(tmp_path, work)


def test_a_woken_minds_time_comes_too(tmp_path):
    async def work(host):
        await host.fall_asleep(until=now_ms() + 800)
        await host.send()
        await host.end()
        await asyncio.sleep(2)
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


# -- after a restart


def restarted(path, before, after):
    async def main():
        async with Host(path) as host:
            await before(host)
        async with Host(path) as host:
            await after(host)

    asyncio.run(main())


def test_a_sleeping_mind_sleeps_on(tmp_path):
    async def before(host):
        await host.fall_asleep()
        await host.send(whileSleeping="queue")

    async def after(host):
        assert host.asleep()
        assert host.live() == []
        assert host.manager.backlog.count("bob") == 1

    restarted(tmp_path, before, after)


def test_a_mind_goes_on_to_fall_asleep(tmp_path):
    async def before(host):
        await control.pause(host.manager, "bob", True)
        await host.sleep()

    async def after(host):
        assert not host.asleep()
        await control.pause(host.manager, "bob", False)
        await host.idle()
        assert (await host.end()).kind is Kind.LIFECYCLE
        assert host.asleep()

    restarted(tmp_path, before, after)


def test_a_mind_sleeps_whose_message_ended_meanwhile(tmp_path):
    async def before(host):
        await control.pause(host.manager, "bob", True)
        await host.sleep()
        await host.queue.write(lambda db: db.execute("UPDATE deliveries SET state = 'done'"))

    async def after(host):
        assert host.asleep()

    restarted(tmp_path, before, after)


def test_a_message_wakes_a_mind_although_the_guard_was_killed(tmp_path):
    async def before(host):
        await host.fall_asleep()
        mark = partial(deliveries.set_setting, name=woken_key("bob"), value=True)
        await host.queue.write(mark)  # as with the message, before the mind is woken for it

    async def after(host):
        assert not host.asleep()
        assert await host.stored() == {woken_key("bob"): {"until": None}}

    restarted(tmp_path, before, after)


def test_a_message_that_is_known_already_wakes_nobody(tmp_path):
    async def before(host):
        await host.send(key="k")
        await host.end()
        await host.fall_asleep()
        await host.send(key="k")
        assert host.asleep()

    async def after(host):
        assert host.asleep()

    restarted(tmp_path, before, after)


def test_a_woken_mind_sleeps_again(tmp_path):
    async def before(host):
        await host.fall_asleep()
        await host.send()
        await host.end()

    async def after(host):
        assert not host.asleep()
        await asyncio.sleep(1.3)
        assert host.asleep()

    restarted(tmp_path, before, after)
