"""Reports the daemon's state to the service manager, as sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque

AGAIN_S = 0.5  # until a message that the service manager did not take is sent again
UNSENT_MAX = 100  # messages


class Notifier:
    """Sends states to $NOTIFY_SOCKET, if it is set, without waiting.

    What PID 1 does not take (its queue is full: it may hang) is sent later, in order: without READY=1 it
    would end the service. Of consecutive status lines only the last is kept.
    """

    def __init__(self) -> None:
        path = os.environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._status = ""
        self._unsent: deque[bytes] = deque(maxlen=UNSENT_MAX)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, *lines: str) -> None:
        """Send assignments such as READY=1. Call it on the event loop."""
        if self._address:
            raw = "\n".join(lines).encode()
            if self._unsent or not self._took(raw):
                self._later(raw)

    def _took(self, raw: bytes) -> bool:
        try:
            self._socket.sendto(raw, self._address)
        except BlockingIOError:
            return False
        except OSError:  # nobody listens
            pass
        return True

    def _later(self, raw: bytes) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_later(AGAIN_S, self._send_unsent)
        elif self._unsent[-1].startswith(b"STATUS=") and raw.startswith(b"STATUS="):
            self._unsent.pop()
        self._unsent.append(raw)

    def _send_unsent(self) -> None:
        while self._unsent and self._took(self._unsent[0]):
            self._unsent.popleft()
        if self._unsent:
            asyncio.get_running_loop().call_later(AGAIN_S, self._send_unsent)

    def keep(self, name: str, sock: socket.socket) -> None:
        """Let the service manager hold the socket over a restart; the next start gets it under this name."""
        if self._address and sock.fileno() >= 0:  # it may be closed by now
            lines, fd = f"FDSTORE=1\nFDNAME={name}".encode(), struct.pack("i", sock.fileno())
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)]
            try:
                self._socket.sendmsg([lines], rights, 0, self._address)
            except BlockingIOError:
                asyncio.get_running_loop().call_later(AGAIN_S, self.keep, name, sock)
            except OSError:  # nobody listens
                pass

    def forget(self, name: str) -> None:
        """Let the service manager close the sockets that it holds under this name."""
        self.send("FDSTOREREMOVE=1", f"FDNAME={name}")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        if text != self._status:
            self._status = text
            self.send(f"STATUS={text}")

    def feed_watchdog(self) -> None:
        """Report from now on, at half of the service manager's limit, that the event loop runs."""
        usec = os.environ.get("WATCHDOG_USEC", "")
        if usec.isdecimal() and os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            self.send("WATCHDOG=1")
            asyncio.get_running_loop().call_later(int(usec) / 2_000_000, self.feed_watchdog)
