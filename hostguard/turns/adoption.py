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
from dataclasses import dataclass, field, replace
from pathlib import Path

from hostguard.core.model import Mind
from hostguard.core.signals import MindDied, ProcessesMoved, Signal
from hostguard.core.tasks import Tasks
from hostguard.linux import cgroup as cgroups
from hostguard.linux.cgroup import populated
from hostguard.linux.process import Process, members, process, storage
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns import process_sessions
from hostguard.turns.mind_server import Server, Servers, attach

log = logging.getLogger(__name__)

LOOKS_S = (0.0, 0.02, 0.06, 0.15, 0.4)  # after a POST; then every EVERY_S
EVERY_S = 1.0
HOME_TRIES = 20  # a process that forks while it is moved leaves a child behind: scan again
FREEZE_TRY = 3  # a process that only forks and exits is never seen running
FORGET_MIN = 100  # remembered processes before dead ones are removed
AGAIN_S = 1.0  # between attempts to move processes back: systemd does not answer, or no descriptor is free
BUSY = 0.01  # of one CPU: a waiting process uses less


@dataclass(frozen=True, slots=True)
class Seen:
    """Use of a scope's processes at a time: time.monotonic(), seconds of CPU, bytes of storage."""

    at: float
    cpu_s: float
    moved: int


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
    last: Seen | None = None  # when it was last busy
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
        self._sessions = process_sessions.load()  # the mind and session of each process
        self._kept = dict(self._sessions)
        self._keeping = asyncio.Lock()
        self._forget_at = FORGET_MIN  # processes
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
        self._forget_dead()
        await self._keep()
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
        now, used, guests = time.monotonic(), self._cpu_s(visit), visit.guests()
        moved = sum(sum(storage(pid) or ()) for pid in guests)
        last = visit.last
        waits = any(found.waits for pid in guests if (found := process(pid)) is not None)
        if last is None or waits or moved != last.moved or used - last.cpu_s > BUSY * (now - last.at):
            visit.last = last = Seen(now, used, moved)
        return int((now - last.at) * 1000)

    def frozen(self, unit: str) -> bool:
        """True if the turn's processes are frozen, by whatever means."""
        visit = self._visits.get(unit)
        return visit is not None and cgroups.frozen(visit.scope)

    def stood_still(self, unit: str, seconds: float) -> None:
        """Do not count the seconds for which the turn's processes were frozen."""
        visit = self._visits.get(unit)
        if visit is not None and visit.last is not None:
            visit.last = replace(visit.last, at=min(visit.last.at + seconds, time.monotonic()))

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
            self._forget_dead()
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
        await self._keep()
        if self._visits.get(visit.unit) is visit:
            visit.looks = min(visit.looks + 1, len(LOOKS_S))
            due = EVERY_S if visit.looks == len(LOOKS_S) else LOOKS_S[visit.looks] - LOOKS_S[visit.looks - 1]
            self._look_in(visit, due)

    def _wanted(self, visit: Visit, server: Server) -> list[int]:
        """Processes at home for this scope: the session's, and new ones if no turn is younger."""
        self._visits = {unit: at for unit, at in self._visits.items() if at is visit or populated(at.scope)}
        name = visit.mind.name
        youngest = [other for other in self._visits.values() if other.mind.name == name][-1:]
        wanted = []
        for found in server.workers(lambda known: self._sessions.get(known, ("", ""))[0] == name):
            works_for = self._works_for(found, server)
            if works_for is None and youngest == [visit]:
                works_for = visit.works_for
            if works_for is not None:
                self._sessions[found] = works_for
            if works_for == visit.works_for:
                wanted.append(found.pid)
        return wanted

    def _works_for(self, found: Process, server: Server) -> tuple[str, str] | None:
        """The mind and session of the process, or of the process that started it, if known."""
        if found in self._sessions:
            return self._sessions[found]
        started_by = (self._sessions.get(above) for above in server.ancestors(found))
        return next((known for known in started_by if known is not None), None)

    # -- the way home

    async def _send_home(self, visit: Visit) -> list[int]:
        """Move the scope's processes home. Returns those left in the scope, except the anchor."""
        server, tries = visit.server or await self._servers.find(visit.mind), 0
        while (guests := visit.guests()) and tries < HOME_TRIES:
            ours = [known for pid in guests if (known := process(pid)) is not None]
            self._sessions |= dict.fromkeys(ours, visit.works_for)
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

    def _forget_dead(self) -> None:
        if len(self._sessions) > self._forget_at:  # with many minds at each end it would take long
            self._sessions = {
                known: at for known, at in self._sessions.items() if process(known.pid) == known
            }
            self._forget_at = 2 * len(self._sessions) + FORGET_MIN

    async def _keep(self) -> None:
        async with self._keeping:
            if self._sessions == self._kept:
                return
            self._kept = dict(self._sessions)
            try:
                await asyncio.to_thread(process_sessions.store, self._kept)
            except OSError as error:
                log.warning("the sessions of processes are not saved: %s", error)

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
