"""Bytes and fsyncs per delivered turn, on a card of its own that counts what is written to it.

A delivered turn is accepted durably, marked as begun, and its end is stored durably. One by one: each message is
sent when the turn before has ended. At once: all are sent by 32 callers while turns run. The floor stores one row
per turn in one SQLite transaction (WAL, synchronous=FULL) and knows nothing of begin and end.

SQLite's log grows to its full size first, and a growing file costs the file system more: the turns that fill it
are the first line, the other figures begin after them. What the command writes is not in here: it writes nothing.
Syscalls are counted in runs of their own, since strace makes them slow.
"""

from __future__ import annotations

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
TRACED_TURNS = 100
TRACED_ROUNDS = 2
FIRST_TURNS = 300  # SQLite begins its log again after 4000 pages of 1 KiB
FIRST_ROWS = 1200
PAYLOAD = b'{"content": "%b"}' % (b"x" * 100)
MESSAGE = {"to": "@bench", "content": "x" * 100}

Work = Callable[[int], None]


def one_by_one(turns: int) -> None:
    caller = common.RunClient()
    for _ in range(turns):
        row = caller.ask("POST", "/v1/deliveries", MESSAGE)["deliveries"][0]
        answer = caller.ask("GET", f"/v1/deliveries/{row['id']}?wait_s=60")
        assert answer["state"] == "done", answer


def at_once(turns: int) -> None:
    callers = [common.RunClient() for _ in range(CALLERS)]
    common.call_at_once(callers, common.request("POST", "/v1/deliveries", MESSAGE), lambda sent: sent < turns)
    for caller in callers:
        caller.socket.close()
    while common.RunClient().ask("GET", "/v1/deliveries")["deliveries"]:
        time.sleep(0.05)


class Floor:
    """A process that stores as many rows as it is told to."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "tests.bench.cost", str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self(FIRST_ROWS)

    def __call__(self, rows: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"%d\n" % rows)
        self.process.stdin.flush()
        self.process.stdout.readline()

    @staticmethod
    def serve(path: str) -> None:
        db = common.bare_database(Path(path))
        for line in sys.stdin:
            for _ in range(int(line)):
                common.bare_insert(db, PAYLOAD)
            print("done", flush=True)


def written(card: Card, work: Work, turns: int = TURNS) -> float:
    """Bytes that reached the card, per turn."""
    common.sync(card.mount)
    before = common.card_bytes(card)
    work(turns)
    common.sync(card.mount)
    return (common.card_bytes(card) - before) / turns


def fsyncs(pid: int, work: Work) -> float:
    """fsync and fdatasync calls of the process, per turn."""
    with tempfile.NamedTemporaryFile() as log:
        tracer = subprocess.Popen(
            ["strace", "-f", "-q", "-p", str(pid), "-e", "trace=fsync,fdatasync", "-o", log.name],
            stdin=subprocess.DEVNULL,
        )
        while common.status_number(pid, "TracerPid") != tracer.pid:
            time.sleep(0.01)
        work(TRACED_TURNS)
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        return len(re.findall(r"(fsync|fdatasync)\(", Path(log.name).read_text())) / TRACED_TURNS


def main() -> None:
    with (
        Card(write_delay_ms=0, rate=None) as card,
        common.Daemon(common.mind("bench", "/bin/true"), card.mount / "state") as daemon,
    ):
        first = written(card, one_by_one, FIRST_TURNS)
        floor = Floor(card.mount / "bare.db")
        names = ("one by one", f"at once, {CALLERS} callers", "bare SQLite insert (floor)")
        bytes_of = common.rounds(
            ROUNDS,
            {
                names[0]: lambda: written(card, one_by_one),
                names[1]: lambda: written(card, at_once),
                names[2]: lambda: written(card, floor),
            },
        )
        fsyncs_of = common.rounds(
            TRACED_ROUNDS,
            {
                names[0]: lambda: fsyncs(daemon.pid, one_by_one),
                names[1]: lambda: fsyncs(daemon.pid, at_once),
                names[2]: lambda: fsyncs(floor.process.pid, floor),
            },
        )
        floor.process.kill()
        floor.process.communicate()
    common.show("bytes per turn", {f"the first {FIRST_TURNS}": [first], **bytes_of}, names[2])
    common.show("fsyncs per turn", fsyncs_of, names[2])


if __name__ == "__main__":
    Floor.serve(sys.argv[1]) if sys.argv[1:] else main()
