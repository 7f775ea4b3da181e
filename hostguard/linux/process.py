"""Other processes, as /proc shows them. It is in memory: nothing here waits for a disk."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hostguard.linux import cgroup as cgroups

STAT_MAX = 4096  # bytes of a /proc/PID/stat, which has 52 numbers and a name of at most 64 bytes
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """From /proc/PID/stat. The pid and `started`, in ticks since boot, identify a process for ever."""

    pid: int
    started: int
    parent: int = field(compare=False)
    cpu_s: float = field(compare=False)
    waits: bool = field(compare=False)  # for a disk, or something else that cannot be interrupted


def process(pid: int) -> Process | None:
    """The process; None if it is gone."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    cpu = (int(fields[11]) + int(fields[12])) * TICK_S
    return Process(pid, int(fields[19]), int(fields[1]), cpu, fields[0] == b"D")


def dying(proc: Path = Path("/proc")) -> bool:
    """True once systemd has handed the host over to end all processes: the end of each way down."""
    with suppress(OSError):
        return (proc / "1/comm").read_text() == "systemd-shutdow\n"  # as much of its name as the kernel keeps
    return False


def storage(pid: int, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Bytes that the process and its reaped children read from and wrote to storage; None if not known."""
    try:
        counters = dict(line.split(": ") for line in (proc / str(pid) / "io").read_text().splitlines())
        return int(counters["read_bytes"]), int(counters["write_bytes"])
    except (OSError, KeyError, ValueError):
        return None


def environment(pid: int, prefix: bytes) -> dict[bytes, bytes]:
    """The variables that begin like this, as the process got them when its program began."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (line.partition(b"=") for line in lines if line.startswith(prefix))
    return {name: value for name, _, value in pairs}


def executed(found: Process) -> bool:
    """True if it runs a program of its own. A fork shows its parent's environment until it executes one."""
    return _environment_at(found.pid) != _environment_at(found.parent)


def _environment_at(pid: int) -> bytes:
    """The address of its environment: each program has another one."""
    try:
        return _stat(pid)[47]
    except OSError:
        return b""


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third one on, the state; see proc_pid_stat(5). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # half the time that a Path takes
        return file.read(STAT_MAX).rpartition(b") ")[2].split()


def members(cgroup: Path) -> list[int]:
    """The processes in the cgroup itself; none if it is gone."""
    try:
        return cgroups.pids(cgroup)
    except OSError:
        return []


def oldest(cgroup: Path) -> int | None:
    """When the oldest process of the cgroup itself began, in ms since the boot; None if it has none."""
    began = [found.started for pid in members(cgroup) if (found := process(pid)) is not None]
    return int(min(began) * TICK_S * 1000) if began else None


def uid_of(pid: int) -> int:
    """The process's effective user; -1 if it is gone."""
    try:  # not the owner of the folder: root, if the process may not be traced
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return -1
    return int(status.partition(b"\nUid:")[2].split(maxsplit=2)[1])


def home_of(pid: int) -> Path | None:
    """The process's cgroup."""
    try:
        own = re.search(r"^0::/?(.*)$", Path(f"/proc/{pid}/cgroup").read_text(), re.MULTILINE)
    except OSError:
        return None
    return cgroups.ROOT / own[1] if own else None
