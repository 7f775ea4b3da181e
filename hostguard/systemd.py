"""The daemon's one connection to systemd. The only module that knows dbus-next.

systemd is the semaphore: what is live is what systemd lists. Signals keep us up to date; after a lost
connection, or when in doubt, the list is read again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

# dbus-next would import its part for GLib, too: 4 MiB for nothing.
sys.modules.setdefault("gi", None)  # type: ignore[arg-type]

from dbus_next import BusType, Message, MessageType, Variant  # noqa: E402
from dbus_next.aio import MessageBus  # noqa: E402

from hostguard import paths  # noqa: E402
from hostguard.units import Property, parse_turn_unit, slice_mind  # noqa: E402

log = logging.getLogger(__name__)

NAME = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
DBUS = "org.freedesktop.DBus"
CALL_S = 25.0  # sd-bus's own default time-out of a call
START_UNIT_S = 120.0  # systemd's own default time-out of a start is 90 s
START_S = 60.0  # for the job of a scope, which does no work but waits for a slow PID 1
# Errors that say nothing about whether the call took effect: org.freedesktop.DBus.Error...
UNKNOWN_OUTCOME = {
    f"{DBUS}.Error.{name}"
    for name in ("NoReply", "Timeout", "TimedOut", "Disconnected", "NameHasNoOwner", "ServiceUnknown")
}
RECONNECT_S = (0.05, 2.0)  # first and longest pause between two tries


class SystemdError(Exception):
    """systemd refused. `name` is the D-Bus error name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{text} ({name})")
        self.name = name


class SystemdLost(Exception):
    """systemd did not answer, or the bus is gone: whether the call took effect is not known."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A live scope in one of our slices. `mind` is "" in hostguard.slice itself."""

    unit: str
    mind: str
    description: str = ""


class Listener(Protocol):
    """Who hears of what systemd does. All are called on the event loop."""

    def systemd_up(self, scopes: Sequence[Scope]) -> None:
        """Connected; `scopes` is the whole truth now."""

    def systemd_down(self) -> None:
        """The connection is lost; `systemd_up` follows when it is back."""

    def scope_new(self, scope: Scope) -> None:
        """A scope appeared in one of our slices."""

    def scope_gone(self, unit: str) -> None:
        """The scope is gone, and all its processes."""

    def scope_job(self, unit: str) -> None:
        """Somebody asked systemd to stop the turn's scope."""

    def unit_started(self, unit: str) -> None:
        """A service that is followed was started."""


def unit_path(unit: str) -> str:
    """The object path of a unit, as systemd escapes it: _XX for what is no ASCII letter or digit."""
    escaped = (chr(b) if chr(b).isascii() and chr(b).isalnum() else f"_{b:02x}" for b in unit.encode())
    return f"{PATH}/unit/{''.join(escaped)}"


class _Bus(MessageBus):  # type: ignore[misc]
    async def _auth_readline(self) -> str:
        """As dbus-next's own, which asks for ever, and blocks the event loop, once the bus has hung up."""
        line = b""
        while not line.endswith(b"\r\n"):
            part: bytes = await self._loop.sock_recv(self._sock, 2)
            if not part:
                self._stream.close()
                self._sock.close()
                raise EOFError("the bus hung up")
            line += part
        return line[:-2].decode()


