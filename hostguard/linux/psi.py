"""Pressure stall information (PSI): how long tasks waited, and a trigger that fires on waits for I/O."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
from collections.abc import Callable
from pathlib import Path

import psutil

# Some task waits for 15 % of 2 s: the share is that of the example in Documentation/accounting/psi.rst, the
# window the shortest without CAP_SYS_RESOURCE. The NUL is part of the text.
TRIGGER = b"some 300000 2000000\0"

OK = "ok"
# Raspberry Pi OS builds PSI in and leaves it off.
_TURN_ON = "psi=1 on the kernel's command line turns it on"
_REFUSED = {
    errno.ENOENT: f"this kernel shows no PSI: {_TURN_ON}, if it is built in",
    errno.EOPNOTSUPP: f"PSI is off: {_TURN_ON}",
}


def host_file(resource: str) -> Path:
    """The pressure file of the whole host for a resource, such as "io"."""
    return Path(psutil.PROCFS_PATH) / "pressure" / resource


def totals_us(file: Path) -> dict[str, int]:
    """The µs for which "some" task has waited, and "full", all of them. Raises OSError."""
    found = re.findall(r"^(\w+) .*\btotal=([0-9]+)", file.read_text(), re.MULTILINE)
    return {line: int(total) for line, total in found}


def waited_us(file: Path) -> tuple[int | None, str]:
    """The µs for which some task has waited, from a pressure file, and OK; or None and why not."""
    try:
        some = totals_us(file).get("some")
    except OSError as error:
        return None, _REFUSED.get(error.errno or 0, f"PSI cannot be read: {error.strerror}")
    return (some, OK) if some is not None else (None, f"{file} has no line 'some'")


class Trigger:
    """Calls `on_pressure` from the event loop while there is pressure, at most once in a window."""

    def __init__(self, on_pressure: Callable[[], None]) -> None:
        self._on_pressure = on_pressure
        self._file = -1
        self._epoll: select.epoll | None = None
        self._again: asyncio.TimerHandle | None = None

    def open(self) -> str:
        """Ask the kernel for the trigger: OK, or why it refuses; then nothing is ever called."""
        try:
            self._file = os.open(host_file("io"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._file, TRIGGER)
            # asyncio cannot wait for POLLPRI: an epoll object does, which asyncio watches.
            self._epoll = select.epoll()
            self._epoll.register(self._file, select.EPOLLPRI)
        except OSError as error:
            self.close()
            return f"the kernel grants no PSI trigger: {error.strerror}"
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._called)
        return OK

    def close(self) -> None:
        """Remove the trigger, if there is one."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def rest(self, seconds: float) -> None:
        """Do not call for this long."""
        self.close()
        self._again = asyncio.get_running_loop().call_later(seconds, self.open)

    def _called(self) -> None:
        # asyncio took the event out of the epoll object: this call is the event.
        assert self._epoll is not None
        if any(events & select.EPOLLERR for _, events in self._epoll.poll(0)):
            self.close()  # for good: the kernel removed it
        else:
            self._on_pressure()
