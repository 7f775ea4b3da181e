"""The bytes that an idle daemon writes, the CPU it uses, and its memory.

Its state is on a card of its own, whose counters show every byte, whoever wrote it. It has run a turn before, and
the measurement begins when what that turn wrote has reached the card. For comparison, in the same minute: a
Python that sleeps (the least that a Python daemon can take), task-spooler's server and journald.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench import common
from tests.rig.card import Card

SETTLE_S = 3


@dataclass(frozen=True)
class Used:
    """What a process has used so far."""

    written: int  # bytes that it sent to storage
    cpu_ms: float
    wakeups: int  # times that it went to sleep by itself
    forced: int  # times that it was interrupted

    def __sub__(self, other: Used) -> Used:
        return Used(
            self.written - other.written,
            self.cpu_ms - other.cpu_ms,
            self.wakeups - other.wakeups,
            self.forced - other.forced,
        )


def used(pid: int) -> Used:
    proc = Path("/proc", str(pid))
    io = dict(line.split(": ") for line in (proc / "io").read_text().splitlines())
    tasks = [int(task.name) for task in (proc / "task").iterdir()]
    return Used(
        int(io["write_bytes"]),
        sum(int((proc / "task" / str(t) / "schedstat").read_text().split()[0]) for t in tasks) / 1e6,
        sum(common.status_number(t, "voluntary_ctxt_switches") for t in tasks),
        sum(common.status_number(t, "nonvoluntary_ctxt_switches") for t in tasks),
    )


def memory(pid: int) -> tuple[float, float]:
    """(RSS, PSS) in MiB."""
    rollup = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()[1:]
    kb = {line.split(":")[0]: int(line.split()[1]) for line in rollup}
    return kb["Rss"] / 1024, kb["Pss"] / 1024


def watch(daemon: common.Daemon) -> dict[str, int]:
    """The processes to measure, after one turn."""
    caller = common.RunClient()
    row = caller.ask("POST", "/v1/deliveries", {"to": "@bench", "content": "go"})["deliveries"][0]
    assert caller.ask("GET", f"/v1/deliveries/{row['id']}?wait_s=10")["state"] == "done"
    caller.socket.close()
    common.run("tsp", "true")
    (unit,) = common.run(
        "systemctl", "list-units", "--plain", "--no-legend", "hostguard-spawner-*"
    ).splitlines()
    server = psutil.Process(
        int(common.run("systemctl", "show", "--value", "--property=MainPID", unit.split()[0]))
    )
    return {
        "hostguardd": daemon.pid,
        "its fork server": server.pid,
        **{f"stub that waits, {number}": stub.pid for number, stub in enumerate(server.children(), 1)},
        "task-spooler's server": int(common.run("pgrep", "-x", "tsp").split()[0]),
        "systemd-journald": int(common.run("pgrep", "-x", "systemd-journal").split()[0]),
    }


def main() -> None:
    seconds = int(os.environ["HOSTGUARD_BENCH_IDLE_S"])
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(86400)"])
    with (
        Card(write_delay_ms=0, rate=None) as card,
        common.Daemon(common.mind("bench", "/bin/true"), card.mount / "state") as daemon,
    ):
        watched = {**watch(daemon), "python3 that sleeps (floor)": sleeper.pid}
        time.sleep(SETTLE_S)
        common.sync(card.mount)

        before, card_before = {name: used(pid) for name, pid in watched.items()}, common.card_bytes(card)
        time.sleep(seconds)
        after, card_after = {name: used(pid) for name, pid in watched.items()}, common.card_bytes(card)

        print(
            f"idle for {seconds} s".ljust(30), "bytes written  CPU, ms  wakeups  forced  RSS, MiB  PSS, MiB"
        )
        for name, pid in watched.items():
            use, (rss, pss) = after[name] - before[name], memory(pid)
            print(
                f"{name:30} {use.written:>13}  {use.cpu_ms:>7.2f}  {use.wakeups:>7}  {use.forced:>6}"
                f"  {rss:>8.1f}  {pss:>8.1f}"
            )
    print(f"the card itself took {card_after - card_before} bytes")
    print("aim: 0 bytes written; hostguardd at most 48 MiB RSS")
    sleeper.kill()
    sleeper.wait()


if __name__ == "__main__":
    main()
