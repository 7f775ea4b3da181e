"""Durable enqueues per second, from 1 and from 32 callers, on this machine's disk and on a slow card.

Through HTTP each caller has a kept-alive connection and waits for its answer before it sends the next message,
as a mind would. The guard is paused, so each row is also held, which the journal is told. "Queue alone" is
hostguard.store.writer without daemon and HTTP. The floors do one thing at a time: one SQLite transaction (WAL,
synchronous=FULL) that inserts a row, and 4 KiB made durable by themselves: appended with fsync, which makes the
file system write its own records too, and in place with fdatasync, as SQLite does once its log has its full size.
All logs have their full size before anything is measured.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import common
from tests.rig.card import Card

CALLERS = 32
ROUNDS = 5
SECONDS = 0.8  # per contender and round
FSYNC_MS = 10.0
RATE = 10_000_000  # bytes/s: what the SD card class A1 promises
BLOCK = b"x" * 4096
LOG_FULL = b'{"content": "%b"}' % (b"x" * 5_000_000)  # SQLite begins its log again after 4000 pages of 1 KiB
CONTENT = "x" * 100
PAYLOAD = b'{"content": "%b"}' % CONTENT.encode()


def per_second(work: Callable[[], object]) -> float:
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        work()
        count += 1
    return count / (time.perf_counter() - began)


class Bare:
    """The floors."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY)
        self._db = common.bare_database(folder / "bare.db")
        common.bare_insert(self._db, LOG_FULL)
        self._end = 0

    def append(self) -> float:
        def work() -> None:
            os.pwrite(self._file, BLOCK, self._end)
            os.fsync(self._file)
            self._end += len(BLOCK)

        return per_second(work)

    def in_place(self) -> float:
        def work() -> None:
            os.pwrite(self._file, BLOCK, 0)
            os.fdatasync(self._file)

        return per_second(work)

    def sqlite(self) -> float:
        return per_second(lambda: common.bare_insert(self._db, PAYLOAD))

    def close(self) -> None:
        os.close(self._file)
        self._db.close()


def http(callers: int) -> float:
    """Messages accepted per second."""
    raw = common.request("POST", "/v1/deliveries", {"to": "@bench", "content": CONTENT})
    connections = [common.RunClient() for _ in range(callers)]
    began = time.perf_counter()
    count = common.call_at_once(connections, raw, common.for_seconds(SECONDS))
    took = time.perf_counter() - began
    for connection in connections:
        connection.socket.close()
    return count / took


def queue_alone(folder: Path, callers: int) -> float:
    """As `http`, in a process of its own."""
    code = f"import tests.bench.enqueue as e; print(e.measure_queue({str(folder)!r}, {callers}))"
    return float(common.run(sys.executable, "-c", code))


def measure_queue(folder: str, callers: int) -> float:
    from hostguard.core.model import Target
    from hostguard.store import deliveries
    from hostguard.store.writer import Queue

    async def measure() -> float:
        queue = Queue(Path(folder, "alone.db"))
        await queue.open()
        big = deliveries.New([Target("bench", "main")], LOG_FULL, int(time.time() * 1000))
        await queue.write(lambda db: deliveries.enqueue(db, big))
        new = deliveries.New([Target("bench", "main")], PAYLOAD, int(time.time() * 1000))
        end = time.perf_counter() + SECONDS

        async def caller() -> int:
            count = 0
            while time.perf_counter() < end:
                await queue.write(lambda db: deliveries.enqueue(db, new))
                count += 1
            return count

        began = time.perf_counter()
        count = sum(await asyncio.gather(*(caller() for _ in range(callers))))
        took = time.perf_counter() - began
        await queue.close()
        return count / took

    return asyncio.run(measure())


def calibrate(card: Card, bare: Bare) -> None:
    """Set the card's delay so that a bare append + fsync takes FSYNC_MS: it is several requests."""
    delay = FSYNC_MS / 3
    for _ in range(3):
        card.set_delay(write_ms=delay)
        took = 1000 / bare.append()
        delay = max(0.1, delay + (FSYNC_MS - took) / 3)
    card.set_delay(write_ms=delay)


def compare(title: str, folder: Path, bare: Bare) -> None:
    config = f"[limits]\nrows_per_mind = 1000000\n{common.mind('bench', '/bin/true')}"
    floors = ("append 4 KiB + fsync (floor)", "4 KiB in place + fdatasync (floor)")
    with common.Daemon(config, folder / "state"):
        caller = common.RunClient()
        caller.ask("POST", "/v1/pause", {"mind": None})
        for _ in range(5):
            caller.ask("POST", "/v1/deliveries", {"to": "@bench", "content": "x" * 1_000_000})
        caller.socket.close()
        results = common.rounds(
            ROUNDS,
            {
                "HTTP, 1 caller": lambda: http(1),
                f"HTTP, {CALLERS} callers": lambda: http(CALLERS),
                "queue alone, 1": lambda: queue_alone(folder, 1),
                f"queue alone, {CALLERS}": lambda: queue_alone(folder, CALLERS),
                "bare SQLite insert (floor)": bare.sqlite,
                floors[0]: bare.append,
                floors[1]: bare.in_place,
            },
        )
    common.show(title, results, "HTTP, 1 caller", "bare SQLite insert (floor)")
    took = [f"{1000 / statistics.median(results[floor]):.2f} ms" for floor in floors]
    print(f"append + fsync took {took[0]}, in place + fdatasync {took[1]}")


def main() -> None:
    compare("enqueues per second, this machine's disk", common.DISK, Bare(common.DISK))
    print()
    with Card(write_delay_ms=0, rate=RATE) as card:
        bare = Bare(card.mount)
        calibrate(card, bare)
        compare(f"enqueues per second, card of {FSYNC_MS:g} ms", card.mount, bare)
        bare.close()
    print(f"aim: HTTP with {CALLERS} callers at least 8x HTTP with 1 caller on the card")


if __name__ == "__main__":
    main()
