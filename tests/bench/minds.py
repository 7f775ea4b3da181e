"""1,000 resident minds with 100,000 queued rows, whose turns end as fast as they can.

A mind here takes a message and says `done` at once, so that all the time goes into the guard: ending a scope,
choosing the next row, starting its scope, posting. Beside it, in the same run, the same minds are driven by an
asyncio.Semaphore over a list in memory: no queue, no scopes. The ratio is the price of durability and of systemd.
Each row has a session of its own, so that none folds into another's turn.

Then once more with the cap of a small host, and minds that work for a while: what it takes from a turn's end to the
next POST while nothing else keeps the guard busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import socket
import sqlite3
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hostguard.api.server import LOOPBACK, Server, listen_tcp
from hostguard.store.writer import Queue
from tests.bench import common

MINDS, ROWS, CAP = 1_000, 100_000, 8
DELIVERIES = 400  # a round
ROUNDS = 3
CALM_CAP, CALM_DELIVERIES = 2, 40
WORK_S = (0.1, 0.3)  # of a turn then
MINDS_PORT, GUARD_PORT, PLAIN_PORT = 4301, 4302, 4303
TOKEN = "bench"


class Found(NamedTuple):
    """Of each round: deliveries per second, and ms from an end to the next POST."""

    rates: list[float]
    p99: list[float]
    calm_median: list[float]


class Fleet:
    """All the minds, behind one port. Sessions are named MIND/NUMBER."""

    def __init__(self) -> None:
        self.daemon_port = GUARD_PORT
        self.works = False
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
        if self.works:
            await asyncio.sleep(random.uniform(*WORK_S))
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

    async def measure(self, count: int) -> tuple[float, list[float]]:
        """(deliveries per second, ms from each end to the next POST, sorted) over the next `count` messages."""
        for seen in (self.arrived, self.gaps, self.ended):
            seen.clear()
        self.wanted = count
        self.enough.clear()
        await self.enough.wait()
        spent = self.arrived[-1] - self.arrived[0]
        return (len(self.arrived) - 1) / spent, sorted(self.gaps)

    async def rounds(self, calm: Callable[[], object]) -> Found:
        """Measure, and again after `calm`: at that cap, with turns that take a while."""
        full = [await self.measure(DELIVERIES) for _ in range(ROUNDS)]
        self.works = True
        try:
            await asyncio.to_thread(calm)
            await self.measure(2 * CAP)  # those that began before
            slow = [await self.measure(CALM_DELIVERIES) for _ in range(ROUNDS)]
        finally:
            self.works = False
        return Found(
            [rate for rate, _ in full],
            [gaps[len(gaps) * 99 // 100] for _, gaps in full],
            [statistics.median(gaps) for _, gaps in slow],
        )


class Plain:
    """The same without a guard: a semaphore, a list, a POST, a `done`."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(CAP)
        self._calm = False
        self._kept = CAP - CALM_CAP  # slots that `calm` takes
        self._client = httpx.AsyncClient(
            trust_env=False, timeout=60, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self.app = Starlette(routes=[Route("/api/minds/{name}/events", self.event, methods=["POST"])])

    async def event(self, request: Request) -> Response:
        await request.body()
        if self._calm and self._kept:
            self._kept -= 1
        else:
            self._room.release()
        return JSONResponse({"ok": True})

    def calm(self) -> None:
        """Lower the cap."""
        self._calm = True

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
        db.executemany(
            "INSERT INTO payloads (id, body) VALUES (?, ?)", ((id_, b'{"content":"hello"}') for id_ in rows)
        )
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


async def guarded(fleet: Fleet) -> Found:
    state = common.DISK / "minds"
    state.mkdir()
    await fill(state / "queue.db")
    fleet.daemon_port = GUARD_PORT
    daemon = common.Daemon(configuration(), state)
    await asyncio.to_thread(daemon.__enter__)
    try:
        return await fleet.rounds(lower_cap)
    finally:
        await asyncio.to_thread(daemon.__exit__)


def lower_cap() -> None:
    change = {"name": "global_concurrent_turns", "value": CALM_CAP, "runtime": True}
    common.RunClient().ask("PATCH", "/v1/limits", change)


async def plain(fleet: Fleet) -> Found:
    fleet.daemon_port = PLAIN_PORT
    driver = Plain()
    server = Server(driver.app, LOOPBACK)
    await server.start(listen_tcp(("127.0.0.1", PLAIN_PORT)))
    driving = asyncio.create_task(driver.run())
    try:
        return await fleet.rounds(driver.calm)
    finally:
        driving.cancel()
        await asyncio.sleep(0.5)
        server.end()


async def main() -> None:
    fleet = Fleet()
    server = Server(fleet.app, LOOPBACK)
    await server.start(socket.create_server(("", MINDS_PORT)))
    peer = "asyncio.Semaphore in memory"
    results = {peer: await plain(fleet), "hostguard": await guarded(fleet)}
    print(f"{MINDS:,} minds, {ROWS:,} rows queued, cap {CAP}, {ROUNDS} rounds of {DELIVERIES:,} deliveries\n")
    common.show("deliveries per second", {name: found.rates for name, found in results.items()}, peer)
    title = "end of a turn to the next POST"
    common.show(f"{title}, p99, ms", {name: found.p99 for name, found in results.items()}, peer)
    print(f"at a cap of {CALM_CAP}, with turns of {WORK_S[0]:g} to {WORK_S[1]:g} s:\n")
    calm = {name: found.calm_median for name, found in results.items()}
    common.show(f"{title}, median, ms", calm, peer, aim="at most 50 ms")
    rates = {name: statistics.median(found.rates) for name, found in results.items()}
    print(
        f"the price of a queue on disk and of a scope per turn: {rates[peer] / rates['hostguard']:.1f} times"
    )
    server.end()


if __name__ == "__main__":
    asyncio.run(main())
