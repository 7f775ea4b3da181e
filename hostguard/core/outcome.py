"""How a turn ended, what is stored of it, and when it is tried again. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hostguard.core.model import Kind, Waited
from hostguard.core.text import whole

ACCOUNT = ("cpu_usec", "memory_peak", "read_bytes", "write_bytes")  # of a record

EXITED = "exited"
FAILURES = ("killed", "timeout", "not_started", "refused", "died")  # outcomes, whatever the exit status
WENT_WELL = ("done", "idle")

ATTEMPTS_MAX = 10  # design.md: then the row is a dead letter
BACKOFF_MS = (5_000, 300_000)  # design.md: 5 s * 2^n, up to 5 min


@dataclass(frozen=True, slots=True)
class Usage:
    """What a live turn has used: CPU in ms, storage in bytes; None = not known.

    `counted` is "scope" if the kernel counts what reached the disk in the scope's cgroup (cgroup-v2.rst,
    io.stat), and "processes" if the bytes are the sum over the live processes (proc_pid_io(5)), with what an
    adopted process read and wrote before the turn.
    """

    cpu_ms: int | None
    read_bytes: int | None
    write_bytes: int | None
    counted: str | None


@dataclass(frozen=True, slots=True)
class Record:
    """What a turn's guard and stub wrote. `released`: the command may have run. `exit`, `signal`: its end.

    `started` and `ended` are in ticks, see core/clock.py.
    """

    released: bool = False
    not_started: str | None = None
    exit: int | None = None
    signal: int | None = None
    account: Mapping[str, int] = field(default_factory=dict)
    anchor: int | None = None  # pid of the process that holds the scope of a resident mind's turn
    output: str = ""  # of a script
    session: str | None = None  # None: an older guard made the record
    started: int | None = None
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ended. `failed`: it counts as an attempt and is tried again, unless that is `hopeless`."""

    outcome: str  # exited, stopped, timeout, killed, not_started, not_authorised, dismissed, host_down
    reason: str
    exit: int | None = None  # the command's status; 128 + n if signal n ended it, as shells say it
    failed: bool = False
    hopeless: bool = False
    back: bool = False  # never ran: back to its place in the queue, no attempt counted
    pause_ms: int = 0  # before it is offered again
    overtaken: bool = False  # until it is tried again its session goes on: the message had reached its mind

    @property
    def cut_short(self) -> bool:
        """True if a host that goes down ends turns like this, too. An exit status is the turn's own."""
        if self.outcome == "exited":
            return self.exit is None
        return self.outcome in ("stopped", "killed", "not_started", "gone", "died", "refused")


NEVER_BEGAN = Ending("stopped", "stopped on request before it began")
NOT_CONFIRMED = Ending("dismissed", "the turn ended before the mind confirmed the message", back=True)
# Which of the turn's messages the mind had worked off is not known: all of them are tried again.
DIED = Ending("died", "the mind's process died", failed=True, overtaken=True)
# Volute's templates begin a new conversation then, and say so only in their log.
LOST = "the mind may have lost the conversation of this session"
CALLER_LEFT = Ending("dismissed", "its `hostguard run` ended before it began", back=True)
HOST_DOWN = Ending("host_down", "the host was shut down during the turn", back=True)
HOST_LOST = Ending("killed", "the host was restarted during the turn", failed=True)
RECORD_LOST = Ending("exited", "its exit record was removed: its result is unknown")


