"""Whether what is synced to a file survives a power cut: not in memory, and not for sure on another machine.

A sync also succeeds on file systems that keep nothing: those in memory, an overlay whose upper layer is one
(overlayroot of Raspberry Pi OS and others), and disks in memory (zram).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from hostguard.linux.btrfs import members
from hostguard.linux.disk import is_memory, layers
from hostguard.linux.mounts import Mount, by_name, mount_of, read_mounts

NOT_DURABLE = "accepted messages may be lost with the power: {}"
MEMORY = ("tmpfs", "ramfs", "rootfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "fuse.sshfs", "fuse.glusterfs")
# The file system does not have the disk write its cache (ext4, btrfs), or a sync does nothing (overlay).
CARELESS = ("nobarrier", "volatile")
DEPTH_MAX = 8  # of file systems in files of one another
FIEMAP = 0xC020_660B  # FS_IOC_FIEMAP of linux/fs.h: _IOWR('f', 11, 32 bytes)
ALL_OF_FILE = struct.pack("=QQLLLL", 0, (1 << 64) - 1, 0, 0, 0, 0)


def doubt(path: Path, root: Path = Path("/")) -> str | None:
    """Why what is synced to the file `path` may be lost; None: it is on a disk.

    If it cannot be seen, its nearest parent that can counts. The mounts of a recorded host, below another
    `root`, are found by their names.
    """
    while root == Path("/") and not os.path.exists(path) and path != path.parent:
        path = path.parent
    try:
        mounts = read_mounts(root)
        mount = mount_of(path) if root == Path("/") else by_name(mounts, str(path))
        return _doubt(mount, path, mounts, root, DEPTH_MAX)
    except OSError as error:
        return f"{path} cannot be examined: {error.strerror}"


def _doubt(mount: Mount | None, path: Path, mounts: list[Mount], root: Path, depth: int) -> str | None:
    if mount is None or not depth:
        return None
    here = f"{mount.kind} on {mount.place}"
    if mount.kind in MEMORY:
        return f"{path} is in memory ({here})"
    if mount.kind in REMOTE:
        return f"{path} is on another machine ({here}, from {mount.source}), and as safe as it is there"
    if careless := mount.options.intersection(CARELESS):
        return f"{path} is not always written to the disk: {here} is mounted with {', '.join(careless)}"
    if mount.kind == "overlay":
        return _of_overlay(mount, path, mounts, root, depth)
    for bottom in _bottoms(mount, root):
        if is_memory(bottom.name):
            return f"{path} is in memory ({here}, on {bottom.name})"
        file = bottom / "loop/backing_file"
        if file.exists():
            inside = Path(file.read_text().strip())
            return _doubt(by_name(mounts, str(inside)), inside, mounts, root, depth - 1)
    return None


def _of_overlay(mount: Mount, path: Path, mounts: list[Mount], root: Path, depth: int) -> str | None:
    """An overlay writes to its upper layer; the option has its path where the overlay was mounted."""
    upper = mount.option("upperdir")
    if upper is None:
        return None  # it is read-only
    below = by_name(mounts, upper)
    if below is not None and below.number != mount.number and (root / upper.lstrip("/")).exists():
        why = _doubt(below, Path(upper), mounts, root, depth - 1)
        return None if why is None else f"{path} is on an overlay whose upper layer does not last: {why}"
    if root == Path("/") and not _has_blocks(path):
        here = f"overlay on {mount.place}"
        return (
            f"{path} is probably in memory ({here}): its upper layer is hidden, and keeps no blocks on a disk"
        )
    return None


def _has_blocks(path: Path) -> bool:
    """Whether the kernel knows of blocks of the file on a disk, in which its file system keeps it.

    An overlay passes the question on to the upper layer's file system; those in memory know none.
    """
    if path.is_dir():  # an overlay answers for files alone
        return True
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, FIEMAP, ALL_OF_FILE)
    except OSError as error:
        return error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY)
    finally:
        os.close(handle)
    return True


def _bottoms(mount: Mount, root: Path) -> list[Path]:
    """The folders in sysfs of the whole disks beneath a mount; [] if they are unknown."""
    if mount.kind == "btrfs":
        entries = members(root / mount.place.lstrip("/"), mount.source, root / "sys")
    else:
        link = root / "sys/dev/block" / mount.number
        entries = [link.resolve()] if link.exists() else []
    return layers(entries)[-1]
