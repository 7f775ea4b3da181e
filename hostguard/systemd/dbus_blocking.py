"""A blocking connection to the service manager, for commands. Only this module uses pystemd."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from hostguard.core import paths
from hostguard.core.errors import SystemdFailed
from hostguard.core.units import Property

_NAME = b"org.freedesktop.systemd1"
_PATH = b"/org/freedesktop/systemd1"
_MANAGER = b"org.freedesktop.systemd1.Manager"


class _Customs:
    """Properties for pystemd, which knows the types of some only: all are passed as custom ones."""

    def __init__(self, properties: Sequence[Property]) -> None:
        self._properties = properties

    def items(self) -> Iterator[tuple[bytes, Any]]:
        for name, signature, value in self._properties:
            yield b"_custom", (name.encode(), signature.encode(), value)


class Bus:
    """A blocking connection to systemd. Raises SystemdFailed for every error of D-Bus."""

    def __enter__(self) -> Bus:
        from pystemd.dbusexc import DBusBaseError
        from pystemd.dbuslib import DBus

        self._error = DBusBaseError
        self._bus = DBus(user_mode=paths.USER)
        self.results: dict[str, str] = {}  # unit -> result of its last job, once `watch` was called
        with self._failing("systemd cannot be reached over D-Bus", "; hostguard needs a host with systemd"):
            self._bus.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bus.close()

    def call(self, member: str, signature: str = "", *values: Any) -> Any:
        """Call a method of systemd's manager object; the body of the answer."""
        from pystemd.dbuslib import apply_signature

        arguments = apply_signature(signature.encode(), list(values))
        with self._failing(f"systemd refused {member}"):
            return self._bus.call_method(_NAME, _PATH, _MANAGER, member.encode(), arguments).body

    def start(self, unit: str, properties: Sequence[Property]) -> None:
        """Start a transient unit; the result of its job comes to `results`."""
        from pystemd.systemd1 import Manager

        manager = Manager(bus=self._bus)
        with self._failing(f"systemd did not start {unit}"):
            manager.StartTransientUnit(_MANAGER, unit.encode(), b"fail", _Customs(properties))

    def active_for(self, path: bytes) -> int:
        """For how many ms a unit has been active, without suspend; 0 if it is gone."""
        interface, name = b"org.freedesktop.systemd1.Unit", b"ActiveEnterTimestampMonotonic"
        try:
            since_us = int(self._bus.get_property(_NAME, path, interface, name, b"t"))
        except self._error:
            return 0
        return max(0, time.monotonic_ns() // 1000 - since_us) // 1000 if since_us else 0

    def watch(self) -> None:
        """Receive signals about removed units and jobs from now on."""

        def on_signal(message: Any, error: object, userdata: object) -> None:
            message.process_reply(False)
            if len(message.body) == 4:  # JobRemoved(id, job, unit, result)
                self.results[message.body[2].decode()] = message.body[3].decode()

        self._on_signal = on_signal  # pystemd itself keeps no reference to it
        with self._failing("systemd's signals cannot be received"):
            for member in (b"UnitRemoved", b"JobRemoved"):
                self._bus.match_signal(_NAME, _PATH, _MANAGER, member, on_signal)
        self.call("Subscribe")

    def wait(self, seconds: float) -> None:
        """Wait for a signal, for at most `seconds`."""
        if not self._drain():
            poll = select.poll()
            poll.register(self._bus.get_fd(), select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)
            self._drain()

    def _drain(self) -> bool:
        came = False
        with self._failing("the connection to systemd is lost"):
            while not self._bus.process().is_empty():
                came = True
        return came

    @contextmanager
    def _failing(self, what: str, advice: str = "") -> Iterator[None]:
        try:
            yield
        except self._error as error:
            text = error.err_message
            text = text.decode(errors="replace") if isinstance(text, bytes) else str(text or error)
            raise SystemdFailed(f"{what}: {text}{advice}") from None