def ending(
    record: Record | None, stopped: bool, ran_s: float, max_turn: float | None, kind: Kind = Kind.MESSAGE
) -> Ending:
    """Classify an end. `stopped`: somebody asked for it; `ran_s`: seconds since the start.

    A command's own exit, whatever its status, is an end. Death by a signal that nobody asked for is a
    crash: it counts as an attempt, so that a payload that kills its mind ends as a dead letter. A file that
    could not be written is tried again, too.
    """
    if record is None:
        return HOST_LOST
    if record.not_started is not None:
        return Ending("not_started", record.not_started, failed=True)
    if not record.released:
        return Ending("dismissed", "the guard stopped before the command could run", back=True)
    number = record.signal
    status = 128 + number if number is not None else record.exit
    if stopped:
        return Ending("stopped", "stopped on request", status)
    overdue = max_turn is not None and ran_s >= max_turn
    if overdue and (status is None or number in (signal.SIGTERM, signal.SIGKILL)):
        return Ending("timeout", f"ran longer than max_turn ({max_turn:g} s)", status)
    if status is None:
        return Ending("killed", "all its processes were killed", failed=True, overtaken=True)
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return Ending("stopped", f"ended by {_name(number)}", status)
    if number is not None:
        return Ending("killed", f"died of {_name(number)}", status, failed=True, overtaken=True)
    return Ending("exited", f"exit status {status}", status, failed=kind is Kind.FILE and status != 0)


def resident_ending(
    record: Record | None, stopped: bool, ran_s: float, max_turn: float | None, posted: bool, ours: bool
) -> Ending:
    """How a turn of a resident mind ended if all that is known is that its scope is empty.

    `posted`: the mind confirmed the message. Otherwise it is offered again, with the same key; that counts
    as an attempt if the mind had all of max_turn for it. `ours`: this guard began the turn; an earlier one
    may have died before it posted the message.
    """
    if max_turn is not None and ran_s >= max_turn and record is not None and (posted or ours):
        lost = f"; {LOST}" if posted else ""
        return Ending("timeout", f"ran longer than max_turn ({max_turn:g} s){lost}", failed=not posted)
    if stopped:
        return Ending("stopped", f"stopped on request; {LOST}" if posted else "stopped on request")
    if not posted:
        return NOT_CONFIRMED
    return Ending("gone", "its processes are gone") if record else HOST_LOST


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def keeps_place(result: Mapping[str, Any]) -> bool:
    """True if a row that failed like this is still the first of its session: it is no crash of its mind."""
    return result.get("outcome") not in ("killed", "died") or result.get("reason") == HOST_LOST.reason


def result(
    end: Ending, record: Record | None, run_ms: int | None, waited: Waited, used: Usage | None = None
) -> dict[str, Any]:
    """What is stored of an ended turn. CPU in ms, memory and I/O in bytes; None = the kernel gave none.

    `run_ms` is None if nobody saw when it ended.
    `used` is for a turn without an account in its record. A sum over processes is left out: those of a
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
        **waited_for(waited),
        "cpu_ms": cpu // 1000 if cpu is not None else used and used.cpu_ms,
        "memory_peak": account.get("memory_peak"),
        "read_bytes": account.get("read_bytes", scope and scope.read_bytes),
        "write_bytes": account.get("write_bytes", scope and scope.write_bytes),
    }


def failed(outcome: str | None, exit_: int | None) -> bool | None:
    """Whether a turn that ended so failed; None: that says nothing of its mind: it was stopped, say."""
    if outcome in FAILURES:
        return True
    if outcome == EXITED:
        return None if exit_ is None else exit_ != 0
    return False if outcome in WENT_WELL else None


def waited_for(waited: Waited) -> dict[str, Any]:
    """How long a row waited before its turn, and why."""
    return {"held_ms": waited.ms, "held_for": waited.reason}


def turn_id(row: int, attempts: int) -> str:
    """The id of the row's next turn: each attempt has a unit name of its own."""
    return f"{row}.{attempts}" if attempts else str(row)


def row_of(turn: str) -> int | None:
    """The row of a turn id, None for a turn without one (`hostguard run` without the daemon)."""
    try:
        return whole(turn.partition(".")[0])
    except ValueError:
        return None


def backoff(attempts: int) -> int:
    """ms to wait after the attempts-th failure."""
    first, longest = BACKOFF_MS
    return min(first << (attempts - 1), longest)
