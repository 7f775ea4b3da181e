"""From a path to the one whole disk that carries it, through sysfs.

cgroup v2 limits whole disks: io.max refuses partitions. systemd resolves one layer of device mapper only, so
that with LVM on LUKS a limit lands between the layers (systemd#15008, #14271). This resolves all layers and
gives systemd the disk at the bottom.

A loop device is a bottom, too: the turns wait for it, and the kernel limits them there. The disk that holds
its file is not guarded, since most of its load is then from elsewhere; [device] can name it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path

SYS = Path("/sys")
SYSTEMD = Path("/proc/1/root")  # what PID 1 sees
_ASK = "; set path under [device] to the disk to guard"
_KINDS = {"LVM": "LVM", "CRYPT": "encrypted", "mpath": "multipath"}  # by the prefix of a dm device's UUID


@dataclass(frozen=True, slots=True)
class Device:
    """A whole disk: its node for systemd, its name in /sys/block; both None if there is not exactly one.

    `reason` says how it was found, layer by layer, or why not. `encrypted`: one of the layers is dm-crypt,
    which writes from kernel threads unless it was opened with no_write_workqueue.
    """

    node: str | None
    name: str | None
    reason: str
    encrypted: bool = False


UNKNOWN = Device(None, None, "not resolved yet")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: `number` is the device of its file system, "8:2"; `options` are those of both."""

    id: str
    number: str
    place: str
    kind: str
    source: str
    options: frozenset[str]


def choose(device_path: str, state: Path, sys_root: Path = SYS) -> Device:
    """The disk for `[device] path`: "auto" (the one under `state`), "none", or a path."""
    if device_path == "none":
        return Device(None, None, 'switched off by path = "none" under [device]')
    if device_path != "auto" and not _seen(device_path).exists():
        return Device(None, None, f"there is no {device_path}{_ASK}")
    found = resolve(state if device_path == "auto" else Path(device_path), sys_root)
    if found.node and not _seen(found.node).exists():  # a container's own /dev
        return replace(found, node=None, reason=f"{found.reason}, but there is no {found.node} here")
    return found


def resolve(path: Path, sys_root: Path = SYS) -> Device:
    """The whole disk of `path`, or of its nearest parent that exists; of a node for several disks, itself."""
    try:
        return _resolve(path, _seen(path), sys_root)
    except OSError as error:
        return Device(None, None, f"{path}: {error.strerror}{_ASK}")


def _seen(path: Path | str) -> Path:
    """The path as PID 1 sees it: hostguard.service has its own /dev; systemd opens nodes in the host's."""
    path = Path(path).absolute()
    outside = path.parts[1:2] == ("dev",) and os.access(SYSTEMD / "dev", os.F_OK)
    return SYSTEMD / path.relative_to("/") if outside else path


def _resolve(path: Path, place: Path, sys_root: Path) -> Device:
    try:
        info = place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _resolve(path, place.parent, sys_root)
    if stat.S_ISBLK(info.st_mode):
        return of_number(info.st_rdev, f"{path} is", sys_root, named=True)
    if os.major(info.st_dev):
        return of_number(info.st_dev, f"{path} is on", sys_root)
    # Major 0 is not a device: the kernel invents such numbers for file systems without exactly one.
    kind, source = mount_of(place)
    if kind == "btrfs":
        return of_btrfs(source, f"{path} is on", sys_root)
    return Device(None, None, f"{path} is on {kind} ({source}), which does not show its disk{_ASK}")


def of_number(number: int, what: str, sys_root: Path = SYS, *, named: bool = False) -> Device:
    """The disk beneath the block device `number`; `what` begins the reason.

    With `named` a person chose this device: it is used even if it is several disks, or memory.
    """
    link = sys_root / "dev/block" / f"{os.major(number)}:{os.minor(number)}"
    if not link.exists():
        return Device(None, None, f"{what} block device {link.name}, which {sys_root} does not know{_ASK}")
    return _beneath([link.resolve()], what, named)


def of_btrfs(source: str, what: str, sys_root: Path = SYS) -> Device:
    """The disk beneath the btrfs mounted from `source`, if all its devices are on one."""
    name = os.path.basename(os.path.realpath(source))
    for member in sys_root.glob(f"fs/btrfs/*/devices/{name}"):
        members = sorted(member.parent.iterdir(), key=lambda other: other.name)
        return _beneath([other.resolve() for other in members], f"{what} btrfs, on", False)
    return Device(None, None, f"{what} btrfs ({source}), whose device {sys_root} does not know{_ASK}")


