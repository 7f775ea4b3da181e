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

from hostguard.linux.btrfs import members
from hostguard.linux.mounts import Mount, mount_of, read_mounts

SYS = Path("/sys")
SYSTEMD = Path("/proc/1/root")  # what PID 1 sees
LINKS_MAX = 40  # as the kernel's MAXSYMLINKS
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
    for _ in range(LINKS_MAX):
        outside = path.parts[1:2] == ("dev",) and os.access(SYSTEMD / "dev", os.F_OK)
        seen = SYSTEMD / path.relative_to("/") if outside else path
        if not (outside and seen.is_symlink()):
            break
        # Here, an absolute link would lead into our own /dev.
        path = Path(os.path.normpath(path.parent / seen.readlink()))
    return seen


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
    mount = mount_of(place)
    if mount is None:
        return Device(None, None, f"{path} is on a mount that cannot be seen from here{_ASK}")
    if mount.kind == "btrfs":
        return of_btrfs(place, mount.source, f"{path} is on", sys_root)
    shown = f"{mount.kind} ({mount.source})"
    return Device(None, None, f"{path} is on {shown}, which does not show its disk{_ASK}")


def of_number(number: int, what: str, sys_root: Path = SYS, *, named: bool = False) -> Device:
    """The disk beneath the block device `number`; `what` begins the reason.

    With `named` a person chose this device: it is used even if it is several disks, or memory.
    """
    link = sys_root / "dev/block" / f"{os.major(number)}:{os.minor(number)}"
    if not link.exists():
        return Device(None, None, f"{what} block device {link.name}, which {sys_root} does not know{_ASK}")
    return _beneath([link.resolve()], what, named)


def of_btrfs(place: Path, source: str, what: str, sys_root: Path = SYS) -> Device:
    """The disk beneath the btrfs that `place` is on, mounted from `source`, if all its devices are on one."""
    found = members(place, source, sys_root)
    if not found:
        return Device(None, None, f"{what} btrfs ({source}), whose device {sys_root} does not know{_ASK}")
    return _beneath(found, f"{what} btrfs, on", False)


def mounts_on(disk: Device, root: Path = Path("/")) -> list[Mount]:
    """The mounts on a disk; of several at one place only the last, which hides the others. Raises OSError."""
    places = {mount.place: mount for mount in read_mounts(root)}
    return [mount for mount in places.values() if _disk_of(mount, root) == disk.name]


def may_be_on(mount: Mount, disk: Device, root: Path = Path("/")) -> bool:
    """False if the mount's source names devices ("/dev/sda1:/dev/sdb1"), and all are on other disks."""
    links = [root / "sys/class/block" / os.path.basename(name) for name in mount.source.split(":")]
    if not all(link.exists() for link in links):
        return True
    return any(bottom.name == disk.name for bottom in layers([link.resolve() for link in links])[-1])


def _disk_of(mount: Mount, root: Path) -> str | None:
    if mount.kind == "btrfs":
        return of_btrfs(root / mount.place.lstrip("/"), mount.source, "", root / "sys").name
    major, minor = map(int, mount.number.split(":"))
    return of_number(os.makedev(major, minor), "", root / "sys").name if major else None


def layers(entries: list[Path]) -> list[list[Path]]:
    """These folders in sysfs of block devices, and those of what is beneath them, the whole disks last."""
    found = [entries]
    while True:
        below = {lower.name: lower for upper in found[-1] for lower in _below(upper) or [upper]}
        if below.keys() == {upper.name for upper in found[-1]}:
            return found
        found.append([below[name] for name in sorted(below)])


def _beneath(entries: list[Path], what: str, named: bool) -> Device:
    *above, bottom = layers(entries)
    steps = [", ".join(map(_describe, layer)) for layer in above]
    encrypted = any(_uuid(entry).startswith("CRYPT-") for layer in above for entry in layer)
    names = ", ".join(entry.name for entry in bottom)
    if len(bottom) > 1:
        if named:
            whole = _whole(entries[0])
            reason = f"{what} {whole.name}, taken as one disk as named, on {names}"
            return Device(_node(whole.name), whole.name, reason, encrypted)
        return Device(None, None, f"{what} {', on '.join([*steps, f'several disks ({names})'])}{_ASK}")
    if is_memory(names) and not named:
        return Device(None, None, f"{what} {names}, which is memory, not a disk{_ASK}")
    reason = f"{what} {', on '.join([*steps, f'the disk {names}'])}"
    file = bottom[0] / "loop/backing_file"
    if file.exists():
        reason += f", which is in the file {file.read_text().strip()}"
    return Device(_node(names), names, reason, encrypted)


def is_memory(name: str) -> bool:
    """Whether a disk of this name is in memory: zram0, ram0."""
    return re.match(r"z?ram[0-9]", name) is not None


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
