"""The devices of a btrfs. Its mounts have a number that is no device, and the name of a node.

The kernel is asked for the file system's id, which names its folder in sysfs. Names do not lead there: the
node may be a link (/dev/mapper/NAME) that a sandboxed service does not have, or be nowhere (/dev/root).
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

FS_INFO = 0x8400_941F  # BTRFS_IOC_FS_INFO of linux/btrfs.h: _IOR(0x94, 31, 1024 bytes)
INFO_SIZE, FSID_AT = 1024, 16  # of its struct, after max_id and num_devices


def members(place: Path, source: str, sys_root: Path) -> list[Path]:
    """The folders in sysfs of the devices of the btrfs that `place` is on, by name; [] if they are unknown.

    `source` is that of its mount. It counts if the file system cannot be asked: a mount that is hidden by
    another one, or that of a recorded host.
    """
    every = sys_root / "fs/btrfs"
    known = fsid(place)
    if known is None or not (every / known).is_dir():
        known = _by_source(source, sys_root)
    found = (every / known / "devices").glob("*") if known is not None else ()
    return sorted((member.resolve() for member in found), key=lambda member: member.name)


def fsid(place: Path) -> str | None:
    """The id of the btrfs that the path is on; None if it is on none, or cannot be opened."""
    try:
        handle = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    info = bytearray(INFO_SIZE)
    try:
        fcntl.ioctl(handle, FS_INFO, info)
    except OSError:  # another file system
        return None
    finally:
        os.close(handle)
    return str(uuid.UUID(bytes=bytes(info[FSID_AT : FSID_AT + 16])))


def _by_source(source: str, sys_root: Path) -> str | None:
    """The file system with the device of this name; for a name that none has, the only one there is."""
    name = os.path.basename(source)
    for label in (sys_root / "block").glob("dm-*/dm/name"):
        if source == f"/dev/mapper/{label.read_text().strip()}":
            name = label.parts[-3]
    every = sorted((sys_root / "fs/btrfs").glob("*/devices"))
    for devices in every:
        if (devices / name).is_symlink():
            return devices.parent.name
    return every[0].parent.name if len(every) == 1 else None
