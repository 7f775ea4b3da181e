"""Which processes are a mind's server, which is never moved. As test_adoption.py, without the guard."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import family
import pytest
from adoption_host import FILE, MAIN, OTHER, UNIT, Host, Server, a_host, cgroup, delegated, listens, with_host
from adoption_host import _clean as _clean
from adoption_host import server as server
from guard import run, systemctl
from minds import free_port
from until import until

from hostguard.core.model import Mind
from hostguard.linux.cgroup import populated
from hostguard.linux.process import members

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket")

NEIGHBOURS = "hostguard-turn-n-1.scope"
TWINS = f"""
import os, sys
sys.path.insert(0, {str(Path(family.__file__).parent)!r})
import family
made = family.socket.create_server
def twins(address):
    server = made(address)
    os.fork()
    return server
family.socket.create_server = twins
family.serve(int(sys.argv[1]), sys.argv[2])
"""
SHELL = f"{sys.executable} -S {family.__file__} {{port}} {{fled}}; exit 1"  # does not become the server


@pytest.fixture(params=["shell", "twins"])
def several(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Mind, int, list[int]]]:
    """A mind in a unit whose server is more than its main process: the mind, its port, and all of them."""
    port = free_port()
    fields = {"port": port, "fled": tmp_path / "fled"}
    if request.param == "shell":
        command = f'/bin/sh -c "{SHELL.format(**fields)}"'
    else:
        script = tmp_path / "twins.py"
        script.write_text(TWINS)
        command = f"{sys.executable} -S {script} {port} {fields['fled']}"
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(f"[Service]\nDelegate=yes\nExecStart={command}\n")
    systemctl("daemon-reload")
    systemctl("start", UNIT)
    home = Path("/sys/fs/cgroup/system.slice", UNIT)
    asyncio.run(until(lambda: len(members(home)) == 2 and listens(port)))
    yield (
        Mind("m", url=f"http://127.0.0.1:{port}", unit=UNIT),
        port,
        members(home),
    )
    systemctl("stop", UNIT)
    FILE.unlink()
    systemctl("daemon-reload")


def test_no_process_that_serves_or_started_one_is_moved(several: tuple[Mind, int, list[int]]) -> None:
    mind, port, servers = several

    async def work(host: Host) -> None:
        early = family.ask(port, "child")
        await host.begin(mind, MAIN)
        later = family.ask(port, "child")
        await until(lambda: cgroup(later) == MAIN)
        assert cgroup(early) == MAIN
        assert {cgroup(pid) for pid in servers} == {UNIT}
        assert await host.end(MAIN) == []
        assert {cgroup(pid) for pid in (*servers, early, later)} == {UNIT}
        assert host.died == []

    with_host(work)


def test_a_mind_whose_server_is_not_up_yet_has_nothing_moved(tmp_path: Path) -> None:
    """Until it listens nobody knows which of the unit's processes will be the server."""
    port = free_port()
    script = tmp_path / "slow"
    script.write_text(
        f"sleep 1; exec {SHELL.format(port=port, fled=tmp_path / 'fled').removesuffix('; exit 1')}"
    )
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(f'[Service]\nDelegate=yes\nExecStart=/bin/sh -c "/bin/sh {script}; exit 1"\n')
    systemctl("daemon-reload")
    systemctl("start", UNIT)
    mind = Mind("m", url=f"http://127.0.0.1:{port}", unit=UNIT)
    home = Path("/sys/fs/cgroup/system.slice", UNIT)

    async def work(host: Host) -> None:
        await until(lambda: len(members(home)) >= 2)
        await host.begin(mind, MAIN)
        await until(lambda: listens(port))
        servers = members(home)
        assert len(servers) == 2
        child = family.ask(port, "child")
        await until(lambda: cgroup(child) == MAIN)
        assert {cgroup(pid) for pid in servers} == {UNIT}
        await host.end(MAIN)

    try:
        with_host(work)
    finally:
        systemctl("stop", UNIT)
        FILE.unlink()
        systemctl("daemon-reload")


