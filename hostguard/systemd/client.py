"""Calls to systemd, and its signals.

systemd is the semaphore: live is what systemd lists. Signals keep the list up to date; after a lost
connection, or when in doubt, it is read again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from hostguard.core.tasks import Tasks
from hostguard.core.units import Property, parse_turn_unit, slice_mind
from hostguard.systemd.dbus import MANAGER, NAME, PATH, PROPERTIES, Bus, SystemdError, SystemdLost, variants

log = logging.getLogger(__name__)

SHUTDOWN = "shutdown.target"  # every orderly way down starts it, and by it stops all units
LOGIND = "org.freedesktop.login1"
LOGIND_PATH = "/org/freedesktop/login1"
START_UNIT_S = 120.0  # systemd's own default time-out of a start is 90 s
START_S = 60.0  # for the job of a scope, which does no work but waits for a slow PID 1


@dataclass(frozen=True, slots=True)
class Scope:
    """A live scope in one of our slices. `mind` is "" in hostguard.slice itself."""

    unit: str
    mind: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Login:
    """A session of logind. `kind` is its class, `service` PAM's; `active`: nobody has logged out of it."""

    scope: str
    kind: str
    service: str = ""
    remote: bool = False
    host: str = ""  # from which somebody logged in
    active: bool = True


class Listener(Protocol):
    """Gets the signals of systemd. All methods are called on the event loop."""

    def systemd_up(self, scopes: Sequence[Scope]) -> None:
        """Connected; `scopes` are all that are live now."""

    def systemd_down(self) -> None:
        """The connection is lost; `systemd_up` follows once it is back."""

    def scope_new(self, scope: Scope) -> None:
        """A scope appeared in one of our slices."""

    def scope_gone(self, unit: str) -> None:
        """The scope is gone, and all its processes."""

    def scope_job(self, unit: str) -> None:
        """Somebody asked systemd to stop the turn's scope."""

    def unit_started(self, unit: str) -> None:
        """A followed service was started."""

    def shutdown(self, stopping: bool) -> None:
        """The host begins to shut down; or (False) it does not after all."""


class _Job:
    """The start job of a unit. Other jobs may end meanwhile: it replaces one that stops the unit."""

    def __init__(self) -> None:
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._path: str | None = None
        self._ended: dict[str, str] = {}  # before the path was known

    def is_at(self, path: str) -> None:
        self._path = path
        if path in self._ended:
            self.ended(path, self._ended[path])

    def ended(self, path: str, result: str) -> None:
        if self._path is None:
            self._ended[path] = result
        elif path == self._path and not self.result.done():
            self.result.set_result(result)


