"""Processes that start, end and escape, and a server, guard or bus that is lost: all processes are still moved."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from adoption_host import MAIN, OTHER, UNIT, Host, Server, a_host, at, cgroup, delegated, with_host
from adoption_host import _clean as _clean
from adoption_host import server as server
from bus_relay import RELAY, Bus
from until import until

from hostguard.core.model import Mind
from hostguard.turns import exit_record
from hostguard.turns.mind_server import attach


@delegated
def test_a_process_that_is_gone_keeps_no_other_from_being_moved(server: Server) -> None:
    async def work(host: Host) -> None:
        gone, child = server.ask("child"), server.ask("child")
        server.ask(f"end {gone}")
        await host.begin(Mind("m", url="http://192.0.2.1:1"), MAIN)
        await attach(host.systemd, MAIN, [gone, child, gone])
        assert cgroup(child) == MAIN
        await attach(host.systemd, UNIT, [gone, child])
        assert cgroup(child) == server.home
        await host.end(MAIN)

    with_host(work)


def test_processes_that_come_and_go_keep_no_other_from_being_moved(server: Server) -> None:
    async def work(host: Host) -> None:
        over = False

        def churn() -> None:
            while not over:
                server.ask("churn 100")

        churning = asyncio.create_task(asyncio.to_thread(churn))
        for _ in range(5):
            await host.begin(server.mind, MAIN)
            for _ in range(20):
                host.adopter.look("m")
                await asyncio.sleep(0.01)
            assert await host.end(MAIN) == []
        over = True
        await churning

    with_host(work)


def test_a_process_that_forks_and_leaves_without_end_comes_home(server: Server) -> None:
    async def work(host: Host) -> None:
        child = server.ask("child")
        await host.begin(server.mind, MAIN)
        for _ in range(3):
            server.ask(f"flee {child}")
        await asyncio.sleep(0.1)
        assert await host.end(MAIN) == []
        assert not server.fled(), "they came home although they still flee"
        (server.folder / "fled").touch()
        await until(lambda: len(server.fled()) == 3)
        assert at(child, *server.fled()) == [server.home] * 4
        for pid in server.fled():
            os.kill(pid, signal.SIGKILL)

    with_host(work)


@delegated
def test_a_turn_that_ends_while_a_look_begins_stays_empty(server: Server) -> None:
    async def work(host: Host) -> None:
        for steps in range(6):
            await host.begin(server.mind, f"hostguard-turn-m-{steps}.scope")
            await asyncio.sleep(0.1)
            child = server.ask("child")
            host.adopter.look("m")
            for _ in range(steps):  # of the event loop
                await asyncio.sleep(0)
            assert await host.end(f"hostguard-turn-m-{steps}.scope") == []
            await asyncio.sleep(0.1)
            assert cgroup(child) == server.home

    with_host(work)


@pytest.mark.parametrize("server", ["delegated", "none"], indirect=True)
def test_a_server_that_dies_is_told_once_and_its_processes_are_left(server: Server) -> None:
    async def work(host: Host) -> None:
        child = server.ask("child")
        await asyncio.gather(host.begin(server.mind, MAIN), host.begin(server.mind, OTHER))
        await until(lambda: cgroup(child) in (MAIN, OTHER))
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: host.died)
        left = [await host.end(unit) for unit in (MAIN, OTHER)]
        assert sorted(left) == [[], [child]]
        assert cgroup(child) in (MAIN, OTHER)
        await until(lambda: {cgroup(pid) for pid in host.anchors.values()} == {"gone"})
        assert host.died == ["m"]
        os.kill(child, signal.SIGKILL)

    with_host(work)


def test_a_guard_that_is_killed_in_the_middle_finds_all_again(server: Server) -> None:
    async def work(host: Host) -> None:
        child = server.ask("child")
        await host.begin(server.mind, MAIN)
        await host.close()
        assert cgroup(host.anchors[MAIN]) == MAIN, "the anchor stays without the guard"

        async with a_host() as again:
            record = exit_record.read_record("1")
            assert record is not None
            assert record.anchor == host.anchors[MAIN]
            await again.adopter.begin(MAIN, server.mind, "main", record.anchor)
            later = server.ask("child")
            await until(lambda: cgroup(later) == MAIN)
            assert cgroup(child) == MAIN

            await again.begin(server.mind, OTHER, "other")
            assert await again.end(MAIN) == []
            await asyncio.sleep(1.3)
            assert {cgroup(pid) for pid in (child, later)} == {server.home}, "they are main's"
            assert await again.end(OTHER) == []

    with_host(work)


@delegated
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket")
def test_the_way_home_waits_for_a_bus_that_is_lost(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(host: Host) -> None:
        child = server.ask("child")
        await host.begin(server.mind, MAIN)
        await asyncio.to_thread(bus.cut)
        ending = asyncio.create_task(host.end(MAIN))
        await asyncio.sleep(2.5)
        assert not ending.done()
        assert cgroup(child) == MAIN
        bus.mend()
        assert await ending == []
        assert cgroup(child) == server.home
        caplog.clear()

    with Bus() as bus:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={RELAY}")
        with_host(work)
