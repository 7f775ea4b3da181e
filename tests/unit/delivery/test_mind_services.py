"""Services of minds that wake and sleep: on a real queue and a real server; only the service manager is played."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import socket

import pytest
from minds import free_port
from onqueue import on_queue
from played import parts

from hostguard.core.errors import Problem
from hostguard.core.model import Config, LiveTurn, Mind
from hostguard.core.signals import Redrive, Signal, UnitStarted
from hostguard.delivery import mind_services
from hostguard.delivery.mind_services import MindServices
from hostguard.store.settings import RESTART, SLEEP, START, stored
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns.live import Phase, Turn

ASLEEP = {"since": 1, "until": None}
DOWN, GONE = SystemdError("org.freedesktop.systemd1.NoSuchUnit", "no"), SystemdLost("the bus is gone")


class Services:
    """Notes what is asked; `answers` are what it raises, and None for success, which is also the last answer."""

    def __init__(self, *answers) -> None:
        self.answers, self.asked, self.hold = [*answers], [], None

    async def start_unit(self, unit: str) -> None:
        await self._do("start", unit)

    async def stop_unit(self, unit: str) -> None:
        await self._do("stop", unit)

    async def restart_unit(self, unit: str) -> None:
        await self._do("restart", unit)

    async def _do(self, what: str, unit: str) -> None:
        self.asked.append((what, unit))
        if self.hold is not None:
            await self.hold.wait()
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer


def test_the_played_service_manager_is_called_as_the_real_one():
    for name in ("start_unit", "stop_unit", "restart_unit"):
        real, played = (inspect.signature(getattr(one, name)) for one in (Systemd, Services))
        assert str(real) == str(played)


def on_services(path, work, *answers, **mind):
    """Run `await work(services, systemd, parts)`; `services.up` has the units reported as started."""

    async def run(queue):
        minds = {"bob": Mind("bob", **{"unit": "bob.service", **mind}), "eve": Mind("eve")}
        found, systemd, started = parts(queue, Config(minds=minds)), Services(*answers), Signal[UnitStarted]()
        redriven = Signal[Redrive]()
        services = MindServices(
            found.policy, found.settings, found.live, systemd, started, found.acceptor, redriven
        )
        services.up, services.redriven = [], []
        redriven.subscribe(lambda fact: services.redriven.append(fact.mind))
        started.subscribe(lambda fact: services.up.append(fact.unit))
        await work(services, systemd, found)
        await services._tasks.settled(5)

    on_queue(path, run)


def live(found, mind="bob"):
    turn = Turn(LiveTurn(f"{mind}.scope", mind, "s", "1"), 0, Phase.RUNNING)
    found.live.add(turn)
    return turn


def test_a_service_is_started_and_its_note_removed(tmp_path):
    async def work(services, systemd, found):
        found.settings.keep(START.to("bob", True))
        submitted, submit = [], found.queue.submit
        found.queue.submit = lambda op, **how: submitted.append(how) or submit(op, **how)
        await services.start("bob")
        assert submitted == [{"durable": False, "keep": True}], "no fsync: at worst it is started once more"
        assert systemd.asked == [("start", "bob.service")]
        assert services.up == ["bob.service"]
        assert found.settings.get(START, "bob") is None
        await found.queue.write(lambda db: None)
        assert await found.queue.read(stored) == {}

    on_services(tmp_path, work)


def test_a_mind_without_a_service_or_a_configuration_has_nothing_to_start_or_stop(tmp_path):
    async def work(services, systemd, found):
        for mind in ("eve", "nobody"):
            found.settings.use(SLEEP.to(mind, ASLEEP))
            await services.start(mind)
            services.stop(mind)
        await services._tasks.settled(5)
        assert systemd.asked == services.up == []

    on_services(tmp_path, work)


def test_what_the_guard_before_did_not_start_is_started(tmp_path):
    async def work(services, systemd, found):
        found.settings.use(START.to("bob", True), START.to("eve", True))
        services.resume()
        await services._tasks.settled(5)
        assert systemd.asked == [("start", "bob.service")]

    on_services(tmp_path, work)


def test_only_a_mind_that_sleeps_and_has_no_turn_loses_its_service(tmp_path):
    async def work(services, systemd, found):
        async def stop():
            services.stop("bob")
            await services._tasks.settled(5)

        await stop()
        found.settings.use(SLEEP.to("bob", ASLEEP | {"since": None}))
        await stop()
        found.settings.use(SLEEP.to("bob", ASLEEP))
        turn = live(found)
        await stop()
        assert systemd.asked == []
        found.live.remove(turn)
        await stop()
        assert systemd.asked == [("stop", "bob.service")]

    on_services(tmp_path, work)


def test_a_service_that_is_being_started_is_not_stopped(tmp_path):
    async def work(services, systemd, found):
        found.settings.use(SLEEP.to("bob", ASLEEP))
        systemd.hold = asyncio.Event()
        starting = asyncio.create_task(services.start("bob"))
        await asyncio.sleep(0)
        services.stop("bob")
        systemd.hold.set()
        await starting
        await services._tasks.settled(5)
        assert systemd.asked == [("start", "bob.service")]
        services.stop("bob")
        await services._tasks.settled(5)
        assert systemd.asked[1:] == [("stop", "bob.service")], "afterwards it is"

    on_services(tmp_path, work)


def test_a_stop_that_waits_for_systemd_is_given_up_once_the_mind_has_work(tmp_path, monkeypatch):
    monkeypatch.setattr(mind_services, "AGAIN_S", 0.05)

    async def work(services, systemd, found):
        found.settings.use(SLEEP.to("bob", ASLEEP))
        services.stop("bob")
        await asyncio.sleep(0.12)
        asked = len(systemd.asked)
        assert asked > 1, "systemd is asked again"
        found.settings.use(SLEEP.to("bob", None))
        await services._tasks.settled(5)
        assert len(systemd.asked) <= asked + 1

    on_services(tmp_path, work, *[GONE] * 100)


def test_a_start_is_tried_until_systemd_answers(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(mind_services, "AGAIN_S", 0.01)

    async def work(services, systemd, found):
        await services.start("bob")
        assert systemd.asked == [("start", "bob.service")] * 3
        assert services.up == ["bob.service"]

    on_services(tmp_path, work, GONE, GONE)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_a_service_that_cannot_be_started_is_logged_and_its_mind_tried(tmp_path, caplog):
    async def work(services, systemd, found):
        found.settings.use(START.to("bob", True))
        await services.start("bob")
        assert len(systemd.asked) == 1, "not asked again"
        assert services.up == ["bob.service"], "a POST shows what it is worth"
        assert found.settings.get(START, "bob") is None

    on_services(tmp_path, work, DOWN, url="http://127.0.0.1:1")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_started_mind_is_awaited_until_it_listens(tmp_path):
    port = free_port()

    async def work(services, systemd, found):
        starting = asyncio.create_task(services.start("bob"))
        await asyncio.sleep(0.15)
        assert services.up == [], "it does not listen yet"
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
        await asyncio.wait_for(starting, 5)
        assert services.up == ["bob.service"]
        server.close()

    on_services(tmp_path, work, url=f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:{port}"])
def test_it_is_not_awaited_for_ever(tmp_path, monkeypatch, caplog, url):
    monkeypatch.setattr(mind_services, "LISTEN_S", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]

        async def work(services, systemd, found):
            await asyncio.wait_for(services.start("bob"), 5)
            assert services.up == ["bob.service"]

        on_services(tmp_path, work, url=url and url.format(port=port))
    assert len(caplog.records) == (url is not None)


def test_nothing_is_asked_after_the_close(tmp_path, monkeypatch):
    monkeypatch.setattr(mind_services, "AGAIN_S", 0.01)

    async def work(services, systemd, found):
        found.settings.use(SLEEP.to("bob", ASLEEP))
        services.stop("bob")
        await asyncio.sleep(0.03)
        services.close()
        await asyncio.sleep(0)
        asked = len(systemd.asked)
        await asyncio.sleep(0.05)
        assert len(systemd.asked) == asked > 0

    on_services(tmp_path, work, *[GONE] * 100)


# -- restarts


def test_a_restart_waits_for_the_turns_of_its_mind_which_gets_no_others_meanwhile(tmp_path):
    async def work(services, systemd, found):
        turn = live(found)
        await services.restart("bob", "")
        await services.restart("bob", "")  # the mind asks after every turn
        services.restart_idle()
        await services._tasks.settled(5)
        assert (systemd.asked, services.redriven) == ([], [])
        assert found.gate.view("bob").restarting
        assert await found.queue.read(stored) == {"restart.mind.bob": ""}, "the next guard would do it"
        found.live.remove(turn)
        services.restart_idle()
        services.restart_idle()
        await services._tasks.settled(5)
        assert systemd.asked == [("restart", "bob.service")]
        assert (services.up, services.redriven) == (["bob.service"], ["bob"])
        assert not found.gate.view("bob").restarting
        await found.queue.write(lambda db: None)
        assert await found.queue.read(stored) == {}
        assert found.backlog.first("bob") is None, "it asked for it itself, and is told nothing"

    on_services(tmp_path, work)


def test_after_a_restart_the_mind_is_told_why(tmp_path):
    async def work(services, systemd, found):
        turn = live(found)
        await services.restart("bob", "")
        await services.restart("bob", "upgraded")
        await services.restart("bob", "")
        assert found.backlog.first("bob") is None, "not before: it would go into a turn of the old process"
        found.live.remove(turn)
        services.restart_idle()
        await services._tasks.settled(5)
        assert systemd.asked == [("restart", "bob.service")]
        row = found.backlog.first("bob")
        _, raw = await found.ledger.fetch(row.id)
        told = json.loads(raw)
        assert (row.session, row.kind) == ("main", "lifecycle")
        assert (told["content"], told["channel"], told["interrupt"]) == ("upgraded", "@volute", False)
        assert not found.gate.view("bob").restarting

    on_services(tmp_path, work)


def test_the_next_guard_restarts_what_a_killed_one_did_not(tmp_path):
    async def work(services, systemd, found):
        found.settings.use(RESTART.to("bob", ""), RESTART.to("gone", ""))
        services.resume()
        services.restart_idle()
        await services._tasks.settled(5)
        assert systemd.asked == [("restart", "bob.service")]
        assert not found.settings.all(RESTART)

    on_services(tmp_path, work)


def test_the_service_of_a_mind_that_sleeps_is_not_restarted(tmp_path):
    async def work(services, systemd, found):
        found.settings.use(SLEEP.to("bob", ASLEEP))
        await services.restart("bob", "")
        await services._tasks.settled(5)
        assert systemd.asked == []
        assert not found.settings.all(RESTART)

    on_services(tmp_path, work)


def test_a_mind_without_a_service_cannot_be_restarted(tmp_path):
    async def work(services, systemd, found):
        with pytest.raises(Problem, match=r"set minds\.eve\.unit"):
            await services.restart("eve", "")
        assert not found.settings.all(RESTART)

    on_services(tmp_path, work)


def test_a_restart_that_fails_is_given_up(tmp_path, caplog):
    async def work(services, systemd, found):
        await services.restart("bob", "")
        await services._tasks.settled(5)
        assert not found.gate.view("bob").restarting, "its messages show what the mind is worth"

    on_services(tmp_path, work, DOWN)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
