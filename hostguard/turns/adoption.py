"""Moves the session processes of resident minds into the scopes of their turns, and back.

A mind's server runs in its own cgroup, its home, and is never moved. Its children do the work of a session.
While the session has a turn, they are in the turn's scope, so that its limits apply to them and to processes
that they start. Afterwards they return home. No event reports a new process in a cgroup (the kernel's proc
connector does not work in a container), so the guard scans the home: soon after a POST, at each report of the
mind, and once a second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hostguard.core.model import Mind
from hostguard.core.signals import MindDied, ProcessesMoved, Signal
from hostguard.core.tasks import Tasks
from hostguard.linux import cgroup as cgroups
from hostguard.linux.cgroup import populated
from hostguard.linux.process import Process, members, process, storage
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns.drivers.quiet_rule import BUSY, BUSY_BYTES, LOUD
from hostguard.turns.mind_server import Server, Servers, attach
from hostguard.turns.process_sessions import ProcessSessions

log = logging.getLogger(__name__)

LOOKS_S = (0.0, 0.02, 0.06, 0.15, 0.4)  # after a POST; then every EVERY_S
EVERY_S = 1.0
HOME_TRIES = 20  # a process that forks while it is moved leaves a child behind: scan again
FREEZE_TRY = 3  # a process that only forks and exits is never seen running
WINDOW_S = 10.0  # over which use is averaged at most
BURST_S = 2.0  # and at least: a process at rest works a little now and then
AGAIN_S = 1.0  # between attempts to move processes back: systemd does not answer, or no descriptor is free


@dataclass(frozen=True, slots=True)
class Used:
    """Use of a scope's processes so far: at time.monotonic(), seconds of CPU, bytes of storage."""

    at: float
    cpu_s: float
    moved: int


@dataclass(slots=True)
class Idle:
    """For how long the use was below a share of one CPU."""

    share: float
    since: float  # time.monotonic(), when it was last above
    base: Used  # what is compared with

    def look(self, now: Used, waits: bool, shortest: float) -> None:
        """Compare; `shortest`: seconds for which a burst counts as spread out."""
        passed = now.at - self.base.at
        most = max(passed, shortest)
        used, moved = now.cpu_s - self.base.cpu_s, now.moved - self.base.moved
        if waits or used > self.share * most or moved > BUSY_BYTES * most:
            self.since, self.base = now.at, now
        elif passed > WINDOW_S:
            self.base = now


@dataclass(eq=False)
class Visit:
    """The scope of a turn, into which the session's processes are moved."""

    unit: str
    mind: Mind
    session: str
    anchor: int
    scope: Path
    server: Server | None = None
    adopted: bool = False  # it had a process other than the anchor
    refused: bool = False  # systemd refused to move a process; logged once
    looks: int = 0
    looked: float = -1.0  # time.monotonic()
    timer: asyncio.TimerHandle | None = None
    idle: Idle | None = None  # below BUSY
    calm: Idle | None = None  # below LOUD
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def works_for(self) -> tuple[str, str]:
        """The mind and the session."""
        return self.mind.name, self.session

    def guests(self) -> list[int]:
        """Processes in the scope or below it, except the anchor."""
        folders = [Path(folder) for folder, _, _ in os.walk(self.scope)]
        return [pid for folder in folders for pid in members(folder) if pid != self.anchor]


