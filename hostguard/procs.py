"""What the kernel says of other processes. All of it is in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hostguard import cgroups

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc/PID/stat tells. `started`, in ticks since boot, and the pid name one process for ever."""

    pid: int
    parent: int
    started: int
    cpu_s: float
    waits: bool = False  # for a disk, or something else that cannot be interrupted


def process(pid: int) -> Process | None:
    """The process, None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    cpu = (int(fields[11]) + int(fields[12])) * TICK_S
    return Process(pid, int(fields[1]), int(fields[19]), cpu, fields[0] == b"D")


def storage_bytes(pid: int) -> int:
    """Bytes that the process read from and wrote to storage; 0 if it is gone or that may not be seen."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("read_bytes", "write_bytes")))


def members(cgroup: Path) -> list[int]:
    """The processes in a cgroup itself; none if it is gone."""
    try:
        return [int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def uid_of(pid: int) -> int:
    """The process's user; -1 if it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def home_of(pid: int) -> Path | None:
    """The process's cgroup."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    return cgroups.ROOT / own.lstrip("/") if own is not None else None


def listener(port: int) -> int:
    """The process that listens on a TCP port of this host; 0 = none."""
    import psutil

    for found in psutil.net_connections("tcp"):
        if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port and found.pid:
            return int(found.pid)
    return 0
