"""The connection to the service manager over D-Bus, made anew when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hostguard.core import paths
from hostguard.core.units import Property
from hostguard.systemd.dbus_connection import BUS_NAME, BUS_PATH, Call, CallFailed, Connection, connect

log = logging.getLogger(__name__)

NAME = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
PROPERTIES = f"{BUS_NAME}.Properties"
SIGNALS = ("JobNew", "JobRemoved", "UnitRemoved", "Reloading")  # of the manager
CALL_S = 25.0  # sd-bus's own default time-out of a call
# Errors that say nothing about whether the call took effect: org.freedesktop.DBus.Error...
UNKNOWN_OUTCOME = {
    f"{BUS_NAME}.Error.{name}"
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


class Bus:
    """Calls the manager, and hears its signals.

    `on_connect` is awaited each time that a connection is made; if it fails, so has the connection. `on_lost`
    follows when it is lost, unless by `close`. `on_signal` gets member and body of each signal: those of
    SIGNALS, and NameOwnerChanged of the manager's name.
    """

    def __init__(
        self,
        on_connect: Callable[[], Awaitable[None]],
        on_lost: Callable[[], None],
        on_signal: Callable[[str, list[Any]], None],
    ) -> None:
        self._on_connect = on_connect
        self._on_lost = on_lost
        self._on_signal = on_signal
        self._bus: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, and stay connected from here on. Raises SystemdLost if the first try fails."""
        bus = await self._connect()
        self._task = asyncio.create_task(self._stay(bus))

    def close(self) -> None:
        """Disconnect for good."""
        if self._task is not None:
            self._task.cancel()
        self.disconnect()

    def disconnect(self) -> None:
        """Give the connection up; a new one is made."""
        if self._bus is not None:
            self._bus.close()

    async def call(
        self,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        interface: str = MANAGER,
        path: str = PATH,
        destination: str = NAME,
    ) -> list[Any]:
        """The body of the answer. Raises SystemdError, SystemdLost."""
        bus = self._bus
        if bus is None:
            raise SystemdLost("not connected to systemd")
        call = Call(destination, path, interface, member, signature, body)
        try:
            return await asyncio.wait_for(bus.call(call), CALL_S)
        except TimeoutError:
            raise SystemdLost(f"systemd did not answer {member} within {CALL_S:.0f} s") from None
        except (EOFError, OSError) as error:
            raise SystemdLost(f"the bus is gone: {error}") from error
        except CallFailed as error:
            if error.name in UNKNOWN_OUTCOME:
                raise SystemdLost(f"{member}: {error.name}") from error
            raise SystemdError(error.name, str(error)) from error

    async def _connect(self) -> Connection:
        try:
            bus = await asyncio.wait_for(connect(paths.USER, self._on_signal), CALL_S)
        except (OSError, EOFError, ValueError, KeyError, CallFailed) as error:
            which = "session" if paths.USER else "system"
            raise SystemdLost(f"cannot reach the {which} bus: {error}") from error
        self._bus = bus
        try:
            manager = f"type='signal',sender='{NAME}',interface='{MANAGER}',member="
            for rule in (
                *(f"{manager}'{member}'" for member in SIGNALS),
                f"type='signal',sender='{BUS_NAME}',member='NameOwnerChanged',arg0='{NAME}'",
            ):
                await self.call("AddMatch", "s", [rule], BUS_NAME, BUS_PATH, BUS_NAME)
            await self.call("Subscribe")
            await self._on_connect()
        except BaseException as error:
            self._bus = None
            bus.close()
            if isinstance(error, SystemdError):
                raise SystemdLost(str(error)) from error
            raise
        return bus

    async def _stay(self, bus: Connection) -> None:
        while True:
            await bus.lost.wait()
            self._bus = None
            self._on_lost()
            pause = RECONNECT_S[0]
            while True:
                await asyncio.sleep(pause)
                try:
                    bus = await self._connect()
                    break
                except SystemdLost as error:
                    log.warning("%s; trying again", error)
                    pause = min(pause * 2, RECONNECT_S[1])


def variants(properties: Sequence[Property]) -> list[tuple[str, tuple[str, Any]]]:
    """Properties in the form of a call's body: a(sv)."""
    return [(name, (signature, value)) for name, signature, value in properties]
