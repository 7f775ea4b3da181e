"""Which cgroup each process of a resident mind is in before, during and after a turn. Only the guard's parts run."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest
from adoption_host import MAIN, OTHER, UNIT, USER, Host, Server, a_host, at, cgroup, delegated, with_host
from adoption_host import _clean as _clean
from adoption_host import server as server
from guard import run
from minds import free_port
from until import until

from hostguard.core.model import Mind
from hostguard.linux import cgroup as cgroups
from hostguard.turns import adoption


def test_each_process_before_during_and_after_a_turn(server: Server) -> None:
    """And the server, and who else lives in its cgroup, stay where they are."""
    neighbour = subprocess.Popen(["sleep", "60"])

    async def work(host: Host) -> None:
        home, mine = server.home, cgroup(neighbour.pid)
        child = server.ask("child")
        early = server.ask(f"fork {child}")
        pids = {"server": server.pid, "child": child, "its child": early, "neighbour": neighbour.pid}

        def at() -> dict[str, str]:
            return {name: cgroup(pid) for name, pid in pids.items()}

        before = {"server": home, "child": home, "its child": home, "neighbour": mine}
        assert at() == before

        await host.begin(server.mind, MAIN)
        pids["anchor"] = host.anchors[MAIN]
        during = {"server": home, "child": MAIN, "its child": MAIN, "neighbour": mine, "anchor": MAIN}
        assert at() == during

        await asyncio.sleep(0.8)  # the close looks are over
        pids |= {"born in it": server.ask(f"fork {child}"), "spawned later": server.ask("child")}
        during |= {"born in it": MAIN, "spawned later": MAIN}
        await until(lambda: cgroup(pids["spawned later"]) == MAIN)
        assert at() == during

        assert await host.end(MAIN) == []
        assert at() == {
            **before, "anchor": "gone", "born in it": home, "spawned later": home
        }  # fmt: skip
        assert host.died == []

    with_host(work)
    neighbour.kill()
    neighbour.wait()


@delegated
def test_what_is_spawned_soon_after_a_word_of_the_mind_is_adopted_soon(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first looks follow each other closely; a look on request begins them anew."""
    monkeypatch.setattr(adoption, "EVERY_S", 600.0)

    async def work(host: Host) -> None:
        await host.begin(server.mind, MAIN)
        await asyncio.sleep(1.2)  # the close looks are over
        for _ in range(5):
            child = server.ask("child")
            host.adopter.look("m")
            await until(lambda child=child: cgroup(child) == MAIN)
        await host.end(MAIN)

    with_host(work)


def test_a_process_stays_its_sessions_and_a_new_one_is_the_youngest_turns(server: Server) -> None:
    async def work(host: Host) -> None:
        first, parent = server.ask("child"), server.ask("child")
        await host.begin(server.mind, MAIN, "main")
        born, orphan = server.ask(f"fork {first}"), server.ask(f"fork {parent}")
        server.ask(f"end {parent}")
        await host.begin(server.mind, OTHER, "other")
        second = server.ask("child")
        await until(lambda: cgroup(second) == OTHER)
        assert at(first, born, orphan) == [MAIN] * 3

        home = server.home
        await host.end(MAIN)
        assert at(first, born, orphan, second) == [home, home, home, OTHER]
        later = server.ask(f"fork {first}")  # at home, and of the other session all the same
        await asyncio.sleep(1.3)  # past a look
        assert at(first, born, orphan, later, second) == [home, home, home, home, OTHER]
        await host.end(OTHER)

        await host.close()
        async with a_host() as again:  # the guard was restarted
            await again.begin(server.mind, OTHER, "other")
            assert at(first, born, orphan, later, second) == [home, home, home, home, OTHER]
            await again.begin(server.mind, MAIN, "main")
            assert at(first, born, orphan, later, second) == [MAIN, MAIN, MAIN, MAIN, OTHER]
            await again.end(OTHER)
            await again.end(MAIN)
        assert at(first, born, orphan, later, second) == [home] * 5

    with_host(work)


def test_a_process_of_another_user_is_not_moved(server: Server) -> None:
    async def work(host: Host) -> None:
        mine, other = server.ask("child"), server.ask(f"child {USER}")
        await until(lambda: Path(f"/proc/{other}").stat().st_uid == USER)  # from its exec on
        await host.begin(server.mind, MAIN)
        assert (cgroup(mine), cgroup(other)) == (MAIN, server.home)
        await host.end(MAIN)

    with_host(work)


@delegated
def test_cgroups_below_the_minds_unit_and_below_the_scope(server: Server) -> None:
    """The server may have its processes in a cgroup that it made, and so may a process of a session."""

    async def work(host: Host) -> None:
        child = server.ask("child")
        unit = cgroups.ROOT / "system.slice" / UNIT
        (unit / "below").mkdir()
        for pid in (server.pid, child):
            (unit / "below/cgroup.procs").write_text(str(pid))
        await host.begin(server.mind, MAIN)
        assert (cgroup(server.pid), cgroup(child)) == ("below", MAIN)
        inner = host.cgroup(MAIN, "m") / "inner"
        inner.mkdir()
        (inner / "cgroup.procs").write_text(str(child))
        assert not host.adopter.deserted(MAIN)
        assert await host.end(MAIN) == []
        assert (cgroup(server.pid), cgroup(child)) == ("below", "below")

    with_host(work)


def test_a_mind_without_a_server_here_has_nothing_to_adopt(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        for mind in (
            Mind("m", url=f"http://127.0.0.1:{free_port()}"),
            Mind("m", url=f"http://192.0.2.1:{free_port()}", unit="nowhere.service"),
        ):
            await host.begin(mind, MAIN)
            assert not host.adopter.deserted(MAIN)
            assert await host.end(MAIN) == []
            assert cgroup(host.anchors[MAIN]) == "gone"
            await until(lambda: "not-found" in run("systemctl", "show", "-p", "LoadState", MAIN).stdout)
        assert host.died == []

    with_host(work)


@pytest.mark.parametrize("server", ["none"], indirect=True)
def test_another_hosts_port_is_not_looked_for_here(server: Server) -> None:
    async def work(host: Host) -> None:
        child = server.ask("child")
        await host.begin(Mind("m", url=f"http://192.0.2.1:{server.port}"), MAIN)
        assert cgroup(child) == server.home
        await host.end(MAIN)
        await until(lambda: "not-found" in run("systemctl", "show", "-p", "LoadState", MAIN).stdout)
        await host.begin(Mind("m", url=f"http://127.0.0.1:{server.port}"), MAIN)
        assert cgroup(child) == MAIN
        await host.end(MAIN)

    with_host(work)


@delegated
def test_idle_is_for_how_long_the_processes_did_nothing_and_deserted_that_none_is_left(
    server: Server,
) -> None:
    async def work(host: Host) -> None:
        child = server.ask("child")
        await host.begin(server.mind, MAIN)
        quiet = time.monotonic()
        assert host.adopter.idle_ms(MAIN) == 0
        await until(lambda: host.adopter.idle_ms(MAIN) > 500)
        assert time.monotonic() - quiet > 0.5
        server.ask(f"burn {child} 0.3")
        await until(lambda: host.adopter.idle_ms(MAIN) < 300)
        assert not host.adopter.deserted(MAIN)
        server.ask(f"end {child}")
        await until(lambda: host.adopter.deserted(MAIN))
        await host.end(MAIN)

    with_host(work)
