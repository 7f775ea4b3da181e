"""Processes of a user outside of the guard's slice, where services of the host start them on request.

Such places are the user's own slice (its service manager and its login sessions), and a few services: cron,
at, and those that deliver mail or take logins. What an administrator starts as the user is elsewhere. It is
all in memory: nothing here waits for a disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hostguard.linux.cgroup import of_user
from hostguard.linux.process import Process, members, process, uid_of

WORD = re.compile("[@.-]")
INSTANCES = "system-"  # begins the names of the slices for units such as ssh@1.service
MOST = 64  # processes that are looked for at once
# Cgroups and processes of one place that are looked at, which takes 0.1 s. A user who has a service manager
# can make any number of cgroups in it.
LOOKED_MAX = 1024
HZ = os.sysconf("SC_CLK_TCK")
# By the first word of a unit's name.
SERVICES = frozenset(
    (
        "anacron", "atd", "bcron", "cron", "crond", "cronie", "dropbear", "exim4", "fcron", "incron",
        "incrond", "opensmtpd", "postfix", "sendmail", "ssh", "sshd",
    )
)  # fmt: skip
# What a user's service manager consists of, and what it keeps ready without being asked: they do no work of
# their own. catatonit holds the namespaces of podman.
HELPERS = frozenset(
    (
        "catatonit", "dbus-broker", "dbus-broker-launch", "dbus-daemon", "gpg-agent", "systemd",
        "systemd-executor",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stray:
    """A process outside of the guard's slice. `place` is its unit; `own`: that is in the user's own slice."""

    process: Process
    name: str
    place: str
    own: bool


def strays(
    uid: int, since: int, root: Path, homes: Collection[Path] = (), known: Collection[Process] = ()
) -> list[Stray]:
    """Processes of the user that began at or after `since`, in ms since the boot, the eldest first.

    `root` is the cgroup of the service manager. What is in one of the cgroups `homes` does not count, nor
    does what is `known`. At most MOST: nobody can make this take long. Of a place with more than LOOKED_MAX
    cgroups and processes, its first process stands for what is not looked at.
    """
    found = islice(_each(uid, since, root, homes, known), MOST)
    return sorted(found, key=lambda stray: (stray.process.started, stray.process.pid))


def _each(
    uid: int, since: int, root: Path, homes: Collection[Path], known: Collection[Process]
) -> Iterator[Stray]:
    own = of_user(uid, root)
    for place, folder in [*_units(own), *_units(root / "system.slice", SERVICES)]:
        ours, left = folder.is_relative_to(own), LOOKED_MAX
        for cgroup, below, _ in os.walk(folder):
            if Path(cgroup) in homes:
                below.clear()
                continue
            pids = members(Path(cgroup))
            left -= 1 + len(pids)
            if left < 0:
                yield from _first(uid, place, folder, ours, known)
                break
            for pid in pids:
                one = process(pid)
                if one is None or one in known or (one.started + 1) * 1000 <= since * HZ:
                    continue
                if (ours and _helper(pid)) or (not ours and uid_of(pid) != uid):
                    continue
                yield Stray(one, _name(pid), place, ours)


def _first(uid: int, place: str, folder: Path, ours: bool, known: Collection[Process]) -> Iterator[Stray]:
    """The first process of a place, or of the service manager there, unless it is known."""
    for pid in (*members(folder), *members(folder / "init.scope")):
        if ours or uid_of(pid) == uid:
            one = process(pid)
            if one is not None and one not in known:
                yield Stray(one, _name(pid), place, ours)
            return


def _units(folder: Path, wanted: frozenset[str] | None = None) -> Iterator[tuple[str, Path]]:
    """The cgroups of units in a folder; of those `wanted`, by the first word of their names, or all."""
    with suppress(OSError):
        for name in os.listdir(folder):
            # Each connection to a socket may have a service: ssh@1.service in system-ssh.slice.
            if wanted is None or WORD.split(name.removeprefix(INSTANCES), 1)[0] in wanted:
                yield name, folder / name


def _helper(pid: int) -> bool:
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return program.startswith("/usr/") and os.path.basename(program) in HELPERS


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").removesuffix("\n")
    return "?"