class _Job:
    """The start job of a unit. Other jobs of the unit may end meanwhile: one that stopped it is replaced."""

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
    """Starts, lists, stops and follows scopes."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._bus: MessageBus | None = None
        self.followed: frozenset[str] = frozenset()  # services, beside our scopes, whose start is told
        self._jobs: dict[str, _Job] = {}  # unit -> its start job
        self.control_group = ""  # that systemd's own tree hangs from; known once connected
        self._listing = asyncio.Lock()
        self._meanwhile: dict[str, bool] = {}  # scopes that came (True) or went since a listing began
        self._task: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect, list, and stay connected from here on. Raises SystemdLost if the first try fails."""
        lost = await self._connect()
        self._task = asyncio.create_task(self._stay(lost))

    async def close(self) -> None:
        """Disconnect. Scopes are left alone."""
        if self._task is not None:
            self._task.cancel()
        if self._bus is not None:
            self._bus.disconnect()

    # -- calls

    async def start_scope(self, unit: str, properties: Sequence[Property]) -> None:
        """Start a transient scope and wait until its processes are in it.

        Raises SystemdError if systemd refuses, SystemdLost if it is not known whether the scope came up.
        """
        await self._start_transient(unit, properties)
        if self._listing.locked():
            self._meanwhile[unit] = True

    async def start_service(self, unit: str, properties: Sequence[Property], stdin: int) -> None:
        """Start a transient service with this descriptor as its standard input.

        Raises SystemdError, SystemdLost.
        """
        await self._start_transient(unit, [*properties, ("StandardInputFileDescriptor", "h", 0)], [stdin])

    async def start_unit(self, unit: str) -> None:
        """Start a service and wait for it. Raises SystemdError, SystemdLost."""
        await self._start(unit, START_UNIT_S, "StartUnit", "ss", [unit, "replace"])

    async def _start_transient(
        self, unit: str, properties: Sequence[Property], fds: Sequence[int] = ()
    ) -> None:
        variants = [[name, Variant(signature, value)] for name, signature, value in properties]
        body = [unit, "fail", variants, []]
        await self._start(unit, START_S, "StartTransientUnit", "ssa(sv)a(sa(sv))", body, fds)

    async def _start(
        self,
        unit: str,
        seconds: float,
        member: str,
        signature: str,
        body: Sequence[Any],
        fds: Sequence[int] = (),
    ) -> None:
        job = self._jobs[unit] = _Job()
        try:
            [path] = await self._call(member, signature, body, fds=fds)
            job.is_at(path)
            result = await asyncio.wait_for(job.result, seconds)
        except TimeoutError:
            raise SystemdLost(f"the start job of {unit} did not end within {seconds:.0f} s") from None
        finally:
            self._jobs.pop(unit, None)
        if result != "done":
            raise SystemdError("JobFailed", f"the start job of {unit} ended as {result!r}")

    async def main_pid(self, unit: str) -> int:
        """The main process of a service; 0 = it has none. Raises SystemdError, SystemdLost."""
        path = await self._call("LoadUnit", "s", [unit])
        interface = "org.freedesktop.systemd1.Service"
        found = await self._call("Get", "ss", [interface, "MainPID"], f"{DBUS}.Properties", path[0])
        return int(found[0].value)

    async def attach(self, unit: str, pids: Sequence[int], below: str = "") -> None:
        """Move processes into a unit that is delegated, or into the cgroup `below` it ("/...").

        If one of them is gone systemd may have moved none, or only some. Raises SystemdError, SystemdLost.
        """
        await self._call("AttachProcessesToUnit", "ssau", [unit, below, list(pids)])

    async def stop_unit(self, unit: str) -> None:
        """Ask systemd to stop a unit: SIGTERM, and SIGKILL after its stop time-out.

        Raises SystemdError, SystemdLost.
        """
        await self._call("StopUnit", "ss", [unit, "replace"])

    async def freeze(self, unit: str) -> None:
        """Freeze a unit's processes, and wait until all are: one that waits for a disk is not until then.

        Raises SystemdError, SystemdLost.
        """
        await self._call("FreezeUnit", "s", [unit])

    async def thaw(self, unit: str) -> None:
        """Let a unit go on that is frozen or about to be. Raises SystemdError, SystemdLost."""
        await self._call("ThawUnit", "s", [unit])

    async def write_limits(self, slice_: str) -> list[tuple[str, int]]:
        """The slice's IOWriteBandwidthMax: (node, bytes/s) each. Raises SystemdError, SystemdLost."""
        path = await self._call("LoadUnit", "s", [slice_])
        interface = "org.freedesktop.systemd1.Slice"
        body = [interface, "IOWriteBandwidthMax"]
        found = await self._call("Get", "ss", body, f"{DBUS}.Properties", path[0])
        return [(node, limit) for node, limit in found[0].value]

    async def set_write_limits(self, slice_: str, limits: Sequence[tuple[str, int]]) -> None:
        """Set the slice's IOWriteBandwidthMax to these alone, until the next boot.

        Raises SystemdError, SystemdLost.
        """
        # An empty list takes all away; any other is laid over what is there.
        lists: list[list[list[Any]]] = [[], [list(limit) for limit in limits]]
        values = [["IOWriteBandwidthMax", Variant("a(st)", value)] for value in lists[: 1 + bool(limits)]]
        await self._call("SetUnitProperties", "sba(sv)", [slice_, True, values])

    async def scopes(self) -> list[Scope]:
        """Live scopes in our slices. Raises SystemdError, SystemdLost."""
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
        """Read the list again and tell the listener: for when there is doubt."""
        self._listener.systemd_up(await self.scopes())

    async def _mind_of(self, unit: str, path: str) -> str | None:
        try:
            reply = await self._call(
                "Get", "ss", ["org.freedesktop.systemd1.Scope", "Slice"], f"{DBUS}.Properties", path
            )
        except SystemdError:
            return None  # gone in between
        mind = slice_mind(reply[0].value)
        turn = parse_turn_unit(unit)
        return turn[0] if mind is not None and turn is not None else mind

    async def _call(
        self,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        interface: str = MANAGER,
        path: str = PATH,
        destination: str = NAME,
        fds: Sequence[int] = (),
    ) -> list[Any]:
        bus = self._bus
        if bus is None:
            raise SystemdLost("not connected to systemd")
        message = Message(
            destination, path, interface, member, signature=signature, body=list(body), unix_fds=list(fds)
        )
        try:
            reply = await asyncio.wait_for(bus.call(message), CALL_S)
        except TimeoutError:
            raise SystemdLost(f"systemd did not answer {member} within {CALL_S:.0f} s") from None
        except (EOFError, OSError) as error:
            raise SystemdLost(f"the bus is gone: {error}") from error
        if reply is None:
            raise SystemdLost("the bus is gone")
        if reply.message_type is MessageType.ERROR and reply.error_name in UNKNOWN_OUTCOME:
            raise SystemdLost(f"{member}: {reply.error_name}")
        if reply.message_type is MessageType.ERROR:
            raise SystemdError(reply.error_name, str(reply.body[0]) if reply.body else member)
        return list(reply.body)

    # -- the connection

    async def _connect(self) -> asyncio.Task[None]:
        bus_type = BusType.SESSION if paths.USER else BusType.SYSTEM
        try:
            bus = await _Bus(bus_type=bus_type, negotiate_unix_fd=True).connect()
        except (OSError, EOFError) as error:
            raise SystemdLost(f"cannot reach the {bus_type.name.lower()} bus: {error}") from error
        self._bus = bus
        bus.add_message_handler(self._on_message)
        lost = asyncio.create_task(self._wait_lost(bus))
        try:
            manager = f"type='signal',sender='{NAME}',interface='{MANAGER}',member="
            for rule in (
                *(f"{manager}'{member}'" for member in ("JobNew", "JobRemoved", "UnitRemoved", "Reloading")),
                f"type='signal',sender='{DBUS}',member='NameOwnerChanged',arg0='{NAME}'",
            ):
                await self._call("AddMatch", "s", [rule], DBUS, "/org/freedesktop/DBus", DBUS)
            await self._call("Subscribe")
            root = await self._call("Get", "ss", [MANAGER, "ControlGroup"], f"{DBUS}.Properties")
            self.control_group = str(root[0].value)
            await self.refresh()
        except SystemdError as error:
            self._bus = None
            bus.disconnect()
            raise SystemdLost(str(error)) from error
        except BaseException:
            self._bus = None
            bus.disconnect()
            raise
        return lost

    async def _wait_lost(self, bus: MessageBus) -> None:
        try:
            await bus.wait_for_disconnect()
        except (EOFError, OSError) as error:
            log.debug("bus: %s", error)

    async def _stay(self, lost: asyncio.Task[None]) -> None:
        while True:
            await lost
            self._bus = None
            for job in self._jobs.values():
                if not job.result.done():
                    job.result.set_exception(SystemdLost("the bus is gone"))
            self._listener.systemd_down()
            pause = RECONNECT_S[0]
            while True:
                await asyncio.sleep(pause)
                try:
                    lost = await self._connect()
                    break
                except SystemdLost as error:
                    log.warning("%s; trying again", error)
                    pause = min(pause * 2, RECONNECT_S[1])

    def _on_message(self, message: Message) -> None:
        if message.message_type is not MessageType.SIGNAL:
            return
        if message.member == "JobRemoved":
            _id, path, unit, result = message.body
            job = self._jobs.get(unit)
            if job is not None:
                job.ended(path, result)
            elif unit in self.followed and result == "done":
                self._listener.unit_started(unit)
            elif unit.endswith(".scope") and result == "done":
                self._spawn(self._look_at(unit))  # a start: its processes are in it now
        elif message.member == "JobNew":
            unit = message.body[2]
            if unit not in self._jobs and parse_turn_unit(unit):
                self._listener.scope_job(unit)
        elif message.member == "UnitRemoved":
            unit = message.body[0]
            if unit.endswith(".scope"):
                if self._listing.locked():
                    self._meanwhile[unit] = False
                self._listener.scope_gone(unit)
        elif message.member == "Reloading":
            if not message.body[0]:  # UnitRemoved came for every unit
                self._spawn(self._again(False))
        elif message.member == "NameOwnerChanged" and message.body[2]:
            self._spawn(self._again(True))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _look_at(self, unit: str) -> None:
        try:
            mind = await self._mind_of(unit, unit_path(unit))
        except SystemdLost:
            return  # the list is read again once the bus is back
        if mind is not None:
            self._listener.scope_new(Scope(unit, mind))

    async def _again(self, subscribe: bool) -> None:
        try:
            if subscribe:
                with suppress(SystemdError):  # it knows us still
                    await self._call("Subscribe")
            await self.refresh()
        except (SystemdLost, SystemdError) as error:
            log.warning("systemd came back but does not answer: %s", error)
            if self._bus is not None:
                self._bus.disconnect()
