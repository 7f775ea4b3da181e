"""Connections in crowds: a program that any user can run, without other modules.

usage: crowd.py JSON, see Crowd. It says "ready" once all connections were made, goes on until its standard
input ends, and then says how many of those that the other end closed had which status, "" if none.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

PAUSE_S, BYTE_S = 0.02, 0.2


class Crowd:
    """Keeps `count` connections to `at`, a path or a port, and makes each anew as soon as it is closed.

    `sent`: what each sends at once; `slowly`: and then a byte of this after the other. `half`: they send no more. `uids`: as so many users in turn, if the program is root's. `hasty`: each is closed as soon as it is made.
    """

    def __init__(self, at: str | int, count: int, **how: Any) -> None:
        self._at, self._count = at, count
        self._sent, self._slowly = how.get("sent", "").encode(), how.get("slowly", "").encode()
        self._half, self._hasty, self._uids = how.get("half"), how.get("hasty"), how.get("uids", 0)
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, bytes] = {}  # with what came
        self._made = 0
        self.closed: Counter[str] = Counter()

    def run(self) -> None:
        """Until standard input ends."""
        self._selector.register(0, selectors.EVENT_READ)
        said, next_byte = False, time.monotonic()
        while True:
            self._fill()
            if not said and (len(self._open) == self._count or self._hasty):
                print("ready", flush=True)
                said = True
            for key, _ in self._selector.select(0 if self._hasty else PAUSE_S):
                if key.fd == 0:
                    return
                self._read(key.fileobj)  # type: ignore[arg-type]
            if self._slowly and time.monotonic() >= next_byte:
                next_byte = time.monotonic() + BYTE_S
                self._drip()

    def _fill(self) -> None:
        for _ in range(self._count - len(self._open)):
            if self._uids:
                os.seteuid(0)
                os.seteuid(20_000 + self._made % self._uids)
            sock = socket.socket(socket.AF_UNIX if isinstance(self._at, str) else socket.AF_INET)
            sock.setblocking(False)
            error = sock.connect_ex(self._at if isinstance(self._at, str) else ("127.0.0.1", self._at))
            if error not in (0, errno.EINPROGRESS) or self._hasty:  # EAGAIN: the backlog is full
                sock.close()
                self.closed[errno.errorcode.get(error, "")] += 1
                return
            self._made += 1
            self._open[sock] = b""
            self._selector.register(sock, selectors.EVENT_READ)
            self._send(sock, self._sent)
            if self._half:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)

    def _send(self, sock: socket.socket, what: bytes) -> None:
        if what:
            with suppress(OSError):
                sock.send(what)

    def _drip(self) -> None:
        for number, sock in enumerate(self._open):
            self._send(sock, self._slowly[number % len(self._slowly) :][:1])

    def _read(self, sock: socket.socket) -> None:
        try:
            part = sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if part:
            self._open[sock] += part if len(self._open[sock]) < 4096 else b""
            return
        found = self._open.pop(sock)
        self._selector.unregister(sock)
        sock.close()
        self.closed[found[9:12].decode()] += 1


if __name__ == "__main__":
    crowd = Crowd(**json.loads(sys.argv[1]))
    crowd.run()
    print(json.dumps(crowd.closed))
