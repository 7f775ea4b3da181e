"""The files of cgroups. They are in memory: nothing here waits for a disk."""

from __future__ import annotations

import asyncio
import errno
import os
import select
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hostguard.core import paths
from hostguard.core.units import escape

MOUNT = "/sys/fs/cgroup"
CONTROLLERS = f"{MOUNT}/cgroup.controllers"  # that the kernel has


def find_root(root: Path = Path("/")) -> Path:
    """Where cgroup version 2 is mounted: below version 1 in a hybrid hierarchy (old hosts)."""
    mount = root / MOUNT.lstrip("/")
    hybrid = mount / "unified"
    return hybrid if hybrid.is_dir() else mount


ROOT = find_root()


def of_manager(root: Path = Path("/")) -> Path:
    """The cgroup of our service manager: the root, or the service of a user's own manager."""
    top, user = find_root(root), os.getuid()
    return of_user(user, top) / f"user@{user}.service" if paths.USER else top


def of_user(uid: int, top: Path) -> Path:
    """The slice of a user's logins and of its own service manager, below the root `top` of all cgroups."""
    return top / "user.slice" / f"user-{uid}.slice"


def of_unit(unit: str, control_group: str) -> Path:
    """The cgroup of a unit directly below the service manager's own, `control_group`."""
    return ROOT / control_group.strip("/") / unit


def pressure_file(cgroup: Path, resource: str) -> Path:
    """The file that says how long the cgroup's tasks waited for a resource, such as "io"; psi.py reads it."""
    return cgroup / f"{resource}.pressure"


def cpu_usec(cgroup: Path) -> int | None:
    """CPU time that the cgroup's processes have used, in µs; None if that is not known."""
    with suppress(OSError, ValueError, IndexError):
        words = (cgroup / "cpu.stat").read_text().split()
        return int(words[words.index("usage_usec") + 1])
    return None


def account_files(cgroup: Path) -> dict[str, str]:
    """The files that the stub of a turn reads at its end, which imports nothing of ours."""
    return {"cpu_stat": f"{cgroup}/cpu.stat", "memory_peak": f"{cgroup}/memory.peak"}


def pids(cgroup: Path) -> list[int]:
    """The processes in the cgroup itself. Raises OSError: it is gone, or cannot be read."""
    return [int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()]


def move(pid: int, cgroup: Path) -> None:
    """Put a process into the cgroup. Raises OSError."""
    (cgroup / "cgroup.procs").write_text(str(pid))


def freeze(cgroup: Path, frozen: bool) -> None:
    """Freeze or thaw the cgroup's processes. Raises OSError."""
    (cgroup / "cgroup.freeze").write_text("1" if frozen else "0")


def frozen(cgroup: Path) -> bool:
    """True if all processes of the cgroup are frozen, by whatever froze it or a cgroup above."""
    try:
        return b"frozen 1" in (cgroup / "cgroup.events").read_bytes()
    except OSError:  # it is gone
        return False


def frozen_by(cgroup: Path) -> str | None:
    """The name of the cgroup to thaw if its processes are frozen, this one or one above; None: they run.

    Of several the outermost: systemd freezes each unit in a frozen slice, too, and thaws none of them alone.
    """
    if not frozen(cgroup):
        return None
    outermost = cgroup.name
    with suppress(OSError):
        for folder in (cgroup, *cgroup.parents):
            if (folder / "cgroup.freeze").read_bytes() == b"1\n":
                outermost = folder.name
    return outermost


def frozen_service(unit: str, own_slice: str, control_group: str) -> bool:
    """True if a service is frozen, in a slice where systemd puts services by itself, or in `own_slice`."""
    instances = f"system.slice/system-{escape(unit.partition('@')[0])}.slice"
    slices = (own_slice, "system.slice", instances, "app.slice")
    return any(frozen(of_unit(f"{slice_}/{unit}", control_group)) for slice_ in slices)


GONE = (errno.ENOENT, errno.ENODEV)  # from opening and reading a file of a removed cgroup
AGAIN_S = 0.5  # until a watch that failed for lack of descriptors is tried again


def populated(cgroup: Path) -> bool:
    """True if the cgroup, or one below it, has a process. A cgroup that is gone has none.

    One that cannot be read (no descriptor is free) counts as populated: in doubt a slot stays taken.
    """
    try:
        return b"populated 1" in (cgroup / "cgroup.events").read_bytes()
    except OSError as error:
        return error.errno not in GONE


def has_login(uid: int, root: Path = Path("/")) -> bool:
    """True if a process of the user's logins, or of its own service manager, lives."""
    return populated(of_user(uid, find_root(root)))


class Watch:
    """Calls `on_empty` for each watched cgroup that has no process left.

    systemd reports that too, but only when PID 1 has time. The kernel reports changes of cgroup.events as
    POLLPRI, which asyncio cannot wait for: hence an epoll object, which asyncio watches.
    """

    def __init__(self, on_empty: Callable[[str], None]) -> None:
        self._on_empty = on_empty
        self._epoll = select.epoll()
        self._files: dict[int, tuple[str, Path]] = {}
        self._fds: dict[str, int] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}

    def open(self) -> None:
        """Begin to watch. Call it on the event loop."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._on_events)

    def close(self) -> None:
        """Stop watching."""
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        for name in [*self._fds, *self._later]:
            self.remove(name)
        self._epoll.close()

    def add(self, name: str, cgroup: Path) -> None:
        """Watch a cgroup: the event loop calls `on_empty(name)` once it is empty, also if it already is."""
        self._later.pop(name, None)
        try:
            fd = os.open(cgroup / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            loop = asyncio.get_running_loop()
            if error.errno in GONE:
                loop.call_soon(self._on_empty, name)
            else:
                self._later[name] = loop.call_later(AGAIN_S, self.add, name, cgroup)
            return
        self._fds[name] = fd
        self._files[fd] = (name, cgroup)
        self._epoll.register(fd, select.EPOLLPRI)
        if not populated(cgroup):
            asyncio.get_running_loop().call_soon(self._on_empty, name)

    def remove(self, name: str) -> None:
        """Stop watching a cgroup, if it is watched."""
        if name in self._later:
            self._later.pop(name).cancel()
        if (fd := self._fds.pop(name, None)) is not None:
            del self._files[fd]
            self._epoll.unregister(fd)
            os.close(fd)

    def _on_events(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd not in self._files:
                continue
            name, cgroup = self._files[fd]
            with suppress(OSError):  # it is gone
                os.pread(fd, 64, 0)  # marks this change as seen
            if not populated(cgroup):
                self.remove(name)
                self._on_empty(name)
