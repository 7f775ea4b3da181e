"""Clocks for the guard that a test turns while it runs: for one process, since a guest shares the machine's.

run as: turned.py FILE [ARGUMENT...]
is hostguardd. FILE holds two native doubles: the seconds by which its wall clock is off, and those by which the clock
of core/clock.py that never jumps is ahead. Timers, minds and commands have the machine's.

libfaketime would do this outside of Python, but under it a thread's time.sleep fails with EINVAL (0.9.10, Debian 12),
and a time namespace does not have this clock.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[2]


class Clock:
    """A context manager: hostguard.service, when it is started in it, has this clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset = self.passed = 0.0

    def __enter__(self) -> Clock:
        self._file.write_bytes(struct.pack("dd", 0, 0))
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
        """Somebody sets the wall clock: it is off by so many seconds from now on."""
        self.offset = offset
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("dd", self.offset, self.passed))

    def let_pass(self, seconds: float) -> None:
        """So much time passes, on both clocks."""
        self.passed += seconds
        self.set(self.offset + seconds)

    def in_ms(self, seconds: float) -> int:
        """What it shows in so many seconds, in ms since the epoch."""
        return int((time.time() + self.offset + seconds) * 1000)


def turn(file: str) -> None:
    """Turn the clocks of this process as the file says."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    wall, steady = time.time, time.clock_gettime_ns

    def offsets() -> tuple[float, float]:
        return struct.unpack("dd", os.pread(fd, 16, 0))

    def ticks(clock: int) -> int:
        passed = offsets()[1] if clock == time.CLOCK_BOOTTIME else 0
        return steady(clock) + int(passed * 1e9)

    time.time = lambda: wall() + offsets()[0]
    time.clock_gettime_ns = ticks


if __name__ == "__main__":
    turn(sys.argv.pop(1))
    from hostguard.hostguardd import main

    main()
