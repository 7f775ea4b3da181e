"""Durable enqueues per second, from 1 and from 32 callers, on this machine's disk and on a slow card.

Through HTTP each caller has a kept-alive connection and waits for its answer before it sends the next message,
as a mind would. The guard is paused, so each row is also held, which the journal is told. "Queue alone" is
hostguard.queue without daemon and HTTP. The floors do one thing at a time: a bare write + fsync of 4 KiB,
and one SQLite transaction (WAL, synchronous=FULL) that inserts the same row.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.bench import common
from tests.rig.card import Card

CALLERS = 32
ROUNDS = 5
SECONDS = 0.8  # per contender and round
FSYNC_MS = 10.0
RATE = 10_000_000  # bytes/s: what the SD card class A1 promises
CONTENT = "x" * 100
PAYLOAD = b'{"content": "%b"}' % CONTENT.encode()


def bare_fsync(folder: Path) -> float:
    """Appends of 4 KiB, each with its fsync, per second."""
    fd = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        os.write(fd, b"x" * 4096)
        os.fsync(fd)
        count += 1
    took = time.perf_counter() - began
    os.close(fd)
    return count / took


def bare_sqlite(folder: Path) -> float:
    """Transactions that insert one row, per second."""
    db = common.bare_database(folder / "bare.db")
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        common.bare_insert(db, PAYLOAD)
        count += 1
    took = time.perf_counter() - began
    db.close()
    return count / took


def http(callers: int) -> float:
    """Messages accepted per second."""
    raw = common.request("POST", "/v1/deliveries", {"to": "@bench", "content": CONTENT})
    connections = [common.Caller() for _ in range(callers)]
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
    from hostguard import deliveries
    from hostguard.queue import Queue

    async def measure() -> float:
        queue = Queue(Path(folder, "alone.db"))
        await queue.open()
        new = deliveries.New(["bench"], "main", PAYLOAD, int(time.time() * 1000))
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


def calibrate(card: Card) -> None:
    """Set the card's delay so that a bare write + fsync takes FSYNC_MS: it is several requests."""
    delay = FSYNC_MS / 3
    for _ in range(3):
        card.set_delay(write_ms=delay)
        took = 1000 / bare_fsync(card.mount)
        delay = max(0.1, delay + (FSYNC_MS - took) / 3)
    card.set_delay(write_ms=delay)


def compare(title: str, folder: Path) -> None:
    config = f"[limits]\nrows_per_mind = 1000000\n{common.mind('bench', '/bin/true')}"
    with common.Daemon(config, folder / "state"):
        common.Caller().ask("POST", "/v1/pause", {"mind": None})
        results = common.rounds(
            ROUNDS,
            {
                "HTTP, 1 caller": lambda: http(1),
                f"HTTP, {CALLERS} callers": lambda: http(CALLERS),
                "queue alone, 1": lambda: queue_alone(folder, 1),
                f"queue alone, {CALLERS}": lambda: queue_alone(folder, CALLERS),
                "bare SQLite (floor)": lambda: bare_sqlite(folder),
                "bare 4 KiB write + fsync (floor)": lambda: bare_fsync(folder),
            },
        )
    common.show(title, results, "HTTP, 1 caller", "bare SQLite (floor)")
    print(
        f"a bare write + fsync took {1000 / statistics.median(results['bare 4 KiB write + fsync (floor)']):.2f} ms"
    )


def main() -> None:
    compare("enqueues per second, this machine's disk", common.DISK)
    print()
    with Card(write_delay_ms=FSYNC_MS / 3, rate=RATE) as card:
        calibrate(card)
        compare(f"enqueues per second, card of {FSYNC_MS:g} ms", card.mount)
        print(f"aim: HTTP with {CALLERS} callers at least 8x HTTP with 1 caller on the card")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
