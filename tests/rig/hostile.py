"""Many clients at once that send what they should not: a program that any user can run, without other modules.

Its argument is JSON, see Attack; it prints the statuses that it was answered with, and how many there were of each.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

MIB = 1 << 20
# (before, what is repeated, how often, after): as large as a body to the guard may be.
LISTS = ('{"to": "@ada", "content": [', "[],", MIB - 100, "0]}")
OBJECTS = ('{"to": "@ada", "content": [', '{"a":1},', MIB * 3 // 8 - 100, "0]}")
UNKNOWN = ('{"to": "@ada", "x": [', "7,", 9_000, "0]}")
TEXT = ('{"to": "@ada", "content": "', "x", 3 * MIB, '"}')
ESCAPES = ('{"to": "@ada", "content": "', "\\u0078", MIB // 2 - 100, '"}')
WIDE = ('{"to": "@ada", "content": "\U0001f600', "x", 3 * MIB, '"}')
MESSAGE = ('{"to": "@ada", "content": "', "x", 1_000_000, '"}')
BODIES = (
    LISTS,
    OBJECTS,
    UNKNOWN,
    TEXT,
    ESCAPES,
    WIDE,
    MESSAGE,
    ("", "", 0, ""),
    ("", "[", 5000, ""),
    ("{}", "", 0, ""),
)


def drawn(chosen: random.Random, heads: list[tuple[str | int, str]], requests: int) -> dict[str, Any]:
    """Any attack, of some `requests` to one of these, of which each is (at, head)."""
    at, head = chosen.choice(heads)
    before, unit, times, after = chosen.choice(BODIES)
    times = chosen.choice((times, times, times // 2, times // 100))
    connections = chosen.choice((1, 2, 10, 50, 200))
    return {
        "at": at, "head": head, "body": (before, unit, times, after), "connections": connections,
        "requests": max(1, requests // connections), "short": chosen.choice((0, 0, 0, 1, 100)),
        "chunked": chosen.random() < 0.2, "deaf": chosen.random() < 0.1, "seconds": 1.0,
    }  # fmt: skip


class Attack:
    """`at`: the path of a unix socket, or a port; `head`: of each request, without its length.

    `body`: before, what is repeated, how often, after. `connections` at a time send so many `requests` each, for
    so many `seconds` at the most. `short`: bytes of each body that never come. `chunked`: its length is not told.
    `deaf`: answers are not read.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.at, self.connections, self.requests = given["at"], given["connections"], given.get("requests", 1)
        self.seconds, self.deaf = given.get("seconds", 20.0), given.get("deaf", False)
        before, unit, times, after = given.get("body", ("", "", 0, ""))
        body = (before + unit * times + after).encode()
        length = f"Content-Length: {len(body)}"
        if given.get("chunked"):
            length, body = "Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        short = given.get("short", 0)
        self.raw = f"{given['head']}\r\n{length}\r\n\r\n".encode() + (body[:-short] if short else body)
        self.statuses: Counter[str] = Counter()

    async def run(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                await asyncio.gather(*(self._client() for _ in range(self.connections)))

    async def _client(self) -> None:
        loop, left = asyncio.get_running_loop(), self.requests
        while left > 0:
            sock = socket.socket(socket.AF_UNIX if isinstance(self.at, str) else socket.AF_INET)
            sock.setblocking(False)
            with sock:
                try:
                    await loop.sock_connect(
                        sock, self.at if isinstance(self.at, str) else ("127.0.0.1", self.at)
                    )
                    while left > 0:
                        left -= 1
                        if not await self._request(loop, sock):
                            break
                except OSError as error:
                    left -= 1
                    self.statuses[type(error).__name__] += 1
                    await asyncio.sleep(0.01)

    async def _request(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bool:
        """True if the connection takes another one."""
        sending = asyncio.ensure_future(loop.sock_sendall(sock, self.raw))
        try:
            if self.deaf:
                await sending
                await asyncio.sleep(self.seconds)
            found = b""
            while b"\r\n\r\n" not in found:
                part = await loop.sock_recv(sock, 1 << 16)
                if not part:
                    self.statuses["closed"] += 1
                    return False
                found += part
            head, _, rest = found.partition(b"\r\n\r\n")
            self.statuses[head[9:12].decode()] += 1
            size = re.search(rb"(?i)content-length: (\d+)", head)
            missing = int(size[1]) - len(rest) if size else 0
            while missing > 0 and (part := await loop.sock_recv(sock, 1 << 16)):
                missing -= len(part)
            return sending.done() and b"connection: close" not in head.lower()
        finally:
            sending.cancel()
            with suppress(OSError, asyncio.CancelledError):
                await sending


if __name__ == "__main__":
    attack = Attack(json.loads(sys.argv[1]))
    asyncio.run(attack.run())
    print(json.dumps(attack.statuses))
