"""Which cgroup each process of a resident mind is in before, during and after a turn. No guard: its parts."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import family
import psutil
import pytest
from cases.bus import RELAY, Bus
from guard import run, systemctl
from minds import free_port

from hostguard import cgroups, paths, turns, units
from hostguard.adopt import Adopter
from hostguard.model import Limits, Mind
from hostguard.servers import attach
from hostguard.spawner import Spawner, anchor
from hostguard.systemd import Systemd

UNIT = "family.service"
FILE = Path("/run/systemd/system", UNIT)
TEXT = "[Service]\nKillMode=mixed\nExecStart={python} -S {family} {port} {fled}\n"
MAIN, OTHER = "hostguard-turn-m-1.scope", "hostguard-turn-m-2.scope"
USER = 1


def cgroup(pid: int) -> str:
    """The last part of the path of the process's cgroup; "gone" once it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
        path = Path(f"/proc/{pid}/cgroup").read_text().rpartition("0::")[2].strip()
    except OSError:
        return "gone"
    return "gone" if stat[0] in "ZX" else path.rpartition("/")[2]


def at(*pids: int) -> list[str]:
    return [cgroup(pid) for pid in pids]


class Server:
    """The mind's server: in a unit with or without Delegate=, or a process of the test's own cgroup."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.port, self.folder = kind, free_port(), folder
        unit = UNIT if kind != "none" else None
        self.mind = Mind("m", url=f"http://127.0.0.1:{self.port}", unit=unit)
        if unit is None:
            argv = [sys.executable, "-S", family.__file__, str(self.port), str(folder / "fled")]
            self.process = subprocess.Popen(argv)
            self.pid = self.process.pid
        else:
            text = TEXT.format(
                python=sys.executable, family=family.__file__, port=self.port, fled=folder / "fled"
            )
            FILE.parent.mkdir(parents=True, exist_ok=True)
            FILE.write_text(text + f"Delegate={'yes' if kind == 'delegated' else 'no'}\n")
            systemctl("daemon-reload")
            systemctl("start", UNIT)
            self.pid = int(run("systemctl", "show", "--value", "--property=MainPID", UNIT).stdout)
        self.home = cgroup(self.pid)
        end = time.monotonic() + 10
        while True:
            try:
                self.ask("churn 0")
                return
            except ConnectionRefusedError:
                assert time.monotonic() < end
                time.sleep(0.02)

    def ask(self, line: str) -> int:
        return family.ask(self.port, line)

    def fled(self) -> list[int]:
        return [int(path.suffix[1:]) for path in self.folder.iterdir()]

    def close(self) -> None:
        if self.mind.unit is not None:
            systemctl("stop", UNIT)
            FILE.unlink()
            systemctl("daemon-reload")
            return
        if self.process.poll() is None:
            for process in [*psutil.Process(self.pid).children(recursive=True)]:
                process.kill()
            self.process.kill()
        self.process.wait()


class Host:
    """What the guard has for a turn of a resident mind. Every scope is told gone by its cgroup alone."""

    def __init__(self) -> None:
        self.systemd = Systemd(self)
        self.spawner = Spawner(self.systemd)
        self.died: list[str] = []
        self.adopter = Adopter(self.systemd, self.died.append, self.cgroup)
        self.anchors: dict[str, int] = {}

    def cgroup(self, unit: str, mind: str) -> Path:
        return cgroups.ROOT / units.SLICE / units.mind_slice(mind) / unit

    async def begin(self, mind: Mind, unit: str, session: str = "main") -> None:
        turn = units.parse_turn_unit(unit)
        assert turn is not None
        stub = await self.spawner.take()
        turns.begin_record(turn[1])
        properties = units.scope_properties(mind.name, "", Limits(), None, [stub.pid], delegate=True)
        await self.systemd.start_scope(unit, properties)
        anchor(stub, turn[1])
        os.close(stub.pidfd)
        self.anchors[unit] = stub.pid
        await self.adopter.begin(unit, mind, session, stub.pid)

    async def end(self, unit: str) -> list[int]:
        left = await self.adopter.end(unit)
        if not left:
            await until(lambda: not cgroups.populated(self.cgroup(unit, "m")))
        return left

    async def close(self) -> None:
        self.adopter.close()
        self.spawner.close()
        await self.systemd.close()

    def systemd_up(self, scopes: object) -> None: ...
    def systemd_down(self) -> None: ...
    def scope_new(self, scope: object) -> None: ...
    def scope_gone(self, unit: str) -> None: ...
    def scope_job(self, unit: str) -> None: ...
    def unit_started(self, unit: str) -> None: ...


@asynccontextmanager
async def a_host() -> AsyncIterator[Host]:
    host = Host()
    await host.systemd.start()
    await host.spawner.start()
    try:
        yield host
    finally:
        await host.close()


async def until(happened: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


def with_host(work: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_host() as host:
            await work(host)

    asyncio.run(main())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # dbus-next leaves the closing of its sockets to it


@pytest.fixture(autouse=True)
def _clean(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The folder of the records; nothing in the log but where a test says so; no scope left."""
    paths.TURNS.mkdir(parents=True, exist_ok=True)
    caplog.set_level(logging.WARNING)
    yield
    systemctl("stop", units.SLICE)
    run("rm", "-rf", str(paths.RUNTIME))
    assert not caplog.records