class Adoption:
    """Moves the processes of sessions. `cgroup` returns the cgroup folder of a mind's unit."""

    def __init__(
        self,
        systemd: Systemd,
        cgroup: Callable[[str, str], Path],
        mind_died: Signal[MindDied],
        moved: Signal[ProcessesMoved],
    ) -> None:
        self._systemd = systemd
        self._cgroup = cgroup
        self._moved = moved
        self._servers = Servers(systemd, lambda mind: mind_died.send(MindDied(mind)))
        self._visits: dict[str, Visit] = {}  # by unit, the youngest last
        self._sessions = ProcessSessions()
        self._tasks = Tasks()

    def homes(self) -> Collection[Path]:
        """The cgroups of the minds' servers."""
        return self._servers.homes

    # -- a turn

    async def begin(self, unit: str, mind: Mind, session: str, anchor: int) -> None:
        """Move the session's processes into the scope, and scan for more until `end`.

        An earlier guard may have moved some already.
        """
        visit = Visit(unit, mind, session, anchor, self._cgroup(unit, mind.name))
        self._visits.pop(unit, None)  # a retried turn is the youngest, too
        self._visits[unit] = visit
        await self._adopt(visit)

    def look(self, mind: str) -> None:
        """Scan for new processes of the mind now, at a limited rate."""
        for visit in self._visits.values():
            if visit.mind.name == mind:
                visit.looks = 0
                self._look_in(visit, max(LOOKS_S[0], visit.looked + LOOKS_S[1] - time.monotonic()))

    async def end(self, unit: str) -> list[int]:
        """Move the scope's processes home and end its anchor. Returns those that could not be moved."""
        visit = self._visits.pop(unit, None)
        if visit is None:
            return []
        if visit.timer is not None:
            visit.timer.cancel()
        async with visit.moving:  # a move that is under way has ended by then
            left = await self._send_home(visit)
        self._moved.send(ProcessesMoved(visit.mind.name))
        # If this gave up, the slot would never come free.
        while not _kill(visit.anchor, visit.scope):  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)
        self._sessions.forget_dead()
        await self._sessions.keep()
        return left

    # -- how busy

    def idle_ms(self, unit: str) -> int:
        """Ms for which the turn's processes have been idle, measured between two calls.

        They are busy if they use more than BUSY of a CPU, read from or write to storage, or wait for it: on a
        stalled card a working process uses no CPU.
        """
        visit = self._visits.get(unit)
        if visit is None:
            return 0
        now, idle, calm = self._used(visit), visit.idle, visit.calm
        if idle is None or calm is None:
            visit.idle, visit.calm = Idle(BUSY, now.at, now), Idle(LOUD, now.at, now)
            return 0
        waits = any(found.waits for pid in visit.guests() if (found := process(pid)) is not None)
        for measured in (idle, calm):
            measured.look(now, waits, min(BURST_S, visit.mind.idle_end / 2))
        return int((now.at - idle.since) * 1000)

    def calm_ms(self, unit: str) -> int:
        """Ms for which, at the last `idle_ms`, they have used less than LOUD of a CPU."""
        visit = self._visits.get(unit)
        return 0 if visit is None or visit.calm is None else int((time.monotonic() - visit.calm.since) * 1000)

    def measure(self, unit: str) -> None:
        """Measure from now on: what the turn's processes did before is no sign that they are busy."""
        visit = self._visits.get(unit)
        if visit is not None:
            now = self._used(visit)
            visit.idle = Idle(BUSY, now.at, now)
            visit.calm = visit.calm or Idle(LOUD, now.at, now)

    def _used(self, visit: Visit) -> Used:
        moved = sum(sum(storage(pid) or ()) for pid in visit.guests())
        return Used(time.monotonic(), self._cpu_s(visit), moved)

    def frozen(self, unit: str) -> bool:
        """True if the turn's processes are frozen, by whatever means."""
        visit = self._visits.get(unit)
        return visit is not None and cgroups.frozen(visit.scope)

    def stood_still(self, unit: str, seconds: float) -> None:
        """Do not count the seconds for which the turn's processes were frozen."""
        visit = self._visits.get(unit)
        for measured in (visit.idle, visit.calm) if visit is not None else ():
            if measured is not None:
                measured.since = min(measured.since + seconds, time.monotonic())

    def _cpu_s(self, visit: Visit) -> float:
        used = (cgroups.cpu_usec(visit.scope) or 0) / 1e6
        if not visit.adopted and visit.server is not None:
            server = process(visit.server.process.pid)
            used += server.cpu_s if server is not None else 0
        return used

    def deserted(self, unit: str) -> bool:
        """True if the scope had processes, and now has only the anchor."""
        visit = self._visits.get(unit)
        return visit is not None and visit.adopted and not visit.guests()

    # -- the way in

    def _look_in(self, visit: Visit, seconds: float) -> None:
        if visit.timer is not None:
            visit.timer.cancel()
        visit.timer = asyncio.get_running_loop().call_later(seconds, self._look, visit)

    def _look(self, visit: Visit) -> None:
        visit.timer = None
        if self._visits.get(visit.unit) is not visit:
            return
        if not populated(visit.scope):  # the scope was stopped from outside
            del self._visits[visit.unit]
            self._sessions.forget_dead()
        elif not visit.moving.locked():
            self._tasks.start(self._adopt(visit))

    async def _adopt(self, visit: Visit) -> None:
        async with visit.moving:
            if self._visits.get(visit.unit) is not visit:  # it ended while this waited
                return
            visit.looked = time.monotonic()
            if visit.server is None or not visit.server.serving or not visit.server.alive():
                visit.server = await self._servers.find(visit.mind)
            try:
                pids = self._wanted(visit, visit.server) if visit.server is not None else []
                if pids:
                    await attach(self._systemd, visit.unit, pids)
                    self._moved.send(ProcessesMoved(visit.mind.name))
            except (SystemdError, SystemdLost) as error:
                if not visit.refused:
                    log.warning("%s: processes are not adopted: %s", visit.unit, error)
                visit.refused = True
        visit.adopted = visit.adopted or bool(visit.guests())
        await self._sessions.keep()
        if self._visits.get(visit.unit) is visit:
            visit.looks = min(visit.looks + 1, len(LOOKS_S))
            due = EVERY_S if visit.looks == len(LOOKS_S) else LOOKS_S[visit.looks] - LOOKS_S[visit.looks - 1]
            self._look_in(visit, due)

    def _wanted(self, visit: Visit, server: Server) -> list[int]:
        """Processes at home for this scope: the session's, and new ones if no turn is younger."""
        name = visit.mind.name
        for other in [at for at in self._visits.values() if at is not visit and at.mind.name == name]:
            if not populated(other.scope):
                del self._visits[other.unit]
        youngest = [other for other in self._visits.values() if other.mind.name == name][-1:]
        wanted = []
        for found in server.workers(lambda known: self._sessions.belongs(known, name)):
            works_for = self._sessions.works_for(found, name, server.ancestors(found))
            if works_for is None and youngest == [visit]:
                works_for = visit.works_for
            if works_for is not None:
                self._sessions.note([found], works_for)
            if works_for == visit.works_for:
                wanted.append(found.pid)
        return wanted

    async def at_home(self, mind: Mind) -> list[tuple[Process, str | None]]:
        """The mind's processes outside of turns, but for its server; each with its session if known."""
        server, name = await self._servers.find(mind), mind.name
        found = (
            server.workers(lambda known: self._sessions.belongs(known, name)) if server is not None else []
        )
        known = [(one, self._sessions.works_for(one, name, server.ancestors(one))) for one in found if server]
        return [(one, works_for and works_for[1]) for one, works_for in known]

    # -- the way home

    async def _send_home(self, visit: Visit) -> list[int]:
        """Move the scope's processes home. Returns those left in the scope, except the anchor."""
        server, tries = visit.server or await self._servers.find(visit.mind), 0
        while (guests := visit.guests()) and tries < HOME_TRIES:
            ours = [known for pid in guests if (known := process(pid)) is not None]
            self._sessions.note(ours, visit.works_for)
            if server is None or not server.alive():
                break
            pids = [known.pid for known in ours if server.had(known)]
            if not pids:
                break
            if tries == FREEZE_TRY:
                await asyncio.to_thread(_freeze, visit.scope, True)
            try:
                await server.take_home(self._systemd, pids)  # a process that leaves a frozen scope is thawed
                tries += 1
            except SystemdLost:  # the turn lasts until systemd is back
                await asyncio.sleep(AGAIN_S)
        if guests and tries >= FREEZE_TRY:
            await asyncio.to_thread(_freeze, visit.scope, False)
        return visit.guests()

    def close(self) -> None:
        """Stop scanning. Processes stay where they are."""
        for visit in self._visits.values():
            if visit.timer is not None:
                visit.timer.cancel()
        self._servers.close()


def _freeze(scope: Path, frozen: bool) -> None:
    with suppress(OSError):
        cgroups.freeze(scope, frozen)


def _kill(anchor: int, scope: Path) -> bool:
    """End the anchor, if its pid is still its own. False if that is unknown because no descriptor is free."""
    try:
        pidfd = os.pidfd_open(anchor)
        try:
            if anchor in cgroups.pids(scope):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
