"""Bytes and fsyncs per delivered turn, on a card of its own that counts what is written to it.

A delivered turn is accepted durably, marked as begun, and its end is stored durably. One by one: each message is
sent when the turn before has ended. At once: all are sent by 32 callers while turns run. The floor stores one row
per turn in one SQLite transaction (WAL, synchronous=FULL) and knows nothing of begin and end.
Syscalls are counted in runs of their own, since strace makes them slow.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import common
from tests.rig.card import Card

TURNS = 200
CALLERS = 32
ROUNDS = 3
PAYLOAD = b'{"content": "%b"}' % (b"x" * 100)
MESSAGE = {"to": "@bench", "content": "x" * 100}


def one_by_one() -> None:
    caller = common.Caller()
    for _ in range(TURNS):
        row = caller.ask("POST", "/v1/deliveries", MESSAGE)["deliveries"][0]
        answer = caller.ask("GET", f"/v1/deliveries/{row['id']}?wait_s=60")
        assert answer["state"] == "done", answer


def at_once() -> None:
    callers = [common.Caller() for _ in range(CALLERS)]
    common.call_at_once(callers, common.request("POST", "/v1/deliveries", MESSAGE), lambda sent: sent < TURNS)
    for caller in callers:
        caller.socket.close()
    while common.Caller().ask("GET", "/v1/deliveries")["deliveries"]:
        time.sleep(0.05)


def bare(path: Path) -> None:
    db = common.bare_database(path)
    for _ in range(TURNS):
        common.bare_insert(db, PAYLOAD)
    db.close()


def fsyncs(pid: int, work: Callable[[], None]) -> float:
    """fsync and fdatasync calls of the process, per turn."""
    with tempfile.NamedTemporaryFile() as log:
        tracer = subprocess.Popen(
            ["strace", "-f", "-q", "-p", str(pid), "-e", "trace=fsync,fdatasync", "-o", log.name],
            stdin=subprocess.DEVNULL,
        )
        while common.status_number(pid, "TracerPid") != tracer.pid:
            time.sleep(0.01)
        work()
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        return len(re.findall(r"fsync\(|fdatasync\(", Path(log.name).read_text())) / TURNS


def main() -> None:
    if sys.argv[1:]:  # the floor, in a process that can be watched
        sys.stdin.readline()
        bare(Path(sys.argv[1]))
        return
    with (
        Card(write_delay_ms=0, rate=None) as card,
        common.Daemon(common.mind("bench", "/bin/true"), card.mount / "state") as daemon,
    ):

        def floor(watch: Callable[[int, Callable[[], None]], float]) -> float:
            argv = [sys.executable, "-m", "tests.bench.cost", str(card.mount / "bare.db")]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE)
            return watch(process.pid, lambda: process.communicate(b"go\n") and None)

        def written(work: Callable[[], None]) -> float:
            """Bytes that reached the card, per turn."""
            common.sync(card.mount)
            before = common.card_bytes(card)
            work()
            common.sync(card.mount)
            return (common.card_bytes(card) - before) / TURNS

        sqlite = "bare SQLite insert (floor)"
        results = common.rounds(
            ROUNDS,
            {
                "one by one": lambda: written(one_by_one),
                f"all at once, {CALLERS} callers": lambda: written(at_once),
                sqlite: lambda: floor(lambda _, work: written(work)),
            },
        )
        common.show("bytes per turn", results, sqlite)
        results = common.rounds(
            ROUNDS,
            {
                "one by one": lambda: fsyncs(daemon.pid, one_by_one),
                f"all at once, {CALLERS} callers": lambda: fsyncs(daemon.pid, at_once),
                sqlite: lambda: floor(fsyncs),
            },
        )
        common.show("fsyncs per turn", results, sqlite)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    main()
