"""A wall clock for the guard that a test turns while it runs: for one process, since a guest shares the machine's.

run as: turned.py FILE [ARGUMENT...]
is hostguardd. FILE holds the seconds by which its clock is off, as a native double. The clock that never jumps stays
as it is, and minds and commands have the machine's.

libfaketime would do this outside of Python, but under it a thread's time.sleep fails with EINVAL (0.9.10, Debian 12),
and a time namespace does not have this clock.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[2]


class Clock:
    """A context manager: hostguard.service, when it is started in it, has this clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset = 0.0

    def __enter__(self) -> Clock:
        self._file.write_bytes(struct.pack("d", 0))
        # Only here: the guard that runs us needs none of it. For mypy it is tests.rig.guard.
        from guard import drop_in  # type: ignore[import-not-found]

        self._drop_in = drop_in(
            f"ExecStart=\nExecStart={sys.executable} {__file__} {self._file}\n"
            f"Environment=PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1"
        )
        self._drop_in.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop_in.__exit__(kind, error, trace)

    def set(self, offset: float) -> None:
        """Let it be off by so many seconds from now on."""
        self.offset = offset
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("d", offset))

    def in_ms(self, seconds: float) -> int:
        """What it shows in so many seconds, in ms since the epoch."""
        return int((time.time() + self.offset + seconds) * 1000)


def turned(real: Callable[[], float], file: str) -> Callable[[], float]:
    """`real`, off by what the file says."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)

    def now() -> float:
        offset: float = struct.unpack("d", os.pread(fd, 8, 0))[0]
        return real() + offset

    return now


if __name__ == "__main__":
    time.time = turned(time.time, sys.argv.pop(1))
    from hostguard.daemon import main

    main()
