"""systemd, its cgroups and the fork server as the guard's scopes see them, in memory. Processes are real ones.

host_contract.py has what the real ones do, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hostguard.core.units import Property, parse_turn_unit
from hostguard.linux import cgroup
from hostguard.systemd.client import Listener, Login, Scope
from hostguard.systemd.dbus import SystemdError
from hostguard.systemd.fork_client import exited


class FakeStub:
    """A process that waits; what it was told to do is noted."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "60"])
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.spec: dict[str, Any] | None = None  # of what it runs
        self.stdin = b""
        self.anchored: Path | None = None  # the record of the scope that it holds
        self.fails: OSError | None = None  # of letting it go

    def alive(self) -> bool:
        return not exited(self.pidfd)

    def release(self, spec: dict[str, Any], stdin: bytes, record: Path, output: socket.socket | None) -> None:
        if self.fails is not None:
            raise self.fails
        self.spec, self.stdin = spec, stdin
        record.write_text("started\n")

    def anchor(self, record: Path) -> None:
        if self.fails is not None:
            raise self.fails
        self.anchored = record
        record.write_text(f"started\nanchor {self.pid}\n")

    def watch(self, caller: int) -> None:
        if self.fails is not None:
            raise self.fails
        self.watched = caller

    def hold(self, processes: Sequence[int]) -> None:
        """Notes whose pidfds these are."""
        infos = [Path(f"/proc/self/fdinfo/{fd}").read_text() for fd in processes]
        self.held = [int(info.partition("Pid:")[2].split()[0]) for info in infos]

    def dismiss(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.dismiss()
        os.close(self.pidfd)


class FakeWatch:
    """Calls `on_empty` for each watched cgroup that has no process any more."""

    def __init__(self, host: FakeHost, on_empty: Callable[[str], None]) -> None:
        self._host = host
        self._on_empty = on_empty
        self._names: set[str] = set()
        host.watches.append(self)

    def open(self) -> None: ...

    def close(self) -> None:
        self._names.clear()

    def add(self, name: str, cgroup: Path) -> None:
        self._names.add(name)
        if not self._host.populated(cgroup):
            asyncio.get_running_loop().call_soon(self.emptied, name)

    def remove(self, name: str) -> None:
        self._names.discard(name)

    def emptied(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            self._on_empty(name)


class FakeHost:
    """One host. `calls` has each call of systemd; the next ones raise what is in `errors`, by their names."""

    def __init__(self) -> None:
        self.control_group = ""
        self.stopping = False  # what it answers when asked; what it reports is the listener's
        self.followed: frozenset[str] = frozenset()
        self.units: dict[str, dict[str, Any]] = {}  # properties of what is active
        self.processes: dict[str, set[int]] = {}
        self.calls: list[tuple[str, ...]] = []
        self.errors: dict[str, list[Exception]] = {}
        self.watches: list[FakeWatch] = []
        self.sessions: list[Login] = []  # of logind
        self.stubs: list[FakeStub] = []
        self.listener: Listener | None = None

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ask this host about cgroups, from now on."""
        monkeypatch.setattr(cgroup, "populated", self.populated)
        monkeypatch.setattr(cgroup, "Watch", lambda on_empty: FakeWatch(self, on_empty))

    # -- cgroups

    def populated(self, cgroup: Path) -> bool:
        return bool(self.processes.get(cgroup.name))

    def empty(self, unit: str, report: bool = True) -> None:
        """Its processes end; with `report` the kernel and systemd say so."""
        for pid in self.processes.pop(unit, set()):
            for stub in self.stubs:
                if stub.pid == pid:
                    stub.dismiss()
        if report:
            self.units.pop(unit, None)
            for watch in self.watches:
                watch.emptied(unit)
            if self.listener is not None:
                self.listener.scope_gone(unit)

    def kill(self, pid: int) -> None:
        """One process ends; others may be left in its scope."""
        os.kill(pid, signal.SIGKILL)
        for pids in self.processes.values():
            pids.discard(pid)

    # -- the fork server

    async def take(self) -> FakeStub:
        self._call("take")
        self.stubs.append(FakeStub())
        return self.stubs[-1]

    # -- systemd

    async def start(self, listener: Listener) -> None:
        self.listener = listener
        await self.refresh()

    async def close(self) -> None:
        self.listener = None

    async def start_scope(self, unit: str, properties: Sequence[Property]) -> None:
        self._call("start_scope", unit)
        if unit in self.units:
            raise SystemdError("org.freedesktop.systemd1.UnitExists", f"{unit} is loaded already")
        self.units[unit] = {name: value for name, _, value in properties}
        self.processes[unit] = set(self.units[unit]["PIDs"])
        for pid in self.processes[unit]:
            self._follow(unit, pid)

    def _follow(self, unit: str, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self.processes.get(unit, set()).discard(pid)
            if unit in self.units and not self.processes.get(unit):
                self.empty(unit)

        loop.add_reader(pidfd, ended)

    async def shutting_down(self) -> bool:
        self._call("shutting_down")
        return self.stopping

    async def stop_unit(self, unit: str) -> None:
        self._call("stop_unit", unit)
        if unit not in self.units:
            raise SystemdError("org.freedesktop.systemd1.NoSuchUnit", f"{unit} is not loaded")
        if self.listener is not None:
            self.listener.scope_job(unit)
        self.empty(unit)

    async def logins(self, uid: int) -> list[Login]:
        self._call("logins", str(uid))
        return self.sessions

    async def thaw(self, unit: str) -> None:
        self._call("thaw", unit)

    async def refresh(self) -> None:
        self._call("refresh")
        assert self.listener is not None
        found = [(unit, parse_turn_unit(unit)) for unit in self.units]
        self.listener.systemd_up([Scope(unit, turn[0] if turn else "") for unit, turn in found])

    def _call(self, *call: str) -> None:
        self.calls.append(call)
        if self.errors.get(call[0]):
            raise self.errors[call[0]].pop(0)

    def end(self) -> None:
        """End all processes."""
        for stub in self.stubs:
            if stub.alive():
                stub.dismiss()
