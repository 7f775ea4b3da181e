"""Makes a device of the device mapper, as dmsetup(8) does, by ioctls of linux/dm-ioctl.h. It runs in the guest.

mapper.py NAME UUID SECTORS TARGET PARAMETER...    makes /dev/dm-N and, as udev does, the link /dev/mapper/NAME
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

CREATE, SUSPEND, LOAD = (
    3,
    6,
    9,
)  # DM_DEV_CREATE, DM_DEV_SUSPEND (which resumes, without a flag), DM_TABLE_LOAD
HEAD = struct.Struct("=3I7IQ128s129s7x")
SPEC = struct.Struct("=QQiI16s")


def ask(control: int, command: int, name: str, uuid: str = "", table: bytes = b"") -> int:
    """One ioctl; the device's number."""
    size = HEAD.size + len(table)
    head = HEAD.pack(4, 0, 0, size, HEAD.size, bool(table), 0, 0, 0, 0, 0, name.encode(), uuid.encode())
    answer = bytearray(head + table)
    fcntl.ioctl(control, 0xC000_FD00 | HEAD.size << 16 | command, answer)
    number: int = HEAD.unpack_from(answer)[10]
    return number


def main(name: str, uuid: str, sectors: str, target: str, *parameters: str) -> None:
    text = " ".join(parameters).encode() + b"\0"
    text += bytes(-(SPEC.size + len(text)) % 8)
    table = SPEC.pack(0, int(sectors), 0, SPEC.size + len(text), target.encode()) + text
    control = os.open("/dev/mapper/control", os.O_RDWR)
    number = ask(control, CREATE, name, uuid)
    ask(control, LOAD, name, table=table)
    ask(control, SUSPEND, name)
    link = Path("/dev/mapper", name)
    link.unlink(missing_ok=True)
    link.symlink_to(f"../dm-{os.minor(number)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
