"""Which of the configured limits the kernel applies: read back, never assumed.

PID 1 starts a unit even if the kernel rejects a limit or the device cannot be resolved, and logs that at
debug level only. `judge` decides and is pure; the readers take the root folder to read below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hostguard.core import paths
from hostguard.core.model import Config, Limits
from hostguard.core.units import SLICE
from hostguard.linux import cgroup as cgroups
from hostguard.linux.disk import Device, may_be_on, mounts_on
from hostguard.linux.mounts import read_mounts

DEFAULT_WEIGHT = 100  # of every cgroup, also for BFQ (systemd, cgroup-util.h)
# cgroup-v2.rst, "Writeback": on other file systems the kernel writes back pages of a turn as its own. The
# driver of ext4 serves ext3.
ATTRIBUTING = frozenset({"ext2", "ext3", "ext4", "btrfs", "f2fs", "xfs"})
# These read and write for all processes in kernel threads of their own, past the limits of cgroups
# (openzfs/zfs#1952). Their mounts do not show for sure which disk they are on.
BYPASSING = ("zfs", "bcachefs")
PAGE_MAX = 65_536  # bytes; the kernel rounds memory limits down to pages, of 64 KiB at most
# By limit: its key in io.max, or its file.
IO_MAX = {"read_bandwidth": "rbps", "write_bandwidth": "wbps", "read_iops": "riops", "write_iops": "wiops"}
FILES = {"memory_high": "memory.high", "memory_max": "memory.max", "tasks_max": "pids.max"}


class Label(StrEnum):
    """How far a limit is applied."""

    ENFORCED = "enforced"
    UNKNOWN = "unknown"  # probably applied, but no turn has been read back yet
    PARTIAL = "partial"  # applied to some of the I/O only
    INERT = "inert"  # without any effect


@dataclass(frozen=True, slots=True)
class Verdict:
    """A configured limit, by its key, and why it has its label."""

    limit: str
    label: Label
    why: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the host offers. `unattributed`: file systems on the disk, as "exfat on /mnt"; see ATTRIBUTING.

    `bypassing`: those that are perhaps on the disk; see BYPASSING.
    """

    disk: Device
    number: str | None = None  # of the disk, "179:0"
    controllers: frozenset[str] = frozenset()  # of cgroup version 2 in the service manager's cgroup
    scheduler: str | None = None
    iocost: bool = False
    unattributed: tuple[str, ...] = ()
    bypassing: tuple[str, ...] = ()

    @property
    def weighs(self) -> str | None:
        """The mechanism that shares the disk by weight; None if there is none."""
        if self.scheduler == "bfq":
            return "BFQ"
        return "iocost" if self.iocost else None


@dataclass(frozen=True, slots=True)
class Applied:
    """The contents of a turn's cgroup files. None and missing keys: no limit, or no such file."""

    controllers: frozenset[str] = frozenset()
    io_max: Mapping[str, int] | None = None  # by the keys of io.max, of the disk
    weight: int | None = None  # as BFQ or iocost sees it
    slice_weight: int | None = None  # the same for hostguard.slice
    values: Mapping[str, int] | None = None  # by the names in FILES


_NOT_YET = (Label.UNKNOWN, "to be read back from the next turn")


def configured(config: Config) -> set[Limits]:
    """The different sets of limits that turns may get."""
    return {mind.limits for mind in config.minds.values()} or {config.turn}


def judge(limits: Limits, kernel: Kernel, applied: Applied | None) -> tuple[Verdict, ...]:
    """A verdict on each limit that the kernel applies. `applied` None: no such turn was read back yet."""
    judges = {"io_weight": _weight, **dict.fromkeys(IO_MAX, _io_max), **dict.fromkeys(FILES, _value)}
    return tuple(
        Verdict(name, *judge_one(name, asked, kernel, applied))
        for name, judge_one in judges.items()
        if (asked := getattr(limits, name)) is not None
    )


