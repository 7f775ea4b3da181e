"""What the guard has for the processes of a resident mind, and a server whose processes a test commands."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import family
import psutil
import pytest
from guard import run, systemctl, wait_for
from minds import free_port, reload_if_needed
from on_bus import on_bus
from until import until

from hostguard.core import paths, units
from hostguard.core.model import Limits, LiveTurn, Mind
from hostguard.core.signals import MindDied, ProcessesMoved, Signal
from hostguard.linux import cgroup as cgroups
from hostguard.systemd.client import Systemd
from hostguard.systemd.fork_client import ForkClient, anchor
from hostguard.turns import exit_record
from hostguard.turns.adoption import Adoption

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


def listens(port: int) -> bool:
    try:
        family.ask(port, "churn 0")
    except OSError:
        return False
    return True


class Server:
    """The mind's server: in a unit with or without Delegate=, or a process of the test's own cgroup."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.port, self.folder = kind, free_port(), folder
        folder.mkdir(exist_ok=True)
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
            reload_if_needed(FILE)
            systemctl("start", UNIT)
            self.pid = int(run("systemctl", "show", "--value", "--property=MainPID", UNIT).stdout)
        self.home = cgroup(self.pid)
        wait_for(self.listens, 10)

    def ask(self, line: str) -> int:
        return family.ask(self.port, line)

    def listens(self) -> bool:
        return listens(self.port)

    def fled(self) -> list[int]:
        """Those that flee no more."""
        return [int(path.suffix[1:]) for path in self.folder.iterdir() if path.suffix]

    def close(self) -> None:
        (self.folder / "fled").touch()
        if self.mind.unit is not None:
            systemctl("stop", UNIT)
            FILE.unlink()
            return
        if self.process.poll() is None:
            for process in [*psutil.Process(self.pid).children(recursive=True)]:
                process.kill()
            self.process.kill()
        self.process.wait()


class Host:
    """What the guard has for a turn of a resident mind. Every scope is told gone by its cgroup alone."""

    def __init__(self) -> None:
        self.systemd = Systemd()
        self.spawner = ForkClient(self.systemd)
        self.died: list[str] = []
        died: Signal[MindDied] = Signal()
        died.subscribe(lambda fact: self.died.append(fact.mind))
        self.adopter = Adoption(self.systemd, self.cgroup, died, Signal[ProcessesMoved]())
        self.anchors: dict[str, int] = {}

    def cgroup(self, unit: str, mind: str) -> Path:
        return cgroups.ROOT / units.SLICE / units.mind_slice(mind) / unit

    async def begin(self, mind: Mind, unit: str, session: str = "main") -> None:
        turn = units.parse_turn_unit(unit)
        assert turn is not None
        stub = await self.spawner.take()
        assert exit_record.prepare(LiveTurn(unit, mind.name, session, turn[1]))
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
    def shutdown(self, stopping: bool) -> None: ...
    def unit_started(self, unit: str) -> None: ...


@asynccontextmanager
async def a_host() -> AsyncIterator[Host]:
    host = Host()
    await host.systemd.start(host)
    await host.spawner.start()
    try:
        yield host
    finally:
        await host.close()


def with_host(work: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_host() as host:
            await work(host)

    on_bus(main())


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
