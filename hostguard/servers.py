"""The servers of resident minds: which process each is, the cgroup that is its home, and its death.

A server is the main process of the mind's unit, or, for a mind without one, the process that listens on its
port. Finding the latter reads every process's descriptors: it is done in a thread, and seldom.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hostguard import cgroups
from hostguard.model import Mind
from hostguard.procs import Process, home_of, listener, members, process, uid_of
from hostguard.systemd import Systemd, SystemdError, SystemdLost
from hostguard.units import unit_of_cgroup

log = logging.getLogger(__name__)

SCAN_S = 5.0  # a port on which nobody listened is not looked up again sooner
DEPTH_MAX = 64  # generations between the server and a process of its


@dataclass(eq=False)
class Server:
    """A mind's server. `own`: its home is that of the mind's unit, and whatever is there is the mind's."""

    mind: Mind
    process: Process
    pidfd: int
    uid: int
    home: Path
    own: bool
    strangers: set[int] = field(default_factory=set)  # at home, and not the mind's

    def alive(self) -> bool:
        """Whether it is still that process."""
        return process(self.process.pid) == self.process

    def serves(self, mind: Mind) -> bool:
        """Whether the mind is still configured to have this server."""
        return (mind.unit, mind.url) == (self.mind.unit, self.mind.url)

    def workers(self, known: Container[Process]) -> list[Process]:
        """The mind's processes that are at home, without the server; `known` are those that were before.

        A mind has none of another user. One that its parent left is the mind's only if it was seen before,
        or if it is in the mind's unit.
        """
        home = set(members(self.home))
        self.strangers &= home  # a pid that is used again between two looks is taken for the earlier one
        found = []
        for pid in home - self.strangers - {self.process.pid, os.getpid()}:
            worker = process(pid)
            if worker is None:
                continue
            ours = self.own or worker in known or self.process in self.ancestors(worker)
            if ours and uid_of(pid) == self.uid:
                found.append(worker)
            else:
                self.strangers.add(pid)
        return found

    def ancestors(self, known: Process) -> Iterable[Process]:
        """Its parent, that one's parent and so on, the server last if it descends from that."""
        for _ in range(DEPTH_MAX):
            above = process(known.parent) if known.parent > 1 else None
            if above is None:
                return
            yield above
            if above == self.process:
                return
            known = above

    async def take_home(self, systemd: Systemd, pids: list[int]) -> None:
        """Move processes into its home, as far as that can be done. Raises SystemdLost."""
        path = f"/{self.home.relative_to(cgroups.ROOT)}"
        unit = unit_of_cgroup(path, systemd.control_group)
        if unit is not None:
            with suppress(SystemdError):  # it is not delegated
                await attach(systemd, unit[0], pids, unit[1])
                return
        await asyncio.to_thread(self._write, pids)

    def _write(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(OSError):
                (self.home / "cgroup.procs").write_text(str(pid))


async def attach(systemd: Systemd, unit: str, pids: list[int], below: str = "") -> None:
    """Move processes into a unit, those that are gone left out. Raises SystemdError, SystemdLost."""
    try:
        await systemd.attach(unit, pids, below)
    except SystemdError:
        for pid in pids:  # one that is gone keeps all the others
            try:
                await systemd.attach(unit, [pid], below)
            except SystemdError:
                if process(pid) is not None:
                    raise


class Servers:
    """Finds and follows servers. `on_died` hears, on the event loop, of a mind whose server died."""

    def __init__(self, systemd: Systemd, on_died: Callable[[str], None]) -> None:
        self._systemd = systemd
        self._on_died = on_died
        self._found: dict[str, Server] = {}
        self._finding: dict[str, asyncio.Lock] = {}
        self._missed: dict[str, float] = {}  # url -> time.monotonic() of a look-up in vain

    async def find(self, mind: Mind) -> Server | None:
        """The mind's server; None if none is found now."""
        async with self._finding.setdefault(mind.name, asyncio.Lock()):
            known = self._found.get(mind.name)
            if known is not None and known.alive() and known.serves(mind):
                return known
            if known is not None and known.alive():
                self._forget(known)
            elif known is not None:
                self._died(known)
            pid = await self._look_up(mind)
            return self._follow(mind, pid) if pid else None

    async def _look_up(self, mind: Mind) -> int:
        try:
            if mind.unit is not None:
                return await self._systemd.main_pid(mind.unit)
            url = mind.url or ""
            if time.monotonic() - self._missed.get(url, -SCAN_S) < SCAN_S:
                return 0
            pid = await asyncio.to_thread(listener, url)
            if pid == 0:
                self._missed[url] = time.monotonic()
            return pid
        except (SystemdError, SystemdLost, OSError) as error:
            log.warning("the server of %s is not found: %s", mind.name, error)
            return 0

    def _follow(self, mind: Mind, pid: int) -> Server | None:
        if pid == os.getpid():
            return None
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        found, home = process(pid), home_of(pid)
        if found is None or home is None:
            os.close(pidfd)
            return None
        own = mind.unit is not None and home.name == mind.unit
        server = self._found[mind.name] = Server(mind, found, pidfd, uid_of(pid), home, own)
        asyncio.get_running_loop().add_reader(pidfd, self._died, server)
        return server

    def _died(self, server: Server) -> None:
        self._forget(server)
        self._on_died(server.mind.name)

    def _forget(self, server: Server) -> None:
        if self._found.get(server.mind.name) is server:
            del self._found[server.mind.name]
            asyncio.get_running_loop().remove_reader(server.pidfd)
            os.close(server.pidfd)

    def close(self) -> None:
        """Follow none any more."""
        for server in [*self._found.values()]:
            self._forget(server)