def worst(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The worst verdict on each limit, in order of first appearance."""
    order = list(Label)
    found: dict[str, Verdict] = {}
    for verdict in verdicts:
        known = found.setdefault(verdict.limit, verdict)
        if order.index(verdict.label) > order.index(known.label):
            found[verdict.limit] = verdict
    return list(found.values())


def bfq_weight(io_weight: int) -> int:
    """What systemd writes to io.bfq.weight for an IOWeight: up to 100 the same, 100..10000 as 100..1000."""
    return io_weight if io_weight <= 100 else 100 + (io_weight - 100) * 900 // 9900


def _controller(name: str, kernel: Kernel, applied: Applied | None) -> str | None:
    """Why the controller has no effect on turns; None if it is on."""
    if name not in kernel.controllers:
        return f"{'the user manager' if paths.USER else 'cgroup version 2'} has no {name} controller here"
    if applied is not None and name not in applied.controllers:
        return f"the {name} controller is not on for turns"
    return None


def _weight(_name: str, asked: int, kernel: Kernel, applied: Applied | None) -> tuple[Label, str]:
    if missing := _controller("io", kernel, applied):
        return Label.INERT, missing
    if kernel.disk.name is None:
        return Label.INERT, f"no disk to share by weight is known: {kernel.disk.reason}"
    if kernel.weighs is None:
        scheduler = kernel.scheduler or "unknown"
        why = f"{kernel.disk.name} has the scheduler {scheduler}; only BFQ and iocost use weights"
        return Label.INERT, why
    if applied is None:
        return _NOT_YET
    wanted = bfq_weight(asked) if kernel.weighs == "BFQ" else asked
    if applied.weight != wanted:
        return Label.INERT, f"{kernel.weighs} sees the weight {applied.weight}, not {wanted}"
    if kernel.bypassing:
        return Label.PARTIAL, _bypassed(kernel)
    # Weights count among siblings: those of a scope are the other turns of its mind.
    why = f"{kernel.weighs} applies it among the turns of one mind; against the rest of the host all turns"
    if applied.slice_weight in (None, DEFAULT_WEIGHT):
        advice = f"systemctl set-property {SLICE} IOWeight={asked}"
        return Label.PARTIAL, f"{why} together weigh {DEFAULT_WEIGHT}, the default ({advice})"
    return Label.ENFORCED, f"{why} together weigh {applied.slice_weight}"


def _io_max(name: str, asked: int, kernel: Kernel, applied: Applied | None) -> tuple[Label, str]:
    if missing := _controller("io", kernel, applied):
        return Label.INERT, missing
    if kernel.disk.node is None:
        return Label.INERT, f"there is no disk to limit: {kernel.disk.reason}"
    if applied is not None:
        value = (applied.io_max or {}).get(IO_MAX[name])
        if value is None:
            return Label.INERT, f"io.max has no {IO_MAX[name]} for {kernel.disk.name}: systemd did not set it"
        if value != asked:
            return Label.PARTIAL, f"io.max says {value}, not {asked}"
    if kernel.bypassing:
        return Label.PARTIAL, _bypassed(kernel)
    if name.startswith("write_"):
        if kernel.disk.encrypted:
            return Label.PARTIAL, (
                f"{kernel.disk.name} is encrypted: kernel threads write to it, unless it was opened with"
                " no_write_workqueue"
            )
        if missing := _controller("memory", kernel, applied):
            return Label.PARTIAL, (
                f"{missing}: only what a turn syncs or writes without the page cache is limited, not what"
                " the kernel writes back later"
            )
        if kernel.unattributed:
            return Label.PARTIAL, (
                f"not what the kernel writes back later to {', '.join(kernel.unattributed)}: that file system"
                " does not attribute pages to cgroups"
            )
    return _NOT_YET if applied is None else (Label.ENFORCED, "in io.max")


def _bypassed(kernel: Kernel) -> str:
    where = ", ".join(kernel.bypassing)
    return f"not what is read from and written to {where}: kernel threads do that, which have no limits"


def _value(name: str, asked: int, kernel: Kernel, applied: Applied | None) -> tuple[Label, str]:
    if missing := _controller("pids" if name == "tasks_max" else "memory", kernel, applied):
        return Label.INERT, missing
    if applied is None:
        return _NOT_YET
    value = (applied.values or {}).get(name)
    if value is None:
        return Label.INERT, f"{FILES[name]} has no limit: systemd did not set it"
    slack = 0 if name == "tasks_max" else PAGE_MAX
    if not asked - slack <= value <= asked:
        return Label.PARTIAL, f"{FILES[name]} says {value}, not {asked}"
    return Label.ENFORCED, f"in {FILES[name]}"


# -- reading; the files are in memory


def read_kernel(disk: Device, root: Path = Path("/")) -> Kernel:
    """Read what the host below `root` offers. Raises OSError."""
    controllers = frozenset(_text(cgroups.of_manager(root) / "cgroup.controllers").split())
    if disk.name is None:
        return Kernel(disk, controllers=controllers)
    block = root / "sys/block" / disk.name
    number = _text(block / "dev").strip() or None
    chosen = re.search(r"\[(\S+)\]", _text(block / "queue/scheduler"))
    qos = _lines(_text(cgroups.find_root(root) / "io.cost.qos")).get(number or "", "")
    unattributed = tuple(
        f"{mount.kind} on {mount.place}"
        for mount in mounts_on(disk, root)
        if mount.kind not in ATTRIBUTING
        and "ro" not in mount.options
        and not mount.place.startswith(("/boot", "/efi"))
    )
    bypassing = tuple(
        f"{mount.kind} on {mount.place}"
        for mount in read_mounts(root)
        if mount.kind in BYPASSING and "ro" not in mount.options and may_be_on(mount, disk, root)
    )
    scheduler = chosen[1] if chosen else None
    return Kernel(disk, number, controllers, scheduler, "enable=1" in qos.split(), unattributed, bypassing)


def read_applied(cgroup: Path, kernel: Kernel) -> Applied | None:
    """Read the files of a turn's cgroup; None if it is gone."""
    controllers = _text(cgroup / "cgroup.controllers")
    io_max = _lines(_text(cgroup / "io.max")).get(kernel.number or "", "")
    pairs = (pair.partition("=") for pair in io_max.split())
    values = {
        name: int(text) for name, file in FILES.items() if (text := _text(cgroup / file).strip()).isdecimal()
    }
    if not (cgroup / "cgroup.events").exists():
        return None
    of_disk = {key: int(value) for key, _, value in pairs if value.isdecimal()}
    above = next((_weight_of(above, kernel) for above in cgroup.parents if above.name == SLICE), None)
    return Applied(frozenset(controllers.split()), of_disk, _weight_of(cgroup, kernel), above, values)


def _weight_of(cgroup: Path, kernel: Kernel) -> int | None:
    lines = _lines(_text(cgroup / ("io.bfq.weight" if kernel.weighs == "BFQ" else "io.weight")))
    text = lines.get(kernel.number or "", lines.get("default", ""))
    return int(text) if text.isdecimal() else None


def _lines(text: str) -> dict[str, str]:
    """The lines of a keyed cgroup file: first word -> the rest."""
    return {key: rest for key, _, rest in (line.partition(" ") for line in text.splitlines())}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""
