"""The usage of a live turn, from the counters of its scope, or else of its processes. It is in memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hostguard.core.outcome import Usage
from hostguard.linux.cgroup import cpu_usec
from hostguard.linux.disk import SYS
from hostguard.linux.process import members, storage


def of_scope(cgroup: Path, disk: str | None) -> Usage:
    """The usage of a turn's scope; `disk` is the name of the watched one in /sys/block, None = all disks."""
    cpu = cpu_usec(cgroup)
    cpu_ms = None if cpu is None else cpu // 1000
    try:
        read, written = in_io_stat((cgroup / "io.stat").read_text(), number_of(disk))
        return Usage(cpu_ms, read, written, "scope")
    except (OSError, ValueError):
        below = [Path(folder) for folder, _, _ in os.walk(cgroup)]  # with the cgroups that the turn made
        found = [pair for folder in below for pid in members(folder) if (pair := storage(pid))]
    if not found:
        return Usage(cpu_ms, None, None, None)
    return Usage(cpu_ms, sum(read for read, _ in found), sum(written for _, written in found), "processes")


def number_of(disk: str | None, sys_root: Path = SYS) -> str | None:
    """The disk's "major:minor"; None if it is not known."""
    if disk is not None:
        with suppress(OSError):
            return (sys_root / "block" / disk / "dev").read_text().strip()
    return None


def in_io_stat(text: str, number: str | None) -> tuple[int, int]:
    """(bytes read, bytes written) in an io.stat: of the disk "major:minor", or of all. Raises ValueError."""
    read = written = 0
    for line in text.splitlines():
        device, *rest = line.split()
        if number in (None, device):
            counters = dict(pair.split("=", 1) for pair in rest)
            read += int(counters.get("rbytes", 0))
            written += int(counters.get("wbytes", 0))
    return read, written
