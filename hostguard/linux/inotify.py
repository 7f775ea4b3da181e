"""Changes in folders, by inotify(7), with ctypes, for the event loop.

Debian's libraries do not fit: watchdog runs two threads for each folder, python3-inotify wakes up each second
and cannot be awaited, and pyinotify needs asyncore, which Python 3.12 removed.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Of linux/inotify.h.
ATTRIB = 0x4  # the rights of the folder or an entry, among others
CLOSE_WRITE = 0x8
ENTRIES = 0x40 | 0x80 | 0x100 | 0x200  # an entry was moved from, moved to, created, deleted
OVERFLOW = 0x4000  # events were lost
IGNORED = 0x8000  # the folder is gone, or no longer watched
FLAGS = 0x0100_0000 | 0x2000_0000  # of each watch: only a folder, and in addition to what is watched there
_EVENT = struct.Struct("iIII")
_READ = 64 << 10  # bytes

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the entry `name` of a folder, "" for the folder itself; `mask` has its kinds."""

    watch: int
    mask: int
    name: str


class Inotify:
    """An inotify instance; `fd` is readable when something changed. Raises OSError if there are too many."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: an instance that another process made."""
        self.fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), None) if fd is None else fd

    def watch(self, folder: str, mask: int) -> int:
        """Watch a folder and return the number of the watch. Blocks on the disk. Raises OSError."""
        flags = ctypes.c_uint32(mask | FLAGS)
        return _checked(_libc.inotify_add_watch(self.fd, os.fsencode(folder), flags), folder)

    def unwatch(self, watch: int) -> None:
        """End a watch, if it still exists."""
        _libc.inotify_rm_watch(self.fd, watch)

    def read(self) -> Iterator[Change]:
        """The changes of one read; more may follow immediately."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, _cookie, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            yield Change(watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0")))
            at += length

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)


def _checked(answer: int, folder: str | None) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), folder)
    return answer
