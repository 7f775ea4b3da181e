"""The session processes of resident minds: which turn's scope each is in, and the way home.

A mind's server runs in a cgroup of its own, its home, and is never moved. The processes that do the work of
a session are its children. While a session has a turn they are in the turn's scope, so that its limits bind
them, and what they start is born there; then they go home. Nothing tells of a new process in a cgroup (the
kernel's proc connector is not there in a container), so home is looked at: soon after a message was posted,
whenever the mind tells something, and once a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hostguard.model import Mind
from hostguard.procs import Process, home_of, listener, members, process, storage_bytes, uid_of
from hostguard.systemd import Systemd, SystemdError, SystemdLost

log = logging.getLogger(__name__)

LOOKS_S = (0.0, 0.02, 0.06, 0.15, 0.4)  # after a POST; then every EVERY_S
EVERY_S = 1.0
HOME_TRIES = 20  # a process that forks while it is moved leaves a child behind: look again
AGAIN_S = 1.0  # systemd does not answer: the way home is tried again
BUSY = 0.01  # of one CPU: a process that only waits uses less


@dataclass(frozen=True, slots=True)
class Server:
    """A mind's server: its process, its pidfd, its cgroup, and whether that is its service's own."""

    mind: str
    process: Process
    pidfd: int
    uid: int
    home: Path
    own: bool

    def alive(self) -> bool:
        """Whether it is still that process."""
        found = process(self.process.pid)
        return found is not None and found.started == self.process.started


@dataclass(frozen=True, slots=True)
class Seen:
    """What a scope's processes had used at a time: time.monotonic(), seconds of CPU, bytes of storage."""

    at: float
    cpu_s: float
    moved: int


@dataclass(eq=False)
class Visit:
    """A turn's scope: the session's processes are, or will be, in it."""

    unit: str
    mind: Mind
    session: str
    anchor: int
    scope: Path
    server: Server | None = None
    adopted: bool = False  # some process was in it, beside the anchor
    looks: int = 0
    timer: asyncio.TimerHandle | None = None
    last: Seen | None = None  # when it was last busy
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)

    def guests(self) -> list[int]:
        """Processes in the scope, beside the anchor."""
        return [pid for pid in members(self.scope) if pid != self.anchor]


