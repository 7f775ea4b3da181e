"""The same 200 jobs of 50 ms for 10 keys through hostguard and through what else Debian has for a queue.

One per key at a time, two in all. All are given their jobs one after another, by their own command, on an empty card
that counts what is written to it and is as fast as memory; hostguard once more through its API, as a program would.
Of each: how long it all took; how long a job waited; from the end of a job to the start of the next, while any waits;
whether the jobs of a key ran in their order; CPU of the whole guest, of systemd too; bytes on the card.

Then once more: after 60 jobs what holds the queue is killed, with SIGKILL. Where nothing does, as each waiting job is
a process of its own, one of those is. Lost are the jobs that have not run to their end 15 s after the last one that
has.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import common
from tests.bench.queues import AT_ONCE, FOLDER, JOB, KEYS, LOG, NEVER, PEERS, TEXT, Loop, Peer
from tests.rig.card import Card

JOBS = 200
ROUNDS = 3
KILL_AFTER = 60  # jobs
QUIET_S = 15.0  # without a line of a job: all is over
LONGEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Run:
    """How the jobs ran. Times are seconds since the epoch, by number of the job."""

    submitted: dict[int, float]
    lines: list[tuple[str, str, int, float]]  # "s" or "e", key, number, when; in order

    def when(self, kind: str) -> dict[int, float]:
        """The first start, or end, of each job."""
        found: dict[int, float] = {}
        for what, _, number, at in self.lines:
            if what == kind:
                found.setdefault(number, at)
        return found

    @property
    def makespan(self) -> float:
        return max(self.when("e").values()) - min(self.submitted.values())

    def waits(self) -> list[float]:
        started = self.when("s")
        return [started[number] - self.submitted[number] for number in started]

    def handoffs(self) -> list[float]:
        """From each end to the start that took its slot, while a job that was given to it waits."""
        free, found, begun = list[float](), list[float](), 0
        for what, _, _, at in self.lines:
            if what == "e":
                free.append(at)
            else:
                begun += 1
                if begun > AT_ONCE and free:
                    ended = free.pop(0)
                    waiting = sum(given < ended for given in self.submitted.values()) - begun
                    if waiting >= KEYS:  # so that surely some key has a job that could start
                        found.append(at - ended)
        return found

    def in_order(self) -> bool:
        """Each key's jobs began in the order in which they were given."""
        begun = [(key, number) for what, key, number, _ in self.lines if what == "s"]
        keys = {key for key, _ in begun}
        return all(
            [n for k, n in begun if k == key] == sorted(n for k, n in begun if k == key) for key in keys
        )

    def check(self, keyed: bool) -> None:
        """Two at most ran at once, and one of a key."""
        live: Counter[str] = Counter()
        for what, key, _, _ in self.lines:
            live[key] += 1 if what == "s" else -1
            assert live.total() <= AT_ONCE, "too many at once"
            assert not keyed or live[key] <= 1, f"two of {key} at once"


def read_log() -> list[tuple[str, str, int, float]]:
    lines = [line.split() for line in LOG.read_text().splitlines()]
    return [(what, key, int(number), float(at)) for what, key, number, at in lines]


def ended() -> int:
    return LOG.read_text().count("e ")


@contextmanager
def peer(name: str, card: Card) -> Iterator[Peer]:
    folder = card.mount / "files"
    folder.mkdir()
    LOG.write_text("")
    it = PEERS[name](folder)
    it.begin()
    try:
        yield it
    finally:
        it.end()
        shutil.rmtree(folder)


def submit(it: Peer) -> dict[int, float]:
    """Give it all jobs, the keys in turn; when each was given."""
    submitted = {}
    for number in range(JOBS):
        submitted[number] = time.time()
        it.submit(number % KEYS, number)
    return submitted


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not true():
        assert time.monotonic() < end, f"{ended()} jobs ended"
        time.sleep(0.05)


def cpu_s() -> float:
    """CPU seconds of the whole guest."""
    (line,) = (
        line for line in Path("/sys/fs/cgroup/cpu.stat").read_text().splitlines() if "usage_usec" in line
    )
    return int(line.split()[1]) / 1e6


def measured(name: str, card: Card) -> dict[str, float]:
    """All figures of one run."""
    with peer(name, card) as it:
        common.sync(card.mount)
        bytes_before, cpu_before = common.card_bytes(card), cpu_s()
        submitted = submit(it)
        wait_until(lambda: ended() == JOBS)
        cpu = cpu_s() - cpu_before
        common.sync(card.mount)
        written = common.card_bytes(card) - bytes_before
    run = Run(submitted, read_log())
    run.check(keyed=not isinstance(it, Loop))
    waits, handoffs = sorted(run.waits()), run.handoffs()
    figures = {
        "makespan, s": run.makespan,
        "wait p50, s": statistics.median(waits),
        "wait p99, s": waits[JOBS * 99 // 100],
        "in order": float(run.in_order()),
        "CPU, s": cpu,
        "written, kB": written / 1000,
    }
    if handoffs:  # else jobs came more slowly than they ran
        figures["hand-off, ms"] = 1000 * statistics.median(handoffs)
    return figures


def killed(name: str, card: Card) -> tuple[str, int, int]:
    """What was killed, the jobs that did not run to their end, and those that began twice."""
    with peer(name, card) as it:
        submit(it)
        wait_until(lambda: ended() >= KILL_AFTER)
        os.kill(it.victim(), signal.SIGKILL)
        before, since = ended(), time.monotonic()
        while ended() < JOBS and time.monotonic() - since < QUIET_S:
            time.sleep(0.2)
            if ended() != before:
                before, since = ended(), time.monotonic()
    lines = read_log()
    begun = Counter(number for what, _, number, _ in lines if what == "s")
    whole = {number for what, _, number, _ in lines if what == "e"}
    return it.kills, JOBS - len(whole), sum(count > 1 for count in begun.values())


def main() -> None:
    FOLDER.mkdir()
    os.mkfifo(NEVER)
    JOB.write_text(TEXT)
    JOB.chmod(0o755)
    with Card(write_delay_ms=0, rate=None) as card:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in PEERS}
        for number in range(ROUNDS):
            for name in PEERS if number % 2 == 0 else reversed(PEERS):
                runs[name].append(measured(name, card))
        for figure in runs["task-spooler"][0]:
            shown = {name: [run[figure] for run in found if figure in run] for name, found in runs.items()}
            if figure != "in order":
                common.show(figure, {name: values for name, values in shown.items() if values})
        for name, found in runs.items():
            what, lost, twice = killed(name, card)
            order = f"{sum(run['in order'] for run in found):.0f} of {ROUNDS} runs"
            print(
                f"{name:20} in order: {order}; killed {what}: {lost} jobs lost, {twice} run twice", flush=True
            )


if __name__ == "__main__":
    main()
