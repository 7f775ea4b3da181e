"""From the end of a turn to the first instruction of the next, one mind with 200 queued rows.

The job notes the time at its start and at its end, so that only what lies between two jobs counts. hostguard
stores each end durably before it is done with it, and gives each turn a scope; task-spooler and sem do neither.
systemd-run brings a scope up and does nothing else: its whole time is taken. The floor is a shell's loop.

Twice: with jobs that take no time, so that starts follow each other at once, and with jobs of 50 ms. Moving a
process to another cgroup makes the kernel wait for an RCU grace period, some 10 ms, unless the last move was
less than some 20 ms ago: that is why all that makes scopes is slower the second time.
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
LONG_JOBS = 25
LONG_S = "0.05"
SEM_JOBS = 10  # each waits as a process of 15 MB
SCOPES = 25
ROUNDS = 5
LOG = Path("/tmp/log")
JOB = Path("/tmp/job")
LONG_JOB = Path("/tmp/long-job")
HOLD = Path("/tmp/hold")  # holds the line up until all have queued
GATE = Path("/tmp/gate")
NEVER = Path("/tmp/never")  # a shell that reads from it sleeps without a process


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def timed(queue: Callable[[Path, int], object], job: Path, jobs: int) -> float:
    """Median ms between two jobs."""
    LOG.write_text("")
    queue(job, jobs)
    end = time.monotonic() + 60
    while LOG.read_text().count("e ") < jobs:
        if time.monotonic() > end:
            raise SystemExit(f"the jobs do not end: {LOG.read_text()}")
        time.sleep(0.05)
    times = [line.split() for line in LOG.read_text().splitlines()]
    assert [kind for kind, _ in times] == ["s", "e"] * jobs, "two jobs ran at once"
    stamps = [float(at) * 1000 for _, at in times]
    return statistics.median(b - a for a, b in zip(stamps[1:-1:2], stamps[2::2], strict=True))


def hostguard(job: Path, jobs: int) -> None:
    caller = common.RunClient()
    caller.ask("POST", "/v1/pause", {"mind": job.name})
    for _ in range(jobs):
        caller.ask("POST", "/v1/deliveries", {"to": f"@{job.name}", "content": "go"})
    caller.ask("POST", "/v1/resume", {"mind": job.name})


def spooler(job: Path, jobs: int) -> None:
    common.run("tsp", HOLD)
    for _ in range(jobs):
        common.run("tsp", job)
    GATE.write_text("go\n")


def sem(job: Path, jobs: int) -> None:
    def one(command: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sem", "--id", "bench", "-j1", "--fg", command], stdin=subprocess.DEVNULL)

    waiting = [one(HOLD)]
    time.sleep(0.5)
    waiting += [one(job) for _ in range(jobs)]
    time.sleep(jobs * 0.2)
    GATE.write_text("go\n")
    for process in waiting:
        process.wait()


def loop(job: Path, jobs: int) -> None:
    common.run("bash", "-c", f"for i in {{1..{jobs}}}; do {job}; done")


def scope(pause: str) -> float:
    """Median ms of a whole `systemd-run --scope true`."""
    code = f"for i in {{1..{SCOPES}}}; do {pause}; a=$EPOCHREALTIME; $*; echo $a $EPOCHREALTIME; done"
    out = common.run("bash", "-c", code, "bash", "systemd-run", "--quiet", "--scope", "true")
    pairs = [line.split() for line in out.splitlines()]
    return statistics.median(1000 * (float(b) - float(a)) for a, b in pairs)


def main() -> None:
    sleep = f"read -rt {LONG_S} _ <>{NEVER}"
    script(JOB, f'echo "s $EPOCHREALTIME" >>{LOG}\necho "e $EPOCHREALTIME" >>{LOG}')
    script(LONG_JOB, f'echo "s $EPOCHREALTIME" >>{LOG}\n{sleep}\necho "e $EPOCHREALTIME" >>{LOG}')
    script(HOLD, f"read -r _ <{GATE}")
    os.mkfifo(GATE)
    os.mkfifo(NEVER)
    minds = common.mind(JOB.name, str(JOB)) + common.mind(LONG_JOB.name, str(LONG_JOB))
    with common.Daemon(minds, common.DISK / "state"):
        short = common.rounds(
            ROUNDS,
            {
                "hostguard": lambda: timed(hostguard, JOB, JOBS),
                "systemd-run": lambda: scope(":"),
                "task-spooler": lambda: timed(spooler, JOB, JOBS),
                "sem -j1": lambda: timed(sem, JOB, SEM_JOBS),
                "a shell's loop (floor)": lambda: timed(loop, JOB, JOBS),
            },
        )
        long = common.rounds(
            ROUNDS,
            {
                "hostguard": lambda: timed(hostguard, LONG_JOB, LONG_JOBS),
                "systemd-run": lambda: scope(sleep),
                "task-spooler": lambda: timed(spooler, LONG_JOB, LONG_JOBS),
                "a shell's loop (floor)": lambda: timed(loop, LONG_JOB, LONG_JOBS),
            },
        )
    aim = "hostguard at most 1.0x systemd-run, and below 1.0x the two others"
    common.show("hand-off, ms, jobs without length", short, *list(short)[1:-1], aim=aim)
    common.show("hand-off, ms, jobs of 50 ms", long, *list(long)[1:-1])


if __name__ == "__main__":
    main()