def read_mounts(root: Path = Path("/")) -> list[Mount]:
    """All mounts, in order: a later one hides an earlier one at the same place. Raises OSError."""
    return parse_mounts((root / "proc/self/mountinfo").read_text(errors="surrogateescape"))


def parse_mounts(mountinfo: str) -> list[Mount]:
    """The mounts in the text of /proc/PID/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        mount, _, file_system = line.partition(" - ")
        id_, _parent, number, _root, place, options = mount.split(" ")[:6]
        kind, source, more = file_system.split(" ", 2)
        both = frozenset(f"{options},{more}".split(","))
        found.append(Mount(id_, number, _plain(place), kind, _plain(source), both))
    return found


def _plain(text: str) -> str:
    r"""A field with its octal escapes, such as \040, decoded."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(place: Path) -> tuple[str, str]:
    """File system type and source of the mount of `place`. Raises OSError."""
    # By the id of the mount: prefixes of the path mislead if one mount hides another.
    handle = os.open(place, os.O_PATH)
    try:
        info = Path(f"/proc/self/fdinfo/{handle}").read_text()
    finally:
        os.close(handle)
    found = re.search(r"^mnt_id:\s*([0-9]+)$", info, re.MULTILINE)
    for mount in read_mounts():
        if found is not None and mount.id == found[1]:
            return mount.kind, mount.source
    return "an unknown file system", "?"


def mounts_on(disk: Device, root: Path = Path("/")) -> list[Mount]:
    """The mounts on a disk; of several at one place only the last, which hides the others. Raises OSError."""
    places = {mount.place: mount for mount in read_mounts(root)}
    return [mount for mount in places.values() if _disk_of(mount, root / "sys") == disk.name]


def _disk_of(mount: Mount, sys_root: Path) -> str | None:
    if mount.kind == "btrfs":
        return of_btrfs(mount.source, "", sys_root).name
    major, minor = map(int, mount.number.split(":"))
    return of_number(os.makedev(major, minor), "", sys_root).name if major else None


def _beneath(entries: list[Path], what: str, named: bool) -> Device:
    layers = [entries]
    while True:
        below = {lower.name: lower for upper in layers[-1] for lower in _below(upper) or [upper]}
        if below.keys() == {upper.name for upper in layers[-1]}:
            break
        layers.append([below[name] for name in sorted(below)])
    bottom = layers.pop()
    steps = [", ".join(map(_describe, layer)) for layer in layers]
    encrypted = any(_uuid(entry).startswith("CRYPT-") for layer in layers for entry in layer)
    names = ", ".join(entry.name for entry in bottom)
    if len(bottom) > 1:
        if named:
            whole = _whole(entries[0])
            reason = f"{what} {whole.name}, taken as one disk as named, on {names}"
            return Device(_node(whole.name), whole.name, reason, encrypted)
        return Device(None, None, f"{what} {', on '.join([*steps, f'several disks ({names})'])}{_ASK}")
    if re.match(r"z?ram[0-9]", names) and not named:
        return Device(None, None, f"{what} {names}, which is memory, not a disk{_ASK}")
    reason = f"{what} {', on '.join([*steps, f'the disk {names}'])}"
    file = bottom[0] / "loop/backing_file"
    if file.exists():
        reason += f", which is in the file {file.read_text().strip()}"
    return Device(_node(names), names, reason, encrypted)


def _whole(entry: Path) -> Path:
    return entry.parent if (entry / "partition").exists() else entry


def _below(entry: Path) -> list[Path]:
    """The devices that a block device is made of; none for a disk."""
    if _whole(entry) != entry:
        return [entry.parent]
    return [slave.resolve() for slave in (entry / "slaves").glob("*")]


def _describe(entry: Path) -> str:
    if _whole(entry) != entry:
        return f"the partition {entry.name}"
    kind = _uuid(entry).partition("-")[0]
    label = entry / "dm/name"
    if kind in _KINDS and label.exists():
        return f"{entry.name} ({_KINDS[kind]} {label.read_text().strip()})"
    return f"{entry.name} (RAID)" if (entry / "md").is_dir() else entry.name


def _uuid(entry: Path) -> str:
    uuid = entry / "dm/uuid"
    return uuid.read_text() if uuid.exists() else ""


def _node(name: str) -> str:
    return "/dev/" + name.replace("!", "/")  # sysfs has no "/" in names: cciss!c0d0
