"""What is kept of the promises: accepted is not lost, and nothing runs twice but in the documented window.

A guest under load has its guard killed, is rebooted in order, and loses its power, each so often, at random
moments; `run` has the usage. Senders insist, with keys, until they are told that a message is accepted. Each turn
logs its start and its end on the disk. In the end every row is done. What is counted, for each way:

  rows        accepted meanwhile
  lost        of these, without an end in the log
  again       turns that began once more in the window: theirs ran when the host went down, or its end was so
              fresh that it was not stored (WINDOW_S)
  doubled     turns that began once more outside of it
  attempts    counted; a power cut counts one for each turn that it cuts short, a kill and a reboot none

The power of a guest is cut by a SIGKILL to its PID 1: the disk keeps what was written. What an SD card loses in a
real cut is tested in tests/vm/test_powercut.py.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.rig.switched import ROOT, Switched, mind

MINDS = [f"m{number}" for number in range(5)]
CAP = 2
PAUSE_S = 0.3  # of a sender, at most
SPAN_S = (0.05, 1.0)  # of load before the next kill, reboot or cut
WINDOW_S = 1.0  # an end this long before the host went down may not be stored
DRAIN_S = 600.0
TURN = """#!/bin/bash
# One line each, by one write: what, row, attempt, time.
echo "start $HOSTGUARD_DELIVERY $HOSTGUARD_ATTEMPT $EPOCHREALTIME" >>/keep/log
sleep 0.$((RANDOM % 4))$((RANDOM % 10))
echo "end $HOSTGUARD_DELIVERY $HOSTGUARD_ATTEMPT $EPOCHREALTIME" >>/keep/log
"""
CONFIG = f"[limits]\nglobal_concurrent_turns = {CAP}\nhistory_rows = 1000000\n"
RESTART = """mkdir -p /run/systemd/system/hostguard.service.d
printf '[Service]\\nRestart=always\\nRestartSec=10ms\\n' >/run/systemd/system/hostguard.service.d/bench.conf
systemctl daemon-reload; systemctl start hostguard"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one way of going down cost; see above."""

    way: str
    times: int
    rows: int
    lost: int
    again: int
    doubled: int
    attempts: int

    def __str__(self) -> str:
        return (
            f"{self.times:5} {self.way:8} {self.rows:6} rows: {self.lost} lost, {self.again} again in the window,"
            f" {self.doubled} doubled outside, {self.attempts} attempts counted"
        )


@dataclass(frozen=True, slots=True)
class Down:
    """When turns were stopped with the host, and when it was off, in s since the epoch."""

    at: float
    off: float


class Sender(threading.Thread):
    """Sends to one mind until it is stopped, and keeps each row that it was told. No answer: the same key again."""

    def __init__(self, host: Switched, name: str, keys: str) -> None:
        super().__init__(daemon=True)
        self._host, self._mind, self._keys = host, name, keys
        self.rows: list[int] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            while True:
                if self.stopped.is_set():
                    return
                try:
                    self.rows.append(self._host.send(f"@{self._mind}", number, key=f"{self._keys}-{number}"))
                    break
                except (httpx.TransportError, AssertionError):
                    self.stopped.wait(0.02)  # the guard is down, or says that it stops
            self.stopped.wait(random.uniform(0, PAUSE_S))


