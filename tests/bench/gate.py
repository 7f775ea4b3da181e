"""The gate with 1,000,000 queued rows of 1000 minds: one decision, and the start of the daemon.

A decision is what stands between "a slot came free" and "this row starts": Backlog.next, decide, remove. As in
the daemon, LIVE turns are under way and the oldest ends first; two rows in three are of the mind's one main
session, the others have a session each. The floor is a heap of as many entries that only pops and pushes.
"""

from __future__ import annotations

import asyncio
import heapq
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from hostguard.core.admission import decide
from hostguard.core.clock import Now
from hostguard.core.model import HostView, LiveTurn, MindView, Row, Start
from hostguard.core.reasons import MIND
from hostguard.gate.backlog import Backlog
from hostguard.store import deliveries
from hostguard.store.writer import Queue
from tests.bench import common

ROWS = 1_000_000
MINDS = 1_000
LIVE = 8
DECISIONS = 5_000  # a round
ROUNDS = 7
STARTS = 3
NOW = Now(1_800_000_000_000)


async def fill(path: Path) -> None:
    """Store the rows, in the daemon's own schema."""
    queue = Queue(path)
    await queue.open()
    rows = range(1, ROWS + 1)
    bodies = ((id_, b'{"content": "hello"}') for id_ in rows)
    queued = ((id_, f"mind{id_ % MINDS}", f"s{id_}" if id_ % 3 == 0 else "main", id_) for id_ in rows)

    def insert(db: sqlite3.Connection) -> None:
        db.executemany("INSERT INTO payloads (id, body) VALUES (?, ?)", bodies)
        db.executemany(
            "INSERT INTO deliveries (id, mind, session, state, kind, created_at, not_before, expires_at, payload)"
            " VALUES (?, ?, ?, 'queued', 'message', 1700000000000, 0, 0, ?)",
            queued,
        )

    await queue.write(insert)
    await queue.close()


async def load(path: Path) -> Backlog:
    queue, backlog = Queue(path), Backlog()
    await queue.open()
    await queue.read(lambda db: backlog.load(deliveries.queued(db), NOW))
    await queue.close()
    return backlog


class Turns:
    """Turns that start and end as the gate lets them."""

    def __init__(self, backlog: Backlog) -> None:
        self.backlog = backlog
        self.live: dict[str, LiveTurn] = {}
        self.order: deque[str] = deque()
        self.spent: list[float] = []  # µs of each decision

    def decide_one(self) -> None:
        row = self.backlog.next()
        assert row is not None
        host = HostView(len(self.live), (), LIVE, None, False, True)
        assert isinstance(decide(host, MindView(row.mind, 1, False), row, NOW), Start)
        self.backlog.remove(row.id, row.mind, row.session)
        self.backlog.park(row, MIND)
        self._start(row)

    def _start(self, row: Row) -> None:
        self.live[row.mind] = LiveTurn(str(row.id), row.mind, row.session)
        self.order.append(row.mind)

    def measure(self) -> float:
        """Mean µs of a decision."""
        for _ in range(DECISIONS):
            if len(self.order) == LIVE:
                mind = self.order.popleft()
                session = self.live.pop(mind).session
                began = time.perf_counter()
                self.backlog.touch(mind, session)
            else:
                began = time.perf_counter()
            self.decide_one()
            self.spent.append((time.perf_counter() - began) * 1e6)
        return statistics.fmean(self.spent[-DECISIONS:])


def heap_of(rows: int) -> list[tuple[int, str]]:
    heap = [(id_, f"mind{id_ % MINDS}") for id_ in range(rows)]
    heapq.heapify(heap)
    return heap


def measure_heap(heap: list[tuple[int, str]]) -> float:
    """Mean µs of a pop and a push."""
    began = time.perf_counter()
    for _ in range(DECISIONS):
        id_, mind = heapq.heappop(heap)
        heapq.heappush(heap, (id_ + ROWS, mind))
    return (time.perf_counter() - began) / DECISIONS * 1e6


def python() -> float:
    """Seconds that a Python without work takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def main() -> None:
    full, empty = common.DISK / "full", common.DISK / "empty"
    full.mkdir()
    asyncio.run(fill(full / "queue.db"))

    decisions(full / "queue.db")
    starts(full, empty)


def decisions(path: Path) -> None:
    turns, heap = Turns(asyncio.run(load(path))), heap_of(ROWS)
    results = common.rounds(
        ROUNDS, {"hostguard": turns.measure, "heapq pop + push (floor)": lambda: measure_heap(heap)}
    )
    common.show(f"decision, µs, {ROWS:,} rows", results, "heapq pop + push (floor)", aim="under 50 µs")
    spent = sorted(turns.spent)
    print(f"of {len(spent):,} decisions 99.9 % took at most {spent[len(spent) * 999 // 1000]:,.0f} µs\n")


def starts(full: Path, empty: Path) -> None:
    minds = "".join(common.mind(f"mind{number}", "/bin/true") for number in range(MINDS))
    memory = {}

    def start(state: Path) -> float:
        with common.Daemon(f"[limits]\nglobal_concurrent_turns = 0\n{minds}", state) as daemon:
            memory[state] = common.status_number(daemon.pid, "VmRSS") / 1024
            return daemon.start_s

    results = common.rounds(
        STARTS,
        {
            f"hostguardd, {ROWS:,} rows": lambda: start(full),
            "hostguardd, no rows": lambda: start(empty),
            "python3 -c pass (floor)": python,
        },
    )
    common.show("from exec to READY, s", results, "python3 -c pass (floor)", aim="under 3 s")
    print(
        f"it then holds {memory[full]:.0f} MiB, without rows {memory[empty]:.0f} MiB ({MINDS} minds configured)"
    )


if __name__ == "__main__":
    main()