@pytest.fixture(params=["delegated", "plain", "none"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    server = Server(request.param, tmp_path)
    yield server
    server.close()


delegated = pytest.mark.parametrize("server", ["delegated"], indirect=True)


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
        await until(lambda: cgroup(pids["spawned later"]) == MAIN, 2)
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
def test_what_is_spawned_soon_after_a_word_of_the_mind_is_adopted_soon(server: Server) -> None:
    """The first looks follow each other closely; a look on request begins them anew."""

    async def work(host: Host) -> None:
        await host.begin(server.mind, MAIN)
        await asyncio.sleep(1.2)  # from here on once a second
        took = []
        for _ in range(5):
            child = server.ask("child")
            began = time.monotonic()
            host.adopter.look("m")
            await until(lambda child=child: cgroup(child) == MAIN)
            took.append(time.monotonic() - began)
        assert sum(took) < 2, took  # without the looks it is 1 s for each
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
        await until(lambda: cgroup(second) == OTHER, 3)
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
        await asyncio.sleep(0.2)  # it is another user's from its exec on
        await host.begin(server.mind, MAIN)
        assert (cgroup(mine), cgroup(other)) == (MAIN, server.home)
        await host.end(MAIN)

    with_host(work)


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
        churn = asyncio.create_task(asyncio.to_thread(server.ask, "churn 1500"))
        turns_begun = 0
        while not churn.done():
            await host.begin(server.mind, MAIN)
            for _ in range(20):
                host.adopter.look("m")
                await asyncio.sleep(0.01)
            assert await host.end(MAIN) == []
            turns_begun += 1
        assert turns_begun > 2

    with_host(work)


def test_a_process_that_forks_and_leaves_without_end_comes_home(server: Server) -> None:
    async def work(host: Host) -> None:
        child = server.ask("child")
        await host.begin(server.mind, MAIN)
        for _ in range(3):
            server.ask(f"flee {child}")
        await asyncio.sleep(0.1)
        assert not server.fled()
        began = time.monotonic()
        assert await host.end(MAIN) == []
        assert time.monotonic() - began < family.FLEE_S / 2, "they had not stopped fleeing"
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
            record = turns.read_record("1")
            assert record is not None
            assert record.anchor == host.anchors[MAIN]
            await again.adopter.begin(MAIN, server.mind, "main", record.anchor)
            later = server.ask("child")
            await until(lambda: cgroup(later) == MAIN, 3)
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
        await host.begin(Mind("m", url=f"http://localhost:{server.port}"), MAIN)
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
        assert host.adopter.idle_ms(MAIN) == 0
        quiet = time.monotonic()
        await until(lambda: host.adopter.idle_ms(MAIN) > 500)
        assert time.monotonic() - quiet > 0.5
        server.ask(f"burn {child} 0.3")
        await until(lambda: host.adopter.idle_ms(MAIN) < 300, 5)
        assert not host.adopter.deserted(MAIN)
        server.ask(f"end {child}")
        await until(lambda: host.adopter.deserted(MAIN))
        await host.end(MAIN)

    with_host(work)
