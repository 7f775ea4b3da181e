"""sd_notify(3): tells the service manager how we are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import deque

AGAIN_S = 0.5  # until a service manager that took nothing is told again
UNTOLD_MAX = 100  # messages that wait for it


class Notifier:
    """Sends state to $NOTIFY_SOCKET, if there is one, without waiting.

    What PID 1 does not take (its queue is full: it may hang itself) is sent later, in order: without READY=1
    it would end the service. Of status lines only the last counts.
    """

    def __init__(self) -> None:
        path = os.environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._status = ""
        self._untold: deque[bytes] = deque(maxlen=UNTOLD_MAX)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, *lines: str) -> None:
        """Send assignments such as READY=1. Call it on the event loop."""
        if self._address:
            raw = "\n".join(lines).encode()
            if self._untold or not self._took(raw):
                self._later(raw)

    def _took(self, raw: bytes) -> bool:
        try:
            self._socket.sendto(raw, self._address)
        except BlockingIOError:
            return False
        except OSError:  # there is nobody
            pass
        return True

    def _later(self, raw: bytes) -> None:
        if not self._untold:
            asyncio.get_running_loop().call_later(AGAIN_S, self._send_untold)
        elif self._untold[-1].startswith(b"STATUS=") and raw.startswith(b"STATUS="):
            self._untold.pop()
        self._untold.append(raw)

    def _send_untold(self) -> None:
        while self._untold and self._took(self._untold[0]):
            self._untold.popleft()
        if self._untold:
            asyncio.get_running_loop().call_later(AGAIN_S, self._send_untold)

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
