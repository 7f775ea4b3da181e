"""The connection to the service manager over D-Bus, made anew when it is lost. Only this knows dbus-next."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from dbus_next import AuthError, BusType, InvalidAddressError, Message, MessageType, Variant
from dbus_next.aio import MessageBus, message_bus

from hostguard.core import paths
from hostguard.core.units import Property

log = logging.getLogger(__name__)

NAME = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
DBUS = "org.freedesktop.DBus"
PROPERTIES = f"{DBUS}.Properties"
SIGNALS = ("JobNew", "JobRemoved", "UnitRemoved", "Reloading")  # of the manager
CALL_S = 25.0  # sd-bus's own default time-out of a call
# Errors that say nothing about whether the call took effect: org.freedesktop.DBus.Error...
UNKNOWN_OUTCOME = {
    f"{DBUS}.Error.{name}"
    for name in ("NoReply", "Timeout", "TimedOut", "Disconnected", "NameHasNoOwner", "ServiceUnknown")
}
HANDSHAKE_CPU_S = 0.5  # of the process; a handshake takes some milliseconds
RECONNECT_S = (0.05, 2.0)  # first and longest pause between two tries


class SystemdError(Exception):
    """systemd refused. `name` is the D-Bus error name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{text} ({name})")
        self.name = name


class SystemdLost(Exception):
    """systemd did not answer, or the bus is gone: whether the call took effect is not known."""


@contextmanager
def _interrupted_handshake() -> Iterator[None]:
    """End the reading of a bus that hangs up in the handshake.

    dbus-next 0.2.3 reads on then for ever, without a pause, and blocks the event loop: only a signal gets
    through to it, after so much CPU as no handshake takes. It interrupts nothing but dbus-next.
    """

    def hung_up(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == message_bus.__file__:
                raise EOFError("it hung up during the handshake")
            frame = frame.f_back

    before = signal.signal(signal.SIGPROF, hung_up)
    signal.setitimer(signal.ITIMER_PROF, HANDSHAKE_CPU_S, HANDSHAKE_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(eq=False)
class Bus:
    """Calls the manager, and hears its signals.

    `on_connect` is awaited each time that a connection is made; if it fails, so has the connection. `on_lost`
    follows when it is lost, unless by `close`. `on_signal` gets member and body of each signal: those of
    SIGNALS, and NameOwnerChanged of the manager's name.
    """

    _on_connect: Callable[[], Awaitable[None]]
    _on_lost: Callable[[], None]
    _on_signal: Callable[[str, list[Any]], None]
    _bus: MessageBus | None = field(default=None, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    async def start(self) -> None:
        """Connect, and stay connected from here on. Raises SystemdLost; it may be called again."""
        if self._task is not None:
            return
        lost = await self._connect()
        self._task = asyncio.create_task(self._stay(lost))

    def close(self) -> None:
        """Disconnect for good."""
        if self._task is not None:
            self._task.cancel()
        self.disconnect()

    def disconnect(self) -> None:
        """Give the connection up; a new one is made."""
        if self._bus is not None:
            self._bus.disconnect()

    async def call(
        self,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        interface: str = MANAGER,
        path: str = PATH,
        destination: str = NAME,
        fds: Sequence[int] = (),
    ) -> list[Any]:
        """What the manager answers. Raises SystemdError, SystemdLost."""
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

    async def subscribe(self) -> None:
        """Ask the manager for its signals. Raises SystemdError, SystemdLost.

        The manager may take its name on the bus while a connection is made: then both ends of that ask.
        """
        try:
            await self.call("Subscribe")
        except SystemdError as error:
            if not error.name.endswith(".AlreadySubscribed"):
                raise

    async def _connect(self) -> asyncio.Task[None]:
        bus_type = BusType.SESSION if paths.USER else BusType.SYSTEM
        try:
            with _interrupted_handshake():
                bus = MessageBus(bus_type=bus_type, negotiate_unix_fd=True)
                await asyncio.wait_for(bus.connect(), CALL_S)
        except (OSError, EOFError, AuthError, InvalidAddressError) as error:
            raise SystemdLost(f"cannot reach the {bus_type.name.lower()} bus: {error}") from error
        self._bus = bus
        bus.add_message_handler(self._heard)
        lost = asyncio.create_task(self._wait_lost(bus))
        try:
            of_manager = f"type='signal',sender='{NAME}',interface='{MANAGER}',member="
            owner = f"type='signal',sender='{DBUS}',member='NameOwnerChanged',arg0='{NAME}'"
            for rule in (owner, *(f"{of_manager}'{member}'" for member in SIGNALS)):
                await self.call("AddMatch", "s", [rule], DBUS, "/org/freedesktop/DBus", DBUS)
            await self.subscribe()
            await self._on_connect()
        except BaseException as error:
            self._bus = None
            bus.disconnect()
            if isinstance(error, SystemdError):
                raise SystemdLost(str(error)) from error
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
            self._on_lost()
            pause = RECONNECT_S[0]
            while True:
                await asyncio.sleep(pause)
                try:
                    lost = await self._connect()
                    break
                except SystemdLost as error:
                    log.warning("%s; trying again", error)
                    pause = min(pause * 2, RECONNECT_S[1])

    def _heard(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL:
            self._on_signal(message.member, message.body)


def variants(properties: Sequence[Property]) -> list[list[Any]]:
    """Properties in the form of a call's body: a(sv)."""
    return [[name, Variant(signature, value)] for name, signature, value in properties]
