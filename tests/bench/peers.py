"""The same 200 jobs of 50 ms for 10 keys through hostguard and through what else Debian has for a queue.

One per key at a time, two in all: what a peer cannot say itself is put before its job, as its manual or common use
has it. All are given their jobs one after another, by their own command, on an empty card that counts what is
written to it and is as fast as memory; hostguard once more through its API, as a program would. Of each: how long it
all took; how long a job waited; from the end of a job to the start of the next, while any waits; whether the jobs of
a key ran in their order; CPU of the whole guest, of systemd too; bytes on the card.

Then once more: after 60 jobs what holds the queue is killed, with SIGKILL. Where nothing does, as each waiting job is
a process of its own, one of those is. Lost are the jobs that have not run to their end 15 s after the last one that
has.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench import common
from tests.rig.card import Card

JOBS, KEYS, AT_ONCE = 200, 10, 2
JOB_S = "0.05"
ROUNDS = 3
KILL_AFTER = 60  # jobs
QUIET_S = 15.0  # without a line of a job: all is over
LONGEST_S = 600.0
FOLDER = Path("/tmp/peers")
LOG, NEVER, JOB = FOLDER / "log", FOLDER / "never", FOLDER / "job"
# A job's arguments are its key and number; as a mind's command it has them from its environment and the message.
TEXT = rf"""#!/bin/bash
key=$1 number=$2
if [ -n "$HOSTGUARD_MIND" ]; then
    read -r message
    [[ $message =~ \"content\":\ ?\"?([0-9]+) ]]
    key=$HOSTGUARD_MIND number=${{BASH_REMATCH[1]}}
fi
echo "s $key $number $EPOCHREALTIME" >>{LOG}
read -rt {JOB_S} _ <>{NEVER}
echo "e $key $number $EPOCHREALTIME" >>{LOG}
exit 0
"""


class Peer(ABC):
    """Something that runs jobs. Its files are in `folder`, which is on the card."""

    kills = "one waiting process"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:  # noqa: B027  most have nothing to begin
        """Start what holds the queue, and wait until it is up."""

    @abstractmethod
    def submit(self, key: int, number: int) -> None:
        """Give it a job."""

    @abstractmethod
    def victim(self) -> int:
        """The process that is killed."""

    def end(self) -> None:
        """Take all away."""
        for child in self.children:
            child.kill()
            child.wait()

    def lock(self, name: object) -> str:
        path = self.folder / f"{name}.lock"
        path.touch()
        return str(path)

    def spawn(self, *command: str | Path) -> None:
        """Start a process that waits for its turn by itself."""
        null = subprocess.DEVNULL
        self.children.append(subprocess.Popen(command, stdin=null, stdout=null))


class Hostguard(Peer):
    """By `hostguard send`."""

    kills = "hostguardd"

    def begin(self) -> None:
        minds = "".join(common.mind(f"k{key}", str(JOB)) for key in range(KEYS))
        limits = f"[limits]\nglobal_concurrent_turns = {AT_ONCE}\n"
        self.daemon = common.Daemon(limits + minds, self.folder / "state").__enter__()
        command = Path("/usr/bin/hostguard")
        command.write_text("#!/usr/bin/python3\nfrom hostguard.cli import main\nmain()\n")
        command.chmod(0o755)

    def submit(self, key: int, number: int) -> None:
        common.run("hostguard", "send", f"@k{key}", str(number))

    def victim(self) -> int:
        return self.daemon.pid

    def end(self) -> None:
        self.daemon.__exit__()


class HostguardApi(Hostguard):
    """By its API, from one program."""

    def begin(self) -> None:
        super().begin()
        self.caller = common.Caller()

    def submit(self, key: int, number: int) -> None:
        self.caller.ask("POST", "/v1/deliveries", {"to": f"@k{key}", "content": str(number)})


class Spooler(Peer):
    """task-spooler with two slots; a key's jobs each depend on the one before (-D)."""

    kills = "its server"

    def begin(self) -> None:
        self.last: dict[int, str] = {}
        self.environment = os.environ | {"TS_SLOTS": str(AT_ONCE), "TMPDIR": str(self.folder),
                                         "TS_SOCKET": str(self.folder / "socket")}  # fmt: skip
        subprocess.run(["tsp"], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def submit(self, key: int, number: int) -> None:
        after = ("-D", self.last[key]) if key in self.last else ()
        done = subprocess.run(
            ["tsp", *after, JOB, f"k{key}", str(number)],
            env=self.environment, check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.last[key] = done.stdout.strip()

    def victim(self) -> int:
        # Its server is the first one, begun by the call in `begin`: the clients of jobs came later.
        ours = [process for process in psutil.process_iter(["name"]) if process.info["name"] == "tsp"]
        return min(ours, key=lambda process: process.create_time()).pid

    def end(self) -> None:
        subprocess.run(["tsp", "-K"], env=self.environment, check=False, capture_output=True)
        for process in psutil.process_iter(["name"]):
            if process.info["name"] == "tsp":
                process.kill()


class Sem(Peer):
    """A shell's loop for each key, and in it GNU sem for the host: 200 that wait at once would be 200 times Perl."""

    kills = "the loop of one key"

    def begin(self) -> None:
        loop = (
            f"while read -r key number; do sem --id all -j{AT_ONCE} --fg {JOB} $key $number </dev/null; done"
        )
        self.loops = [
            subprocess.Popen(
                ["bash", "-c", loop], stdin=subprocess.PIPE, env=os.environ | {"HOME": str(self.folder)}
            )
            for _ in range(KEYS)
        ]

    def submit(self, key: int, number: int) -> None:
        pipe = self.loops[key].stdin
        assert pipe is not None
        pipe.write(f"k{key} {number}\n".encode())
        pipe.flush()

    def victim(self) -> int:
        return self.loops[0].pid

    def end(self) -> None:
        for loop in self.loops:
            loop.kill()
            loop.communicate()


class Nq(Peer):
    """nq with a queue for each key; flock on one of two files for the host."""

    def submit(self, key: int, number: int) -> None:
        queue = {"NQDIR": str(self.folder / f"k{key}")}
        slot = self.lock(f"slot{key % AT_ONCE}")
        command = ["nq", "-q", "flock", slot, JOB, f"k{key}", str(number)]
        subprocess.run(command, env=os.environ | queue, check=True, stdout=subprocess.DEVNULL)

    def victim(self) -> int:
        # Of each job's two processes the child waits for its turn, and would run it.
        ours = [process for process in psutil.process_iter(["name", "ppid"]) if process.info["name"] == "nq"]
        parents = {process.pid for process in ours}
        return max(process.pid for process in ours if process.info["ppid"] in parents)

    def end(self) -> None:
        for process in psutil.process_iter(["name"]):
            if process.info["name"] == "nq":
                process.kill()


class Scopes(Peer):
    """systemd-run --scope, behind flock on the key's file and on one of two files for the host."""

    def submit(self, key: int, number: int) -> None:
        slot = ("flock", self.lock(f"slot{key % AT_ONCE}"), "systemd-run", "--quiet", "--scope")
        self.spawn("flock", self.lock(f"k{key}"), *slot, JOB, f"k{key}", str(number))

    def victim(self) -> int:
        return self.children[-1].pid


class Loop(Peer):
    """xargs -P 2: no keys, and nobody else can add a job."""

    kills = "xargs"

    def begin(self) -> None:
        self.xargs = subprocess.Popen(["xargs", "-P", str(AT_ONCE), "-n2", JOB], stdin=subprocess.PIPE)

    def submit(self, key: int, number: int) -> None:
        assert self.xargs.stdin is not None
        self.xargs.stdin.write(f"k{key} {number}\n".encode())
        self.xargs.stdin.flush()

    def victim(self) -> int:
        return self.xargs.pid

    def end(self) -> None:
        assert self.xargs.stdin is not None
        self.xargs.stdin.close()
        self.xargs.wait()


PEERS: dict[str, Callable[[Path], Peer]] = {
    "hostguard send": Hostguard,
    "hostguard, API": HostguardApi,
    "task-spooler": Spooler,
    "GNU sem": Sem,
    "nq + flock": Nq,
    "systemd-run + flock": Scopes,
    "xargs -P 2 (floor)": Loop,
}


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