@dataclass
class Bench:
    """A host under load."""

    host: Switched
    downs: list[Down] = field(default_factory=list)
    start_s: float = 0.0

    def start(self) -> None:
        """Boot for the first time."""
        turn = self.host.keep / "turn"
        turn.write_text(TURN)
        turn.chmod(0o755)
        self._boot(CONFIG + "".join(mind(name, "/keep/turn") for name in MINDS))

    def _boot(self, config: str | None = None) -> None:
        self.host.boot(config, start=False)
        began = time.monotonic()
        self.host.sh(RESTART)
        self.start_s = time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL to the guard, once there is one: in its start or at work."""
        time.sleep(random.uniform(0, 1.5 * self.start_s))
        self.host.wait_for(lambda: self.host.ask(
            "pid=$(systemctl show --value --property=MainPID hostguard); [ $pid != 0 ] && kill -KILL $pid"
        ).returncode == 0)  # fmt: skip

    def reboot(self) -> None:
        """Reboot in order. The mark says when the turns were stopped."""
        self.host.ask("systemctl reboot")
        self.host.wait_off()
        mark = self.host.state / "went-down"
        self.downs.append(Down(mark.stat().st_mtime if mark.exists() else time.time(), time.time()))
        self._boot()

    def cut(self) -> None:
        """Cut the power."""
        at = time.time()
        self.host.cut()
        self.downs.append(Down(at, time.time()))
        self._boot()

    def phase(self, way: str, times: int, do: Callable[[], None]) -> Figures:
        """Have it go down this way, so often, under load, and let all be done."""
        before = len(self.host.logged())
        senders = [Sender(self.host, name, f"{way}-{name}") for name in MINDS]
        for sender in senders:
            sender.start()
        for _ in range(times):
            time.sleep(random.uniform(*SPAN_S))
            do()
        for sender in senders:
            sender.stopped.set()
        for sender in senders:
            sender.join()
        self.host.wait_for(self.drained, DRAIN_S)
        return figures(
            way,
            times,
            [row for sender in senders for row in sender.rows],
            self.host.logged()[before:],
            self.downs,
        )

    def drained(self) -> bool:
        """True if no row waits or is in a turn."""
        try:
            return not self.host.call("GET", "/v1/deliveries")["deliveries"]
        except (httpx.TransportError, AssertionError):
            return False


def figures(way: str, times: int, rows: list[int], log: list[list[str]], downs: list[Down]) -> Figures:
    """Judge the log of one phase."""
    begun: dict[int, list[float]] = {}
    ended: dict[int, list[float]] = {}
    attempts: Counter[int] = Counter()
    for what, id_, attempt, at in (line for line in log if len(line) == 4):  # a cut may leave half a line
        row = int(id_)
        (begun if what == "start" else ended).setdefault(row, []).append(float(at))
        attempts[row] = max(attempts[row], int(attempt) - 1)
    again = doubled = 0
    for row, starts in begun.items():
        for first, second in itertools.pairwise(starts):
            end = next((at for at in ended.get(row, []) if first <= at <= second), None)
            cut_short = any(
                first <= down.off < second and (end is None or end >= down.at - WINDOW_S) for down in downs
            )
            again, doubled = again + cut_short, doubled + (not cut_short)
    lost = len(set(rows) - ended.keys())
    return Figures(way, times, len(rows), lost, again, doubled, sum(attempts.values()))


def measure(tree: Path, folder: Path, kills: int, reboots: int, cuts: int) -> list[Figures]:
    """The figures of all ways, each printed when it is there."""
    found = []
    with Switched(tree, folder) as host:
        bench = Bench(host)
        bench.start()
        for way, times, do in (
            ("kills", kills, bench.kill), ("reboots", reboots, bench.reboot), ("cuts", cuts, bench.cut),
        ):  # fmt: skip
            if times:
                found.append(bench.phase(way, times, do))
                print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="promises")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--reboots", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--suite", default="bookworm")
    asked = parser.parse_args()
    made = subprocess.run(
        [ROOT / "tests/rig/tree", asked.suite], stdout=subprocess.PIPE, text=True, check=True
    )
    cache = Path("/var/cache/hostguard-rig")
    seed = random.SystemRandom().randrange(1 << 30)
    random.seed(seed)
    print(f"{asked.suite}, seed {seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="promises-", dir=cache) as folder:
        measure(Path(made.stdout.strip()), Path(folder), asked.kills, asked.reboots, asked.cuts)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
