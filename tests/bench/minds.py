"""1,000 resident minds with 100,000 queued rows, whose turns end as fast as they can.

A mind here takes a message and says `done` at once, so that all the time goes into the guard: ending a scope,
choosing the next row, starting its scope, posting. Beside it, in the same run, the same minds are driven by an
asyncio.Semaphore over a list in memory: no queue, no scopes. The ratio is the price of durability and of systemd.
Each row has a session of its own, so that none folds into another's turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import sqlite3
import statistics
import time
from collections import deque
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hostguard.queue import Queue
from hostguard.server import LoopbackProtocol, listen_tcp, make_server
from tests.bench import common

MINDS, ROWS, CAP = 1_000, 100_000, 8
DELIVERIES = 400  # a round
ROUNDS = 3
MINDS_PORT, GUARD_PORT, PLAIN_PORT = 4301, 4302, 4303
TOKEN = "bench"


class Fleet:
    """All the minds, behind one port. Sessions are named MIND/NUMBER."""

    def __init__(self) -> None:
        self.daemon_port = GUARD_PORT
        self.arrived: list[float] = []
        self.ended: deque[float] = deque()
        self.gaps: list[float] = []  # ms from a turn's end to the POST that takes its place
        self.wanted, self.enough = 0, asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.app = Starlette(routes=[Route("/message", self.message, methods=["POST"])])

    async def message(self, request: Request) -> Response:
        body = json.loads(await request.body())
        now = time.perf_counter()
        self.arrived.append(now)
        if len(self.arrived) == self.wanted:
            self.enough.set()
        if self.ended:
            self.gaps.append((now - self.ended.popleft()) * 1000)
        task = asyncio.create_task(self._done(body["session"]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return JSONResponse({"ok": True})

    async def _done(self, session: str) -> None:
        mind = session.partition("/")[0]
        content = json.dumps({"type": "done", "session": session}).encode()
        head = (
            f"POST /api/minds/{mind}/events HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        # By hand: a client library would take most of the time.
        with contextlib.suppress(ConnectionError):  # the round is over, and who is told has stopped
            reader, writer = await asyncio.open_connection("127.0.0.1", self.daemon_port)
            self.ended.append(time.perf_counter())
            writer.write(head.encode() + content)
            await reader.read()
            writer.close()

    async def measure(self, count: int) -> tuple[float, float]:
        """(deliveries per second, p99 of end to next POST in ms) over the next `count` messages."""
        for seen in (self.arrived, self.gaps, self.ended):
            seen.clear()
        self.wanted = count
        self.enough.clear()
        await self.enough.wait()
        spent = self.arrived[-1] - self.arrived[0]
        gaps = sorted(self.gaps)
        return (len(self.arrived) - 1) / spent, gaps[len(gaps) * 99 // 100]


class Plain:
    """The same without a guard: a semaphore, a list, a POST, a `done`."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(CAP)
        self._client = httpx.AsyncClient(
            trust_env=False, timeout=60, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self.app = Starlette(routes=[Route("/api/minds/{name}/events", self.event, methods=["POST"])])

    async def event(self, request: Request) -> Response:
        await request.body()
        self._room.release()
        return JSONResponse({"ok": True})

    async def run(self) -> None:
        rows = deque(f"mind{number % MINDS}/{number}" for number in range(ROWS))
        while rows:
            await self._room.acquire()
            body = {"content": "hello", "session": rows.popleft()}
            await self._client.post(f"http://127.0.0.1:{MINDS_PORT}/message", json=body)


async def fill(path: Path) -> None:
    """Store the rows, in the daemon's own schema."""
    queue = Queue(path)
    await queue.open()
    rows = range(1, ROWS + 1)

    def insert(db: sqlite3.Connection) -> None:
        db.executemany("INSERT INTO payloads VALUES (?, ?)", ((id_, b'{"content":"hello"}') for id_ in rows))
        db.executemany(
            "INSERT INTO deliveries (id, mind, session, state, kind, created_at, not_before, expires_at, payload)"
            " VALUES (?, ?, ?, 'queued', 'message', 1700000000000, 0, 0, ?)",
            ((id_, f"mind{id_ % MINDS}", f"mind{id_ % MINDS}/{id_}", id_) for id_ in rows),
        )

    await queue.write(insert)
    await queue.close()


def configuration() -> str:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    minds = "".join(
        f'[minds.mind{number}]\nurl = "http://127.1.{number // 250}.{number % 250 + 1}:{MINDS_PORT}"\ntoken = "sha256:{digest}"\n'
        for number in range(MINDS)
    )
    limits = f"[limits]\nglobal_concurrent_turns = {CAP}\nrows_per_mind = {ROWS}\n"
    return f'{limits}[events]\nlisten = "127.0.0.1:{GUARD_PORT}"\n{minds}'


async def guarded(fleet: Fleet, rounds: int) -> list[tuple[float, float]]:
    state = common.DISK / "minds"
    state.mkdir()
    await fill(state / "queue.db")
    fleet.daemon_port = GUARD_PORT
    daemon = common.Daemon(configuration(), state)
    await asyncio.to_thread(daemon.__enter__)
    try:
        return [await fleet.measure(DELIVERIES) for _ in range(rounds)]
    finally:
        await asyncio.to_thread(daemon.__exit__)


async def plain(fleet: Fleet, rounds: int) -> list[tuple[float, float]]:
    fleet.daemon_port = PLAIN_PORT
    driver = Plain()
    server = make_server(driver.app, LoopbackProtocol)
    serving = asyncio.create_task(server.serve(sockets=[listen_tcp(("127.0.0.1", PLAIN_PORT))]))
    driving = asyncio.create_task(driver.run())
    try:
        return [await fleet.measure(DELIVERIES) for _ in range(rounds)]
    finally:
        driving.cancel()
        await asyncio.sleep(0.5)
        server.end()
        await serving


async def main() -> None:
    fleet = Fleet()
    server = make_server(fleet.app, LoopbackProtocol)
    serving = asyncio.create_task(server.serve(sockets=[socket.create_server(("", MINDS_PORT))]))
    results = {
        "asyncio.Semaphore in memory": await plain(fleet, ROUNDS),
        "hostguard": await guarded(fleet, ROUNDS),
    }
    print(f"{MINDS:,} minds, {ROWS:,} rows queued, cap {CAP}, {ROUNDS} rounds of {DELIVERIES:,} deliveries\n")
    peer = "asyncio.Semaphore in memory"
    common.show(
        "deliveries per second", {name: [rate for rate, _ in found] for name, found in results.items()}, peer
    )
    common.show(
        "end of a turn to the next POST, p99, ms",
        {name: [p99 for _, p99 in found] for name, found in results.items()},
        peer,
    )
    rates = {name: statistics.median(rate for rate, _ in found) for name, found in results.items()}
    print(
        f"the price of a queue on disk and of a scope per turn: {rates[peer] / rates['hostguard']:.1f} times"
    )
    server.end()
    await serving


if __name__ == "__main__":
    asyncio.run(main())