class Systemd:
    """Starts, lists, stops and follows scopes.

    Calls raise SystemdError if systemd refuses, SystemdLost if it is not known whether they succeeded.
    """

    def __init__(self) -> None:
        self._bus = Bus(self._connected, self._lost, self._on_signal)
        self._call = self._bus.call
        self.followed: frozenset[str] = frozenset()  # services whose starts the listener gets
        self._jobs: dict[str, _Job] = {}  # unit -> its start job
        self.control_group = ""  # of systemd itself; known once connected
        self._listing = asyncio.Lock()
        self._meanwhile: dict[str, bool] = {}  # scopes that appeared (True) or went since a listing began
        self._tasks = Tasks()

    async def start(self, listener: Listener) -> None:
        """Connect, list, and stay connected. Raises SystemdLost if the first attempt fails."""
        self._listener = listener
        await self._bus.start()

    async def close(self) -> None:
        """Disconnect. Scopes go on."""
        self._bus.close()

    # -- calls

    async def start_scope(self, unit: str, properties: Sequence[Property]) -> None:
        """Start a transient scope and wait until its processes are in it."""
        await self._start_transient(unit, properties)
        if self._listing.locked():
            self._meanwhile[unit] = True

    async def start_service(self, unit: str, properties: Sequence[Property], stdin: int) -> None:
        """Start a transient service with the descriptor `stdin` as its standard input."""
        await self._start_transient(unit, [*properties, ("StandardInputFileDescriptor", "h", 0)], stdin)

    async def start_unit(self, unit: str) -> None:
        """Start a service and wait for it."""
        await self._start(unit, START_UNIT_S, self._call("StartUnit", "ss", [unit, "replace"]))

    async def restart_unit(self, unit: str) -> None:
        """Stop a service, if it runs, start it, and wait for that."""
        await self._start(unit, START_UNIT_S, self._call("RestartUnit", "ss", [unit, "replace"]))

    async def _start_transient(self, unit: str, properties: Sequence[Property], *fds: int) -> None:
        body = [unit, "fail", variants(properties), []]
        call = self._call("StartTransientUnit", "ssa(sv)a(sa(sv))", body, fds=fds)
        await self._start(unit, START_S, call)

    async def _start(self, unit: str, seconds: float, call: Awaitable[list[Any]]) -> None:
        job = self._jobs[unit] = _Job()
        try:
            [path] = await call
            job.is_at(path)
            result = await asyncio.wait_for(job.result, seconds)
        except TimeoutError:
            raise SystemdLost(f"the start job of {unit} did not end within {seconds:.0f} s") from None
        finally:
            self._jobs.pop(unit, None)
        if result != "done":
            raise SystemdError("JobFailed", f"the start job of {unit} ended as {result!r}")

    async def main_pid(self, unit: str) -> int:
        """The main process of a service; 0 if it has none."""
        [path] = await self._call("LoadUnit", "s", [unit])
        return int(await self._get(path, f"{NAME}.Service", "MainPID"))

    async def _get(self, path: str, interface: str, name: str) -> Any:
        [found] = await self._call("Get", "ss", [interface, name], PROPERTIES, path)
        return found.value

    async def attach(self, unit: str, pids: Sequence[int], below: str = "") -> None:
        """Move processes to a delegated unit, or `below` it ("/..."); if one is gone, perhaps not all."""
        await self._call("AttachProcessesToUnit", "ssau", [unit, below, list(pids)])

    async def stop_unit(self, unit: str) -> None:
        """Ask systemd to stop a unit: SIGTERM, and SIGKILL after its stop time-out."""
        await self._call("StopUnit", "ss", [unit, "replace"])

    async def freeze(self, unit: str) -> None:
        """Freeze a unit's processes and wait until all are: until none of them waits for a disk."""
        await self._call("FreezeUnit", "s", [unit])

    async def thaw(self, unit: str) -> None:
        """Thaw a unit that is frozen or about to be."""
        await self._call("ThawUnit", "s", [unit])

    async def shutting_down(self) -> bool:
        """True once systemd has begun to shut the host down."""
        [[row]] = await self._call("ListUnitsByNames", "as", [[SHUTDOWN]])
        active, job_type = str(row[3]), str(row[8])
        return active == "active" or job_type == "start"

    async def write_limits(self, slice_: str) -> list[tuple[str, int]]:
        """The slice's IOWriteBandwidthMax, as (node, bytes/s)."""
        [path] = await self._call("LoadUnit", "s", [slice_])
        found = await self._get(path, f"{NAME}.Slice", "IOWriteBandwidthMax")
        return [(node, limit) for node, limit in found]

    async def set_write_limits(self, slice_: str, limits: Sequence[tuple[str, int]]) -> None:
        """Set the slice's IOWriteBandwidthMax to exactly these, until the next boot."""
        # An empty list removes all entries; another one only adds to them.
        lists: list[list[list[Any]]] = [[], [list(limit) for limit in limits]]
        properties = [("IOWriteBandwidthMax", "a(st)", value) for value in lists[: 1 + bool(limits)]]
        await self._call("SetUnitProperties", "sba(sv)", [slice_, True, variants(properties)])

    async def logins(self, uid: int) -> list[Login]:
        """The user's sessions. Raises SystemdError, SystemdLost, also if there is no logind."""
        [sessions] = await self._call("ListSessions", "", [], f"{LOGIND}.Manager", LOGIND_PATH, LOGIND)
        found = []
        for _id, owner, _user, _seat, path in sessions:
            if owner == uid:
                with suppress(SystemdError):  # it is over
                    session = [f"{LOGIND}.Session"]
                    [values] = await self._call("GetAll", "s", session, PROPERTIES, path, LOGIND)
                    of = {name: value.value for name, value in values.items()}
                    found.append(Login(
                        of["Scope"], of["Class"], of["Service"], of["Remote"], of["RemoteHost"],
                        of["State"] != "closing",
                    ))  # fmt: skip
        return found

    async def scopes(self) -> list[Scope]:
        """Live scopes in our slices."""
        async with self._listing:
            self._meanwhile.clear()
            found = {}
            units = await self._call("ListUnitsByPatterns", "asas", [[], ["*.scope"]])
            for name, description, _load, active, _sub, _following, path, *_job in units[0]:
                if active in ("inactive", "failed"):
                    continue
                mind = await self._mind_of(name, path)
                if mind is not None:
                    found[name] = Scope(name, mind, description)
            for unit, alive in self._meanwhile.items():
                turn = parse_turn_unit(unit)
                if not alive:
                    found.pop(unit, None)
                elif turn is not None:
                    found[unit] = Scope(unit, turn[0])
            return list(found.values())

    async def refresh(self) -> None:
        """Read the list again for the listener, when in doubt."""
        self._listener.systemd_up(await self.scopes())

    async def _mind_of(self, unit: str, path: str) -> str | None:
        try:
            mind = slice_mind(await self._get(path, f"{NAME}.Scope", "Slice"))
        except SystemdError:
            return None  # gone in between
        turn = parse_turn_unit(unit)
        return turn[0] if mind is not None and turn is not None else mind

    # -- from the bus

    async def _connected(self) -> None:
        self.control_group = str(await self._get(PATH, MANAGER, "ControlGroup"))
        await self._look_at_shutdown()
        await self.refresh()

    def _lost(self) -> None:
        for job in self._jobs.values():
            if not job.result.done():
                job.result.set_exception(SystemdLost("the bus is gone"))
        self._listener.systemd_down()

    def _on_signal(self, member: str, body: list[Any]) -> None:
        if member == "JobRemoved":
            _id, path, unit, result = body
            if unit == SHUTDOWN:
                self._tasks.start(self._look_at_shutdown())  # perhaps somebody cancelled it
            elif job := self._jobs.get(unit):
                job.ended(path, result)
            elif unit in self.followed and result == "done":
                self._listener.unit_started(unit)
            elif unit.endswith(".scope") and result == "done":
                self._tasks.start(self._look_at(unit))  # a start: its processes are in it now
        elif member == "JobNew":
            unit = body[2]
            if unit == SHUTDOWN:
                self._listener.shutdown(True)
                self._tasks.start(self._look_at_shutdown())  # the signal does not say what the job does
            elif unit not in self._jobs and parse_turn_unit(unit):
                self._listener.scope_job(unit)
        elif member == "UnitRemoved":
            unit = body[0]
            if unit.endswith(".scope"):
                if self._listing.locked():
                    self._meanwhile[unit] = False
                self._listener.scope_gone(unit)
        elif member == "Reloading":
            if not body[0]:  # UnitRemoved came for every unit
                self._tasks.start(self._again(False))
        elif member == "NameOwnerChanged" and body[2]:
            self._tasks.start(self._again(True))

    async def _look_at_shutdown(self) -> None:
        with suppress(SystemdLost, SystemdError):  # the bus ends with the host
            self._listener.shutdown(await self.shutting_down())

    async def _look_at(self, unit: str) -> None:
        # In an object path systemd escapes all but ASCII letters and digits as _XX.
        escaped = re.sub(rb"[^A-Za-z0-9]", lambda match: b"_%02x" % ord(match[0]), unit.encode()).decode()
        try:
            mind = await self._mind_of(unit, f"{PATH}/unit/{escaped}")
        except SystemdLost:
            return  # the list is read again once the bus is back
        if mind is not None:
            self._listener.scope_new(Scope(unit, mind))

    async def _again(self, subscribe: bool) -> None:
        try:
            if subscribe:
                await self._bus.subscribe()
            await self.refresh()
        except (SystemdLost, SystemdError) as error:
            log.warning("systemd came back but does not answer: %s", error)
            self._bus.disconnect()
