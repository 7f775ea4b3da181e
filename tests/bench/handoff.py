"""From the end of a turn to the first instruction of the next, one mind with 200 queued rows.

The job notes the time at its start and at its end, so that only what lies between two jobs counts. hostguard
stores each end durably before it is done with it, and gives each turn a scope; task-spooler and sem do neither.
The floor is a shell that runs the job in a loop.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import common

JOBS = 200
SEM_JOBS = 10  # each waits as a process of 15 MB
SCOPES = 40
ROUNDS = 5
LOG = Path("/tmp/log")
JOB = Path("/tmp/job")
HOLD = Path("/tmp/hold")  # holds the line up until all have queued
GATE = Path("/tmp/gate")


def timed(queue: Callable[[], object], jobs: int) -> float:
    """Median ms between two jobs."""
    LOG.write_text("")
    queue()
    end = time.monotonic() + 60
    while LOG.read_text().count("e ") < jobs:
        if time.monotonic() > end:
            raise SystemExit(f"the jobs do not end: {LOG.read_text()}")
        time.sleep(0.05)
    times = [line.split() for line in LOG.read_text().splitlines()]
    assert [kind for kind, _ in times] == ["s", "e"] * jobs, "two jobs ran at once"
    stamps = [float(at) * 1000 for _, at in times]
    return statistics.median(b - a for a, b in zip(stamps[1:-1:2], stamps[2::2], strict=True))


def main() -> None:
    JOB.write_text(f'#!/bin/bash\necho "s $EPOCHREALTIME" >>{LOG}\necho "e $EPOCHREALTIME" >>{LOG}\n')
    JOB.chmod(0o755)
    HOLD.write_text(f"#!/bin/bash\nread _ <{GATE}\n")
    HOLD.chmod(0o755)
    os.mkfifo(GATE)

    def hostguard() -> None:
        caller = common.Caller()
        caller.ask("POST", "/v1/pause", {"mind": "bench"})
        for _ in range(JOBS):
            caller.ask("POST", "/v1/deliveries", {"to": "@bench", "content": "go"})
        caller.ask("POST", "/v1/resume", {"mind": "bench"})

    def spooler() -> None:
        common.run("tsp", HOLD)
        for _ in range(JOBS):
            common.run("tsp", JOB)
        GATE.write_text("go\n")

    def sem() -> None:
        def one(*command: str | Path) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                ["sem", "--id", "bench", "-j1", "--fg", *command], stdin=subprocess.DEVNULL
            )

        waiting = [one(HOLD)]
        time.sleep(0.5)
        waiting += [one(JOB) for _ in range(SEM_JOBS)]
        time.sleep(SEM_JOBS * 0.2)
        GATE.write_text("go\n")
        for process in waiting:
            process.wait()

    def scope() -> float:
        script = f"for i in {{1..{SCOPES}}}; do a=$EPOCHREALTIME; $*; echo $a $EPOCHREALTIME; done"
        out = common.run("bash", "-c", script, "bash", "systemd-run", "--quiet", "--scope", "true")
        pairs = [line.split() for line in out.splitlines()]
        return statistics.median(1000 * (float(b) - float(a)) for a, b in pairs)

    def loop() -> None:
        common.run("bash", "-c", f"for i in {{1..{JOBS}}}; do {JOB}; done")

    with common.Daemon(common.mind("bench", str(JOB)), common.DISK / "state"):
        results = common.rounds(
            ROUNDS,
            {
                "hostguard": lambda: timed(hostguard, JOBS),
                "systemd-run --scope true": scope,
                "task-spooler": lambda: timed(spooler, JOBS),
                "sem -j1": lambda: timed(sem, SEM_JOBS),
                "a shell loop (floor)": lambda: timed(loop, JOBS),
            },
        )
    names = list(results)
    common.show(
        "hand-off, ms", results, *names[1:], aim="hostguard at most 1.0x systemd-run, below 1.0x the peers"
    )


if __name__ == "__main__":
    main()
