"""hostguard doctor: reads the state of this host and runs the checks on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hostguard.cli import client
from hostguard.cli.doctor.checks import OUTSIDE, Check, Host, Level, disk, guard, kernel, memory, ways_out
from hostguard.cli.errors import CliError, NotRunning
from hostguard.config import load as configuration
from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.core.model import Config
from hostguard.linux.disk import choose
from hostguard.linux.limits import read_kernel

ROOT = Path("/")
STATUS_S = 2.0  # the daemon answers from memory
CHECKS = (
    guard.config, guard.minds, guard.ports, kernel.systemd, guard.daemon, guard.place, kernel.cgroup,
    disk.device, guard.limits, kernel.io_controller, kernel.memory_controller, disk.scheduler, kernel.psi,
    guard.cap, guard.strays, ways_out.sandbox, ways_out.linger, ways_out.cron, ways_out.containers,
    ways_out.ssh_keys, ways_out.shared_users, disk.file_system, disk.space, memory.dirty_pages, memory.swap,
    disk.journal,
    kernel.hung_task,
)  # fmt: skip


# In a container, only its host can change these.
OF_THE_HOST = frozenset({
    kernel.cgroup, kernel.psi, kernel.hung_task, disk.scheduler, memory.dirty_pages, memory.swap,
})  # fmt: skip


def examine(host: Host) -> list[Check]:
    """Run all checks, the worst result first; without systemd only that check, as the others depend on it."""
    checks = CHECKS if host.systemd is not None else (kernel.systemd,)
    order = list(Level)
    found = [_named(check, host) for check in checks]
    return sorted(found, key=lambda check: order.index(check.level))


def _named(check: Callable[[Host], Check], host: Host) -> Check:
    found = check(host)
    outside = host.container and check in OF_THE_HOST and found.mend
    return replace(found, name=check.__name__, mend=(OUTSIDE,) if outside else found.mend)


def this_host() -> Host:
    """Read the state of this host. Works without the daemon. Raises OSError."""
    faults: tuple[str, ...] = ()
    try:
        config = configuration.load()
    except ConfigError as error:
        config, faults = Config(), error.problems
    device = choose(config.device_path, paths.STATE)
    status, fault = _status()
    denied = bool(fault) and not os.access(paths.SOCKET, os.W_OK)
    return Host(
        ROOT, device, read_kernel(device), config, faults,
        _systemd(), status, fault, denied, *_free(), paths.USER,
    )  # fmt: skip


def _status() -> tuple[Any, str]:
    try:
        return client.call("GET", "/v1/status", read_s=STATUS_S), ""
    except NotRunning:
        return None, ""
    except CliError as error:
        return None, str(error)


def _systemd() -> int | None:
    if not Path("/run/systemd/system").is_dir():  # sd_booted(3)
        return None
    text = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False).stdout
    version = text.partition("(")[0].split()[-1:]
    return int(version[0]) if version and version[0].isdecimal() else None


def _free() -> tuple[tuple[int, int], tuple[int, int]]:
    """Free and total bytes, and free and total inodes, of the file system of the queue."""
    place = paths.STATE
    while not place.exists():
        place = place.parent
    usage = os.statvfs(place)
    return (usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize), (usage.f_favail, usage.f_files)
