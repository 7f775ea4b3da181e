"""Other processes, as /proc shows them. It is in memory: nothing here waits for a disk."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import psutil

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
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # half the time that a Path takes
            fields = file.read(STAT_MAX).rpartition(b") ")[2].split()
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


def listeners(url: str, pids: Iterable[int] | None = None) -> list[int]:
    """The processes, of `pids` or of all, that listen at the URL. Reads descriptors: call it in a thread."""
    parts = urlsplit(url)
    hosts = {"127.0.0.1", "::1"} if parts.hostname == "localhost" else {parts.hostname}
    if not any(map(is_own, hosts)):
        return []
    hosts |= {"0.0.0.0", "::"}  # noqa: S104
    taken = {name for name, host, port in _listening() if port == (parts.port or 80) and host in hosts}
    return [pid for pid in (psutil.pids() if pids is None else pids) if taken and _holds(pid, taken)]


def is_own(host: str | None) -> bool:
    """True if the address is one of this host: only such a one can be bound."""
    try:
        family = socket.AF_INET6 if ip_address(host or "").version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except (ValueError, OSError):  # a name, or another host's
        return False
    return True


def _listening() -> Iterator[tuple[str, str, int]]:
    """(link text of its descriptors, address, port) of each listening TCP socket."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A":
                address, _, port = fields[1].partition(":")
                words = [int(address[i : i + 8], 16) for i in range(0, len(address), 8)]
                raw = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
                yield f"socket:[{fields[9]}]", str(ip_address(raw)), int(port, 16)


def _holds(pid: int, sockets: set[str]) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(os.readlink(entry.path) in sockets for entry in entries)
    except OSError:
        return False
