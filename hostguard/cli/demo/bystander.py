"""A bystander process, which measures how the turns slow the device."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from hostguard.cli.demo.results import Write
from hostguard.cli.demo.writer import EVERY_S

END_S = 60.0  # its last write may wait for everything written before


class Bystander:
    """A separate process (writer.py), so that only the device delays it. Raises OSError."""

    def __init__(self, file: Path) -> None:
        self._writes: list[tuple[float, float]] = []
        self._process = subprocess.Popen(
            # Isolated (-I): a demo run by root must not import from the current directory.
            [sys.executable, "-I", str(Path(__file__).with_name("writer.py")), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # so that Ctrl-C reaches only the demo, which ends it
        )
        self._reader = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        """Let it start to write."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there are no writes, which is reported
            self._process.stdin.write("go\n")
        self._reader.start()

    def delay(self, now: float) -> float | None:
        """The duration of its last write or, if longer, that of the running one so far, in seconds.

        `now` is in seconds since the epoch. None before the first write.
        """
        if not self._writes:
            return None
        at, took = self._writes[-1]
        return max(took, now - at - max(took, EVERY_S))

    def end(self, start: float) -> tuple[Write, ...]:
        """Let it finish its write; all writes, with times since `start` (seconds since the epoch)."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(END_S)
        self.kill()
        return tuple(Write(at - start, took) for at, took in self._writes)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        with self._process:  # closes its pipes and waits
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.readline()  # "ready"
        for line in self._process.stdout:
            at, took = line.split()
            self._writes.append((float(at), float(took)))
