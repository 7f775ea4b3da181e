"""Keeps the guard in memory: a page fault on a stalled disk would stop the event loop.

A page fault of any thread that holds Python's lock stops all threads, so it is not enough to keep disk access
off the event loop. By mlock(2) with ctypes: neither Python nor a library in Debian has it.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path

# Of asm-generic/mman.h.
_CURRENT, _FUTURE, _ONFAULT = 1, 2, 4
_CAP_IPC_LOCK = 14  # of linux/capability.h

log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


async def try_lock() -> None:
    """Lock in a thread; if that is not allowed, the journal says what it means."""
    try:
        await asyncio.to_thread(lock)
    except OSError as error:
        text = "memory is not locked (%s): while the disk stalls, the guard may stall, too"
        log.warning(text, error.strerror)


def lock() -> None:
    """Lock the pages in memory, those that come in later, and the whole program and its libraries.

    Call it again after modules were imported. Memory that is only reserved (of the 8 MiB of a thread's stack
    some 100 KiB are used) stays free. Blocks: reads from the disk. Raises OSError.
    """
    if not _unlimited():
        # Below a limit mlockall would succeed, and a later allocation fail.
        raise OSError(errno.EPERM, "LimitMEMLOCK=infinity or CAP_IPC_LOCK is needed")
    if _libc.mlockall(_CURRENT | _FUTURE | _ONFAULT):
        raise _error()
    for address, size in _from_files():
        failed = _libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
        if failed and ctypes.get_errno() != errno.ENOMEM:  # unmapped in the meantime
            raise _error()


def _unlimited() -> bool:
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        return True
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("\nCapEff:")[2].split(maxsplit=1)[0], 16) >> _CAP_IPC_LOCK & 1)


def _from_files() -> Iterator[tuple[int, int]]:
    """(address, bytes) of each mapping of the program's or a library's file."""
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        span, rights, _offset, _device, inode, *_ = line.split(maxsplit=5)
        if inode != "0" and rights.startswith("r") and rights.endswith("p"):  # SQLite's are shared
            first, _, last = span.partition("-")
            yield int(first, 16), int(last, 16) - int(first, 16)


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
