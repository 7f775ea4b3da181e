"""sd_notify(3): tells the service manager how we are."""

from __future__ import annotations

import contextlib
import os
import socket
import struct


class Notifier:
    """Sends state to $NOTIFY_SOCKET, if there is one, without waiting. Equal status lines are sent once."""

    def __init__(self) -> None:
        path = os.environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._status = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, *lines: str) -> None:
        """Send assignments such as READY=1."""
        if self._address:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)

    def keep(self, name: str, sock: socket.socket) -> None:
        """Have the service manager hold the socket while we restart: it comes back under this name."""
        if self._address:
            lines, fd = f"FDSTORE=1\nFDNAME={name}".encode(), struct.pack("i", sock.fileno())
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)]
            with contextlib.suppress(OSError):
                self._socket.sendmsg([lines], rights, 0, self._address)

    def forget(self, name: str) -> None:
        """Have the service manager close what it holds under this name."""
        self.send("FDSTOREREMOVE=1", f"FDNAME={name}")

    def status(self, text: str) -> None:
        """The line that `systemctl status` shows."""
        if text != self._status:
            self._status = text
            self.send(f"STATUS={text}")


def watchdog_s() -> float | None:
    """Seconds between two signs of life that the service manager asks for: half of its limit."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    if not usec.isdecimal() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(usec) / 2_000_000
