"""The servers of resident minds: the process of each, its home cgroup, and its death.

A server is the main process of the mind's unit or, for a mind without one, the process that listens on its
port. The main process may have started one or several listening processes: none of them is ever moved.
Finding the listening process reads descriptors of processes, so it runs in a thread, and seldom.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hostguard.core.model import Mind
from hostguard.core.units import parse_turn_unit, unit_of_cgroup
from hostguard.linux import cgroup as cgroups
from hostguard.linux.process import Process, home_of, members, process, uid_of
from hostguard.linux.sockets import listeners
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns.mind_listener import of_its_user

log = logging.getLogger(__name__)

SCAN_S = 2.0  # between two searches for the listener of a port
DEPTH_MAX = 64  # generations between the server and its descendant


@dataclass(eq=False)
class Server:
    """A mind's server. `own`: its home is that of the mind's unit, and whatever is there is the mind's."""

    mind: Mind
    process: Process
    pidfd: int
    uid: int
    home: Path
    own: bool
    # Those that take its connections and the processes above them, when it was first seen to take some: what
    # is forked later may have the socket too, and yet work for a session.
    serving: frozenset[Process] = frozenset()
    strangers: set[int] = field(default_factory=set)  # processes at home that are not the mind's

    def alive(self) -> bool:
        """True if the pid still belongs to this process."""
        return process(self.process.pid) == self.process

    def serves(self, mind: Mind) -> bool:
        """True if the mind is still configured with this server."""
        return (mind.unit, mind.url) == (self.mind.unit, self.mind.url)

    def had(self, known: Process) -> bool:
        """True if the process may belong to this server: an older process belonged to an earlier one."""
        return known.started >= self.process.started

    def workers(self, known: Callable[[Process], bool]) -> list[Process]:
        """The mind's processes at home, except the server; `known` says which were the mind's before.

        Processes of another user are not the mind's. An orphan is the mind's only if it was known before
        or is in the mind's unit. The result is empty while the listening processes are unknown.
        """
        home = set(members(self.home)) if self.serving else set()
        self.strangers &= home  # a pid reused between two scans is taken for the earlier process
        found = []
        for pid in home - self.strangers - {self.process.pid, os.getpid()}:
            worker = process(pid)
            if worker is None or worker in self.serving:
                continue
            ours = self.own or known(worker) or self.process in self.ancestors(worker)
            if ours and uid_of(pid) == self.uid:
                found.append(worker)
            else:
                self.strangers.add(pid)
        return found

    def who_serves(self) -> frozenset[Process]:
        """The processes at home that accept connections, and their ancestors."""
        found = [process(pid) for pid in listeners(self.mind.url or "", members(self.home))]
        return frozenset(p for known in found if known is not None for p in (known, *self.ancestors(known)))

    def ancestors(self, known: Process) -> Iterable[Process]:
        """The ancestors of a process, nearest first, up to the server if it descends from it."""
        for _ in range(DEPTH_MAX):
            above = process(known.parent) if known.parent > 1 else None
            if above is None:
                return
            yield above
            if above == self.process:
                return
            known = above

    async def take_home(self, systemd: Systemd, pids: list[int]) -> None:
        """Move processes into its home, as far as possible. Raises SystemdLost."""
        unit = unit_of_cgroup(_path(self.home), systemd.control_group)
        if unit is not None:
            with suppress(SystemdError):  # it is not delegated
                await attach(systemd, unit[0], pids, unit[1])
                return
        await asyncio.to_thread(self._write, pids)

    def _write(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(OSError):
                cgroups.move(pid, self.home)


async def attach(systemd: Systemd, unit: str, pids: list[int], below: str = "") -> None:
    """Move the processes that are alive into a unit. Raises SystemdError, SystemdLost."""
    try:
        await systemd.attach(unit, pids, below)
    except SystemdError:
        for pid in pids:  # one dead process would keep all others from being moved
            try:
                await systemd.attach(unit, [pid], below)
            except SystemdError:
                if process(pid) is not None:
                    raise


def _path(cgroup: Path) -> str:
    """The path in the form of /proc/PID/cgroup."""
    return f"/{cgroup.relative_to(cgroups.ROOT)}"


def _eldest(pids: list[int]) -> int:
    """The process that started first, of those that share a socket; 0 if there is none."""
    found = [known for pid in pids if (known := process(pid)) is not None]
    return min(found, key=lambda known: (known.started, known.pid)).pid if found else 0


class Servers:
    """Finds and watches servers. Calls `on_died` on the event loop with the mind whose server died."""

    def __init__(self, systemd: Systemd, on_died: Callable[[str], None]) -> None:
        self._systemd = systemd
        self._on_died = on_died
        self._found: dict[str, Server] = {}
        self._finding: dict[str, asyncio.Lock] = {}
        self.homes: set[Path] = set()  # of all servers so far: their sessions may outlive them
        self._scanned: dict[str, float] = {}  # url -> time.monotonic() of the last search without a result

    async def find(self, mind: Mind) -> Server | None:
        """The mind's server; None if none is found now."""
        async with self._finding.setdefault(mind.name, asyncio.Lock()):
            known = self._found.get(mind.name)
            if known is not None and not known.alive():
                self._died(known)
            elif known is not None and not known.serves(mind):
                self._forget(known)
            server = self._found.get(mind.name)
            if server is not None and server.serving:
                return server
            try:
                if server is None and mind.unit is not None:
                    server = self._follow(mind, await self._systemd.main_pid(mind.unit))
                if time.monotonic() - self._scanned.get(mind.url or "", -SCAN_S) < SCAN_S:
                    return server
                if server is None and mind.unit is None:
                    pids = await asyncio.to_thread(listeners, mind.url or "")
                    own = [pid for pid in pids if of_its_user(mind, uid_of(pid))]
                    server = self._follow(mind, _eldest(own))
                if server is not None:
                    server.serving = await asyncio.to_thread(server.who_serves)
            except (SystemdError, SystemdLost, OSError) as error:
                log.warning("cannot find the server of %s: %s", mind.name, error)
            if server is None or not server.serving:
                self._scanned[mind.url or ""] = time.monotonic()
            return server

    def _follow(self, mind: Mind, pid: int) -> Server | None:
        if pid in (0, 1, os.getpid()):
            return None
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        found, home = process(pid), home_of(pid)
        if found is None or home is None or self._in_turn(home):
            os.close(pidfd)
            return None
        own = mind.unit is not None and home.name == mind.unit
        self.homes.add(home)
        server = self._found[mind.name] = Server(mind, found, pidfd, uid_of(pid), home, own)
        asyncio.get_running_loop().add_reader(pidfd, self._died, server)
        return server

    def _in_turn(self, home: Path) -> bool:
        """True if a turn started the server, which is then in that turn's scope."""
        unit = unit_of_cgroup(_path(home), self._systemd.control_group)
        return unit is not None and parse_turn_unit(unit[0]) is not None

    def _died(self, server: Server) -> None:
        self._forget(server)
        self._on_died(server.mind.name)

    def _forget(self, server: Server) -> None:
        if self._found.get(server.mind.name) is server:
            del self._found[server.mind.name]
            asyncio.get_running_loop().remove_reader(server.pidfd)
            os.close(server.pidfd)

    def close(self) -> None:
        """Stop watching."""
        for server in [*self._found.values()]:
            self._forget(server)
