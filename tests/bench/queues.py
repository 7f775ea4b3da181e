"""Hostguard, and what else Debian has for a queue, as runners of short jobs: one per key at a time, two in all.

What a peer cannot say itself is put before its job, as its manual or common use has it.
"""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.bench import common

KEYS, AT_ONCE = 10, 2
JOB_S = "0.05"
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
        self.caller = common.RunClient()

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
        command = ["nq", "-q", "flock", slot, str(JOB), f"k{key}", str(number)]
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