@pytest.mark.parametrize("server", ["none"], indirect=True)
def test_minds_that_share_a_cgroup_and_the_name_of_a_session_keep_apart(
    server: Server, tmp_path: Path
) -> None:
    async def work(host: Host) -> None:
        assert neighbour.home == server.home
        mine, others = server.ask("child"), neighbour.ask("child")
        for _ in range(2):  # in the second turn it is known whose each is
            await host.begin(server.mind, MAIN)
            assert (cgroup(mine), cgroup(others)) == (MAIN, server.home)
            await host.begin(replace(neighbour.mind, name="n"), NEIGHBOURS)
            assert (cgroup(mine), cgroup(others)) == (MAIN, NEIGHBOURS)
            for unit, mind in ((MAIN, "m"), (NEIGHBOURS, "n")):
                assert await host.adopter.end(unit) == []
                await until(lambda unit=unit, mind=mind: gone(host, unit, mind))
            assert {cgroup(mine), cgroup(others)} == {server.home}
        await host.begin(server.mind, MAIN)
        assert (cgroup(mine), cgroup(others)) == (MAIN, server.home)
        await host.end(MAIN)

    neighbour = Server("none", tmp_path / "n")
    try:
        with_host(work)
    finally:
        neighbour.close()


def gone(host: Host, unit: str, mind: str) -> bool:
    loaded = run("systemctl", "show", "--value", "--property=LoadState", unit).stdout.strip()
    return not populated(host.cgroup(unit, mind)) and loaded == "not-found"


@delegated
def test_a_turn_whose_scope_was_stopped_takes_no_process_any_more(server: Server) -> None:
    async def work(host: Host) -> None:
        await host.begin(server.mind, MAIN)
        await host.begin(server.mind, OTHER, "other")
        systemctl("stop", OTHER)
        child = server.ask("child")
        await until(lambda: cgroup(child) == MAIN)
        await host.end(MAIN)

    with_host(work)


@delegated
def test_a_turn_that_begins_again_is_the_youngest(server: Server) -> None:
    async def work(host: Host) -> None:
        await host.begin(server.mind, MAIN)
        systemctl("stop", MAIN)  # the guard did not come to end it
        await host.begin(server.mind, OTHER, "other")
        await host.begin(server.mind, MAIN)
        child = server.ask("child")
        await until(lambda: cgroup(child) != server.home)
        assert cgroup(child) == MAIN
        await host.end(OTHER)
        await host.end(MAIN)

    with_host(work)


@delegated
def test_the_processes_of_a_server_that_is_no_more_do_not_go_to_the_next_one(server: Server) -> None:
    async def work(host: Host) -> None:
        orphan = server.ask("child")
        await host.begin(server.mind, MAIN)
        await host.close()
        systemctl("restart", UNIT)
        async with a_host() as again:
            await until(lambda: listens(server.port))
            await again.adopter.begin(MAIN, server.mind, "main", host.anchors[MAIN])
            child = server.ask("child")
            await until(lambda: cgroup(child) == MAIN)
            assert await again.adopter.end(MAIN) == [orphan]
            assert (cgroup(orphan), cgroup(child)) == (MAIN, server.home)
            os.kill(orphan, signal.SIGKILL)

    with_host(work)


def test_a_server_that_a_turn_started_stays_in_that_turn_with_all_its_processes(tmp_path: Path) -> None:
    port = free_port()
    argv = ["systemd-run", "--quiet", "--scope", f"--unit={OTHER}", "--slice=hostguard-m.slice"]
    argv += [sys.executable, "-S", family.__file__, str(port), str(tmp_path / "fled")]

    async def work(host: Host) -> None:
        await until(lambda: listens(port))
        child = family.ask(port, "child")
        await host.begin(Mind("m", url=f"http://127.0.0.1:{port}"), MAIN)
        assert cgroup(child) == OTHER
        assert await host.end(MAIN) == []
        assert cgroup(child) == OTHER

    with subprocess.Popen(argv) as process:
        try:
            with_host(work)
        finally:
            run("systemctl", "stop", OTHER)
            process.wait()
