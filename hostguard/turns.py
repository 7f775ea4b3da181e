"""One turn of an exec mind as a process: its files, its start, and how its end is read."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostguard import paths, payload
from hostguard.model import Delivery, Kind, Mind, Waited
from hostguard.usage import Usage

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

ACCOUNT = ("cpu_usec", "memory_peak", "read_bytes", "write_bytes")  # of a record

RECORD_MAX = 128 << 10  # bytes of a record that are read
OUTPUT = "output"  # the line of a record after which a script's output stands
OUTPUT_MAX = 64 << 10  # bytes of a script's output that are kept: a message that a mind can read
SCRIPT_SESSION = "$script:"  # followed by the schedule's name, ":" and the session for what it prints
FILE_SESSION = "$file:"  # followed by the path: what goes into one file goes in order

ATTEMPTS_MAX = 10  # design.md: then the row is a dead letter
BACKOFF_MS = (5_000, 300_000)  # design.md: 5 s * 2^n, up to 5 min


def turn_id(row: int, attempts: int) -> str:
    """The id of the row's next turn: each attempt has a unit name of its own."""
    return f"{row}.{attempts}" if attempts else str(row)


def row_of(turn: str) -> int | None:
    """The row of a turn id, None for a turn without one (`hostguard run` without the daemon)."""
    head = turn.partition(".")[0]
    return int(head) if head.isdecimal() else None


def backoff(attempts: int) -> int:
    """ms to wait after the attempts-th failure."""
    first, longest = BACKOFF_MS
    return min(first << (attempts - 1), longest)


# -- start


@dataclass(frozen=True, slots=True)
class Work:
    """What a stub runs: argv, standard input, environment; `capture`: bytes of its output to keep, 0 = none.

    Output that is kept is in the record; other output goes to the journal.
    """

    argv: tuple[str, ...]
    stdin: bytes
    environment: Mapping[str, str]
    capture: int = 0


def work(mind: Mind, row: Delivery, raw: bytes, waited: Waited) -> Work:
    """What the row runs as the mind's user: its command, a schedule's script, or the append to a file."""
    told = environment(mind, row, turn_id(row.id, row.attempts), waited.ms)
    if row.kind is Kind.SCRIPT:
        return Work(("/bin/sh", "-c", json.loads(raw)["script"]), b"", told, OUTPUT_MAX)
    if row.kind is Kind.FILE:
        path = row.session.removeprefix(FILE_SESSION)
        return Work(("/bin/sh", "-c", 'cat >>"$0"', path), payload.file_line(row, raw), told)
    return Work(mind.command, payload.for_exec(row, raw, waited.ms, waited.behind), told)


def environment(mind: Mind, delivery: Delivery, turn: str, held_ms: int) -> dict[str, str]:
    """The environment of an exec mind's command, documented in packaging/hostguard.toml."""
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": mind.home,
        "USER": mind.user,
        "LOGNAME": mind.user,
        "SHELL": mind.shell,
        **mind.environment,
        "HOSTGUARD_MIND": mind.name,
        "HOSTGUARD_TURN": turn,
        "HOSTGUARD_DELIVERY": str(delivery.id),
        "HOSTGUARD_SESSION": delivery.session,
        "HOSTGUARD_CHANNEL": delivery.channel or "",
        "HOSTGUARD_SENDER": delivery.sender or "",
        "HOSTGUARD_ATTEMPT": str(delivery.attempts + 1),
        "HOSTGUARD_HELD_MS": str(held_ms),
    }


# -- end


def record_path(turn: str) -> Path:
    """The turn's exit record, written by its stub."""
    return paths.TURNS / turn


def begin_record(turn: str) -> None:
    """Make the empty record of a turn that is about to start. Raises OSError."""
    paths.TURNS.mkdir(mode=0o700, exist_ok=True)  # somebody may have tidied up
    os.close(os.open(record_path(turn), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))


def forget(turn: str) -> None:
    """Remove the turn's record, once its end is in the database."""
    record_path(turn).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Record:
    """What a turn's stub wrote. `released`: the command may have run. At its end: `exit` or `signal`."""

    released: bool = False
    not_started: str | None = None
    exit: int | None = None
    signal: int | None = None
    account: Mapping[str, int] = field(default_factory=dict)
    anchor: int | None = None  # pid of the process that holds the scope of a resident mind's turn
    output: str = ""  # of a script


def read_record(turn: str) -> Record | None:
    """The turn's record; None if there is none (the host was restarted)."""
    try:
        with record_path(turn).open("rb") as file:
            text = file.read(RECORD_MAX).decode(errors="replace")
    except FileNotFoundError:
        return None
    return parse_record(text)


