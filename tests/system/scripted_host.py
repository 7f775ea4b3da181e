"""A guard with minds whose turns do what their message says and write down what they saw of themselves."""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from guard import DISK, Guard, wait_for
from guarded import LONG_S, GuardedHost

# Only bash's own builtins up to the message, so that a turn costs little. Each line of the log is one write.
# The fifth column tells how many of the minds' scopes have a process at that moment.
TURN = r"""#!/bin/bash
folder=@FOLDER@
log() {
    local scopes=0 cgroup events file
    while read -r cgroup; do case $cgroup in 0::*) break ;; esac; done </proc/self/cgroup
    for file in /sys/fs/cgroup/hostguard.slice/hostguard-*.slice/*.scope/cgroup.events; do
        events=
        { read -rd '' events <"$file"; } 2>/dev/null
        case $events in *"populated 1"*) scopes=$((scopes + 1)) ;; esac
    done
    printf '%s %s %s %s %s %s %s %s\n' "$1" "$HOSTGUARD_DELIVERY" "$HOSTGUARD_TURN" "$HOSTGUARD_MIND" \
        "$scopes" "$EPOCHREALTIME" "${cgroup#0::}" "$HOSTGUARD_SESSION" >>"$folder/log"
}
wait_go() {  # until the test says go
    mkfifo "$folder/go-$HOSTGUARD_TURN"
    log waits
    read -r _ <"$folder/go-$HOSTGUARD_TURN"
}
read -r message
message=${message#*'"content":"'}
log start
trap 'log end' EXIT
eval "${message%%'"'*}"
"""


@dataclass(frozen=True)
class Line:
    """What a turn wrote: `what` is start, waits or end."""

    what: str
    row: int
    turn: str
    mind: str
    scopes: int
    at: float
    cgroup: str
    session: str


class ScriptedHost(GuardedHost):
    """The guard, and the log of the minds' turns, which is on a real disk.

    The content of a message is a line of shell without double quotes and backslashes.
    """

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard)
        self.folder = Path(tempfile.mkdtemp(prefix="turns-", dir=DISK))
        self.turn = self.folder / "turn"
        self.turn.write_text(TURN.replace("@FOLDER@", str(self.folder)))
        self.turn.chmod(0o755)
        self._log = self.folder / "log"
        self._log.touch()

    def __enter__(self) -> ScriptedHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # systemd may overlook the end of a short turn's scope; the guard sees to it, if it is let.
        if self.guard.pid and not self.turns():
            wait_for(lambda: not self.guard.scopes())
        self.api.close()

    def config(self, minds: str = "abc", rest: str = "", **limits: int) -> str:
        """A configuration with these minds, one letter each; `rest` follows it."""
        lines = [f"{name} = {value}" for name, value in limits.items()]
        tables = [f'[minds.{mind}]\ncommand = ["{self.turn}"]\nuser = "root"' for mind in minds]
        return "\n".join(["[limits]", *lines, *tables, rest, ""])

    def start(self, minds: str = "abc", rest: str = "", state: Path | None = None, **limits: int) -> None:
        """Start the daemon with `config`."""
        self.guard.start(self.config(minds, rest, **limits), state)

    # -- the API

    def limit(self, value: int | str, name: str = "global_concurrent_turns", mind: str | None = None) -> None:
        answer = self.api.patch("/v1/limits", json={"name": name, "mind": mind, "value": value})
        assert answer.is_success, answer.text

    def wait_turns(self, count: int) -> None:
        """Wait until this many turns are live."""
        wait_for(lambda: len(self.turns()) == count, LONG_S)

    def events(self, *types: str) -> list[tuple[str, int | None]]:
        """(type, row) of the events so far, of these types or all, in order."""
        return [(e["type"], e.get("delivery")) for e in self.all_events() if not types or e["type"] in types]

    # -- the turns

    def log(self, *whats: str) -> list[Line]:
        """What the turns wrote, in order."""
        found = []
        for text in self._log.read_text().splitlines():
            what, row, turn, mind, scopes, at, cgroup, session = text.split()
            line = Line(what, int(row), turn, mind, int(scopes), float(at), cgroup, session)
            if not whats or what in whats:
                found.append(line)
        return found

    def order(self) -> list[int]:
        """The rows, in the order in which their commands started."""
        return [line.row for line in self.log("start")]

    def wait_started(self, *rows: int) -> None:
        """Wait until the commands of these rows have started and, if they do, wait for `go`."""
        wait_for(lambda: set(rows) <= {line.row for line in self.log("waits")}, LONG_S)

    def go(self, *turns: int | str) -> None:
        """Let these turns, which are in `wait_go`, go on."""
        for turn in turns:
            wait_for(partial(say_go, self.folder / f"go-{turn}"), LONG_S)

    def prove(
        self, cap: int = 1 << 30, mind_cap: int = 1, attempts: int = 1, killed: tuple[str, ...] = ()
    ) -> None:
        """From the log: each turn ran in its own scope, never more at once than the caps, none too often.

        `killed` are turns that could not write down their end.
        """
        lines = self.log()
        starts = [line for line in lines if line.what == "start"]
        for line in lines:
            unit = f"hostguard-turn-{line.mind}-{line.turn}.scope"
            assert line.cgroup == f"/hostguard.slice/hostguard-{line.mind}.slice/{unit}", line
            assert line.scopes <= cap, f"{line.scopes} scopes lived at once: {line}"
        ended = [line for line in lines if line.turn not in killed]
        assert most(ended) <= cap, lines
        for mind in {line.mind for line in ended}:
            assert most([line for line in ended if line.mind == mind]) <= mind_cap, lines
        for row in {line.row for line in starts}:
            assert len([line for line in starts if line.row == row]) <= attempts, lines


def say_go(path: Path) -> bool:
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENOENT):
            raise
        return False  # nobody reads it yet
    os.write(pipe, b"go\n")
    os.close(pipe)
    return True


def most(lines: list[Line]) -> int:
    """The most commands that ran at one time."""
    live: set[str] = set()
    highest = 0
    for line in lines:
        if line.what == "end":
            live.discard(line.turn)
        else:
            live.add(line.turn)
        highest = max(highest, len(live))
    return highest
