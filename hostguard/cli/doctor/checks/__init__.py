"""The checks of `hostguard doctor`: functions from a Host, the state that was read, to a Check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hostguard.core.model import Config
from hostguard.linux.disk import Device, mounts_on
from hostguard.linux.limits import Kernel
from hostguard.linux.mounts import Mount, by_name, read_mounts

# The fix of what a container cannot change.
OUTSIDE = "# only the host of this container can change this: run hostguard doctor there"


class Level(StrEnum):
    """The severity of a finding, in the order of the report."""

    PROBLEM = "problem"  # the guard or a configured limit does not work
    WARNING = "warning"  # it works, but not as well as it could
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `mend` is the fix: shell commands for root, other steps as comments.

    `name` is stable: it is that of the check's function, and `examine` adds it.
    """

    name: str
    level: Level
    found: str
    why: str = ""
    mend: tuple[str, ...] = ()


def ok(found: str) -> Check:
    """A check that passed."""
    return Check("", Level.OK, found)


def warning(found: str, why: str = "", *mend: str) -> Check:
    """A check with a warning."""
    return Check("", Level.WARNING, found, why, mend)


def problem(found: str, why: str = "", *mend: str) -> Check:
    """A check with a problem."""
    return Check("", Level.PROBLEM, found, why, mend)


@dataclass(frozen=True, slots=True)
class Host:
    """The state of a host. Files are read below `root`.

    `faults`: errors in the configuration; then `config` has the defaults. `daemon`: its status, None if it is
    not running or failed. `daemon_fault`: its error; `denied`: the error is missing permission. `free`: free
    and total bytes of the file system of the queue; `inodes`: free and total inodes, 0 if it has no limit.
    """

    root: Path
    device: Device
    kernel: Kernel
    config: Config = field(default_factory=Config)
    faults: tuple[str, ...] = ()
    systemd: int | None = None  # major version; None: not running
    daemon: Mapping[str, Any] | None = None
    daemon_fault: str = ""
    denied: bool = False
    free: tuple[int, int] = (0, 0)
    inodes: tuple[int, int] = (0, 0)
    user: bool = False  # the guard runs under a user's service manager

    def text(self, path: str) -> str:
        """The text of a file, "" if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        """Whether the path exists, as far as can be seen."""
        return os.path.exists(self.root / path.lstrip("/"))  # no error where it may not be seen

    def mount_of(self, path: str) -> Mount | None:
        """The mount that contains the path, by its name."""
        return by_name(read_mounts(self.root), path)

    def on_disk(self, path: str) -> bool:
        """Whether the path is on the guarded disk."""
        mount = self.mount_of(path)
        return mount is not None and mount.place in [one.place for one in mounts_on(self.device, self.root)]

    @property
    def container(self) -> bool:
        """Whether this is a container, whose kernel and disks belong to another host."""
        # systemd writes the first one at boot, in a container of any kind (container-interface).
        return any(map(self.exists, ("/run/systemd/container", "/run/.containerenv", "/.dockerenv")))

    @property
    def systemctl(self) -> str:
        """The command that reaches the guard's service manager."""
        return "systemctl --user" if self.user else "systemctl"

    @property
    def slow(self) -> bool:
        """Whether the disk is of a slow kind: an SD card, a USB disk or a hard disk."""
        name = self.device.name
        if name is None:
            return False
        if name.startswith("mmcblk"):
            return True
        place = str((self.root / "sys/block" / name).resolve())
        turns = self.text(f"/sys/block/{name}/queue/rotational").strip() == "1"
        return name.startswith("sd") and (turns or "/usb" in place)