def parse_record(text: str) -> Record:
    """Read a record, which the mind's user could have written to: what makes no sense is left out."""
    released, not_started = False, None
    numbers: dict[str, int] = {}
    lines, _, output = text.partition(f"\n{OUTPUT}\n")
    for line in lines[:4096].splitlines():
        key, _, value = line.partition(" ")
        if key == "started":
            released = True
        elif key == "not_started":
            not_started = value
        elif value.isdecimal() and len(value) < 20:
            numbers[key] = int(value)
    account = {key: numbers[key] for key in ACCOUNT if key in numbers}
    return Record(
        released,
        not_started,
        numbers.get("exit"),
        numbers.get("signal"),
        account,
        numbers.get("anchor"),
        output[:OUTPUT_MAX],
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ended. `failed`: it counts as an attempt and is tried again."""

    outcome: str  # exited, stopped, timeout, killed, not_started, dismissed
    reason: str
    exit: int | None = None  # the command's status; 128 + n if signal n ended it, as shells say it
    failed: bool = False
    back: bool = False  # never ran: back to its place in the queue, no attempt counted
    pause_ms: int = 0  # before it is offered again


NEVER_BEGAN = Ending("stopped", "was asked to stop before it began")


def ending(
    record: Record | None, stopped: bool, ran_s: float, max_turn: float | None, kind: Kind = Kind.MESSAGE
) -> Ending:
    """Classify an end. `stopped`: somebody asked for it; `ran_s`: seconds since the start.

    A command's own exit, whatever its status, is an end. Death by a signal that nobody asked for is a
    crash: it counts as an attempt, so that a payload that kills its mind ends as a dead letter. A file that
    could not be written is tried again, too.
    """
    if record is None:
        return Ending("killed", "the host was restarted during the turn", failed=True)
    if record.not_started is not None:
        return Ending("not_started", record.not_started, failed=True)
    if not record.released:
        return Ending("dismissed", "the guard stopped before the command was let run", back=True)
    number = record.signal
    status = 128 + number if number is not None else record.exit
    if stopped:
        return Ending("stopped", "was asked to stop", status)
    overdue = max_turn is not None and ran_s >= max_turn
    if overdue and (status is None or number in (signal.SIGTERM, signal.SIGKILL)):
        return Ending("timeout", f"ran longer than max_turn ({max_turn:g} s)", status)
    if status is None:
        return Ending("killed", "all its processes were killed", failed=True)
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return Ending("stopped", f"ended by {_name(number)}", status)
    if number is not None:
        return Ending("killed", f"died of {_name(number)}", status, failed=True)
    return Ending("exited", f"exit status {status}", status, failed=kind is Kind.FILE and status != 0)


def resident_ending(
    record: Record | None, stopped: bool, ran_s: float, max_turn: float | None, posted: bool, ours: bool
) -> Ending:
    """How a turn of a resident mind ended of which only is known that its scope is empty.

    `posted`: the mind confirmed the message. One that it did not is offered again, with the same key; that
    counts as an attempt if the mind had all of max_turn for it. `ours`: no earlier guard began the turn, and
    did not come to post it.
    """
    if max_turn is not None and ran_s >= max_turn and record is not None and (posted or ours):
        return Ending("timeout", f"ran longer than max_turn ({max_turn:g} s)", failed=not posted)
    if stopped:
        return Ending("stopped", "was asked to stop")
    if not posted:
        return Ending("dismissed", "the turn ended before the mind confirmed the message", back=True)
    if record is None:
        return Ending("gone", "the host was restarted during the turn")
    return Ending("gone", "its processes are gone")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def result(
    end: Ending, record: Record | None, run_ms: int, waited: Waited, used: Usage | None = None
) -> dict[str, Any]:
    """What is stored of an ended turn. CPU in ms, memory and I/O in bytes; None = the kernel gave none.

    `used` tells of a turn without a record of its own. What it sums up over processes is left out: those of a
    resident mind worked before the turn, too.
    """
    account = record.account if record else {}
    cpu = account.get("cpu_usec")
    scope = used if used is not None and used.counted == "scope" else None
    return {
        "outcome": end.outcome,
        "exit": end.exit,
        "reason": end.reason,
        "run_ms": run_ms,
        "held_ms": waited.ms,
        "held_for": waited.reason,
        "cpu_ms": cpu // 1000 if cpu is not None else used and used.cpu_ms,
        "memory_peak": account.get("memory_peak"),
        "read_bytes": account.get("read_bytes", scope and scope.read_bytes),
        "write_bytes": account.get("write_bytes", scope and scope.write_bytes),
    }
