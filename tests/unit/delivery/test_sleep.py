"""How a mind is put to sleep, and what a restart leaves of that."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest
from onqueue import failure
from played import OK
from sleeping_host import DOWN, HOUR, MINDS, Host, on_host
from until import until

from hostguard.core.clock import now_ms
from hostguard.core.errors import Problem
from hostguard.core.model import Config, Kind, Mind
from hostguard.core.reasons import Reason
from hostguard.delivery import message as intake
from hostguard.store import deliveries, requests
from hostguard.store.settings import SLEEP, WOKEN, stored, write


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
        assert stored[SLEEP.key("bob")]["since"] > 0
        assert stored[SLEEP.key("bob")]["until"] > now_ms()
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
        await host.manager.parts.control.pause("bob", True)
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
        await host.manager.parts.control.pause("bob", True)
        await host.sleep()
        [row] = await host.rows(Kind.LIFECYCLE)
        assert row.expires_at > now_ms(), "nor is one that cannot start"
        await host.manager.parts.deliveries.cancel(row.id)
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
        assert (await host.stored())[SLEEP.key("bob")]["until"] == later
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
        stored = (await host.stored())[SLEEP.key("bob")]
        assert stored["since"] is not None
        assert stored["until"] is not None

    on_host(tmp_path, work)


@pytest.mark.parametrize("what", ["sleep", "wake"])
def test_a_card_that_takes_no_write_changes_nothing(tmp_path, what, monkeypatch):
    async def work(host):
        if what == "wake":
            await host.fall_asleep()

        def fail(*_, **__):
            raise failure(sqlite3.SQLITE_NOMEM)

        monkeypatch.setattr(deliveries, "enqueue", fail)
        before = await host.stored()
        with pytest.raises(Problem, match="bob is unchanged"):
            await getattr(host, what)()
        await host.idle()
        assert await host.stored() == before
        assert host.manager.policy.sleepy("bob") == (what == "wake")

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
        await host.manager.parts.control.pause("bob", True)
        await host.sleep()

    async def after(host):
        assert not host.asleep()
        await host.manager.parts.control.pause("bob", False)
        await host.idle()
        assert (await host.end()).kind is Kind.LIFECYCLE
        assert host.asleep()

    restarted(tmp_path, before, after)


def test_a_mind_sleeps_whose_message_ended_meanwhile(tmp_path):
    async def before(host):
        await host.manager.parts.control.pause("bob", True)
        await host.sleep()
        await host.queue.write(lambda db: db.execute("UPDATE deliveries SET state = 'done'"))

    async def after(host):
        assert host.asleep()

    restarted(tmp_path, before, after)


def test_a_message_wakes_a_mind_although_the_guard_was_killed(tmp_path):
    async def before(host):
        await host.fall_asleep()
        # As with the message, before the mind is woken for it.
        await host.queue.write(lambda db: write(db, WOKEN.to("bob", True)))

    async def after(host):
        assert not host.asleep()
        assert await host.stored() == {WOKEN.key("bob"): {"until": None}}

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
        await host.until(host.asleep)

    restarted(tmp_path, before, after)


class Services:
    """A service manager whose services start once they may."""

    def __init__(self):
        self.asked, self.may = [], asyncio.Event()

    async def start_unit(self, unit):
        self.asked.append(f"start {unit}")
        await self.may.wait()

    async def stop_unit(self, unit):
        self.asked.append(f"stop {unit}")


def test_a_service_is_stopped_once_the_last_turn_has_ended(tmp_path):
    async def work(host):
        services = host.parts.services._systemd = Services()
        long = await host.send("svc", session="long")
        await host.sleep("svc")
        host.manager.runner.end([*host.manager.runner.live][1], OK)
        await host.idle()
        assert (host.asleep("svc"), host.live(), services.asked) == (True, [long.id], [])
        await host.end()
        assert services.asked == ["stop svc.service"]

    minds = {"svc": Mind("svc", ("/bin/true",), unit="svc.service", concurrent_turns=2)}
    on_host(tmp_path, work, Config(minds=minds))


@pytest.mark.parametrize("by_message", [False, True])
def test_a_mind_with_a_service_sleeps_until_that_runs(tmp_path, by_message):
    """And a guard that is killed meanwhile starts it: the note of that is stored with the change."""

    async def work(host):
        services = host.parts.services._systemd = Services()
        await host.fall_asleep("svc")
        assert {*services.asked} == {"stop svc.service"}
        services.asked.clear()
        row, waking = None, None
        if by_message:
            message = intake.message({"to": "svc", "content": "x"}, host.config, now_ms())
            (row,) = (await host.acceptor.send(message)).rows
        else:
            row = await host.send("svc", whileSleeping="queue")
            waking = asyncio.create_task(host.sleeper.wake("svc", "by request"))
        await until(lambda: services.asked)
        await host.queue.write(lambda db: None)
        found = await host.queue.read(stored)
        woken = {WOKEN.key("svc"): {"until": None}} if by_message else {}
        assert found == woken | {"start.mind.svc": True}, "in the database it is awake"
        assert host.asleep("svc"), "its rows are held until it can take them"
        assert host.live() == []
        services.may.set()
        await host.idle()
        if waking is not None:
            await waking
        assert not host.asleep("svc")
        assert await host.queue.read(stored) == woken
        assert services.asked == ["start svc.service"]
        assert host.live()[0] == row.id

    minds = {"svc": Mind("svc", ("/bin/true",), unit="svc.service")}
    on_host(tmp_path, work, Config(minds=minds))


@pytest.mark.parametrize("asleep", [False, True])
def test_a_change_that_the_card_takes_too_late_is_undone_whole(tmp_path, monkeypatch, asleep):
    """The caller was told that the mind is as it was: so it is in memory, and in the database."""
    monkeypatch.setattr(requests, "ANSWER_S", 0.2)

    async def work(host):
        if asleep:
            await host.sleep("run")  # it takes no message: it sleeps at once
        before = await host.stored()
        first, second, begun = threading.Event(), threading.Event(), threading.Event()
        host.queue.submit(lambda db: (begun.set(), first.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        host.queue.submit(lambda db: second.wait(10))  # in one commit with the change
        change = host.sleeper.wake("run", "by request") if asleep else host.sleeper.sleep("run", None)
        changing = asyncio.create_task(change)
        await asyncio.sleep(0.02)
        first.set()
        with pytest.raises(Problem, match="run is unchanged, try again"):
            await changing
        second.set()
        await host.queue.write(lambda db: None)
        await host.idle()
        assert host.asleep("run") is asleep
        assert await host.stored() == before

    on_host(tmp_path, work)