class Adopter:
    """Moves processes. `on_died` hears of a server's death; `cgroup` tells a scope's folder."""

    def __init__(
        self, systemd: Systemd, on_died: Callable[[str], None], cgroup: Callable[[str, str], Path]
    ) -> None:
        self._systemd = systemd
        self._on_died = on_died
        self._cgroup = cgroup
        self._servers: dict[str, Server] = {}
        self._visits: dict[str, Visit] = {}  # by unit, the youngest last
        self._known: dict[tuple[int, int], str] = {}  # (pid, started) -> the session it works for
        self._tasks: set[asyncio.Task[None]] = set()

    # -- a turn

    async def begin(self, unit: str, mind: Mind, session: str, anchor: int) -> None:
        """Adopt the session's processes into the scope, and go on looking for more until `end`."""
        visit = Visit(unit, mind, session, anchor, self._cgroup(unit, mind.name))
        visit.server = await self._server(mind)
        self._visits[unit] = visit
        await self._adopt(visit)

    async def resume(self, unit: str, mind: Mind, session: str, anchor: int) -> None:
        """As `begin`, for a scope that an earlier guard filled: what is in it is the session's."""
        for pid in members(self._cgroup(unit, mind.name)):
            found = process(pid)
            if found is not None and pid != anchor:
                self._known[pid, found.started] = session
        await self.begin(unit, mind, session, anchor)

    def look(self, mind: str) -> None:
        """Look for new processes of the mind now."""
        for visit in self._visits.values():
            if visit.mind.name == mind:
                visit.looks = 0
                self._look_in(visit, LOOKS_S[0])

    async def end(self, unit: str) -> list[int]:
        """Move the scope's processes home and end its anchor; the processes that could not be moved."""
        visit = self._visits.pop(unit, None)
        if visit is None:
            return []
        if visit.timer is not None:
            visit.timer.cancel()
        async with visit.moving:  # what is being adopted is in the scope by then
            left = await self._send_home(visit)
        with suppress(ProcessLookupError, PermissionError):
            found = process(visit.anchor)
            if found is not None and visit.anchor in members(visit.scope):
                os.kill(visit.anchor, signal.SIGKILL)
        self._forget_dead()
        return left

    # -- how busy

    def idle_ms(self, unit: str) -> int:
        """ms since the turn's processes did something, as far as can be seen between two askings.

        They do if they use more than BUSY of a CPU, read from or write to storage, or wait for it: on a card
        that is stalled a process at work uses no CPU at all.
        """
        visit = self._visits.get(unit)
        if visit is None:
            return 0
        now, used, guests = time.monotonic(), self._cpu_s(visit), visit.guests()
        moved = sum(storage_bytes(pid) for pid in guests)
        last = visit.last
        waits = any(found.waits for pid in guests if (found := process(pid)) is not None)
        if last is None or waits or moved != last.moved or used - last.cpu_s > BUSY * (now - last.at):
            visit.last = last = Seen(now, used, moved)
        return int((now - last.at) * 1000)

    def _cpu_s(self, visit: Visit) -> float:
        used = 0.0
        with suppress(OSError, ValueError, IndexError):
            stat = (visit.scope / "cpu.stat").read_text().split()
            used = int(stat[stat.index("usage_usec") + 1]) / 1e6
        if not visit.adopted and visit.server is not None:
            server = process(visit.server.process.pid)
            used += server.cpu_s if server is not None else 0
        return used

    def deserted(self, unit: str) -> bool:
        """Whether the scope had processes, and has none but the anchor now."""
        visit = self._visits.get(unit)
        return visit is not None and visit.adopted and not visit.guests()

    # -- the way in

    def _look_in(self, visit: Visit, seconds: float) -> None:
        if visit.timer is not None:
            visit.timer.cancel()
        visit.timer = asyncio.get_running_loop().call_later(seconds, self._look, visit)

    def _look(self, visit: Visit) -> None:
        visit.timer = None
        if self._visits.get(visit.unit) is visit and not visit.moving.locked():
            task = asyncio.create_task(self._adopt(visit))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _adopt(self, visit: Visit) -> None:
        async with visit.moving:
            if visit.looks < len(LOOKS_S) and (visit.server is None or not visit.server.alive()):
                visit.server = await self._server(visit.mind)
            try:
                pids = self._wanted(visit)
                if pids:
                    await self._attach(visit.unit, pids)
                    visit.adopted = True
            except (SystemdError, SystemdLost) as error:
                log.warning("%s: processes are not adopted: %s", visit.unit, error)
        visit.adopted = visit.adopted or bool(visit.guests())
        if self._visits.get(visit.unit) is visit:
            visit.looks += 1
            seconds = (
                LOOKS_S[visit.looks] - LOOKS_S[visit.looks - 1] if visit.looks < len(LOOKS_S) else EVERY_S
            )
            self._look_in(visit, seconds)

    def _wanted(self, visit: Visit) -> list[int]:
        server = visit.server
        if server is None:
            return []
        mine = [other for other in self._visits.values() if other.mind.name == visit.mind.name]
        youngest = mine[-1] if mine else visit
        wanted = []
        for found in self._workers(server):
            session = self._known.get((found.pid, found.started))
            if session is None and youngest is visit:
                session = self._known[found.pid, found.started] = visit.session
            if session == visit.session:
                wanted.append(found.pid)
        return wanted

    def _workers(self, server: Server) -> list[Process]:
        """The server's processes that are at home, without itself."""
        found = {pid: known for pid in members(server.home) if (known := process(pid)) is not None}
        return [
            known
            for pid, known in found.items()
            if pid != server.process.pid
            and (server.own or self._descends(known, server.process.pid, found))
            and uid_of(pid) == server.uid
        ]

    def _descends(self, known: Process, ancestor: int, found: dict[int, Process]) -> bool:
        seen = 0
        while known.parent > 1 and seen < 64:
            if known.parent == ancestor:
                return True
            above = found.get(known.parent) or process(known.parent)
            if above is None:
                return False
            known, seen = above, seen + 1
        return False

    async def _attach(self, unit: str, pids: list[int]) -> None:
        try:
            await self._systemd.attach(unit, pids)
        except SystemdError:
            for pid in pids:  # one that is gone must not keep the others
                if process(pid) is not None:
                    await self._systemd.attach(unit, [pid])

    # -- the way home

    async def _send_home(self, visit: Visit) -> list[int]:
        for _ in range(HOME_TRIES):
            guests = visit.guests()
            if not guests or visit.server is None or not visit.server.alive():
                return guests
            try:
                await self._attach(visit.server.home.name, guests)
            except SystemdLost:
                await asyncio.sleep(AGAIN_S)
            except SystemdError:  # its unit is not delegated
                await asyncio.to_thread(_write_home, visit.server.home, guests)
        return visit.guests()

    # -- servers

    async def _server(self, mind: Mind) -> Server | None:
        known = self._servers.get(mind.name)
        if known is not None and known.alive():
            return known
        if known is not None:
            self._gone(known)
        try:
            if mind.unit is not None:
                pid = await self._systemd.main_pid(mind.unit)
            else:
                pid = await asyncio.to_thread(listener, urlsplit(mind.url or "").port or 80)
        except (SystemdError, SystemdLost, OSError) as error:
            log.warning("the server of %s is not found: %s", mind.name, error)
            return None
        return self._follow(mind, pid) if pid else None

    def _follow(self, mind: Mind, pid: int) -> Server | None:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        found, home = process(pid), home_of(pid)
        if found is None or home is None or pid == os.getpid():
            os.close(pidfd)
            return None
        own = mind.unit is not None and home.name == mind.unit
        server = Server(mind.name, found, pidfd, uid_of(pid), home, own)
        self._servers[mind.name] = server
        asyncio.get_running_loop().add_reader(pidfd, self._died, server)
        return server

    def _died(self, server: Server) -> None:
        self._gone(server)
        self._on_died(server.mind)

    def _gone(self, server: Server) -> None:
        if self._servers.get(server.mind) is server:
            del self._servers[server.mind]
            asyncio.get_running_loop().remove_reader(server.pidfd)
            os.close(server.pidfd)

    def _forget_dead(self) -> None:
        for key in [*self._known]:
            found = process(key[0])
            if found is None or found.started != key[1]:
                del self._known[key]

    def close(self) -> None:
        """Follow nothing any more. Processes stay where they are."""
        for visit in self._visits.values():
            if visit.timer is not None:
                visit.timer.cancel()
        for server in [*self._servers.values()]:
            self._gone(server)


def _write_home(home: Path, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(OSError):
            (home / "cgroup.procs").write_text(str(pid))
