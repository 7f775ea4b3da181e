"""What the demo watches: the bystander's writes, the guard's events, and the scopes in the kernel."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from hostguard.cli import client
from hostguard.cli.demo.plan import MINDS, configured
from hostguard.cli.demo.results import Write
from hostguard.cli.demo.writer import EVERY_S as WRITE_EVERY_S
from hostguard.cli.errors import CliError, ConnectionLost
from hostguard.core.units import SLICE, mind_slice
from hostguard.linux.cgroup import ROOT, populated

EVERY_S = 0.05
READY_S = 30.0
END_S = 60.0  # the bystander's last write may wait for everything written before


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
        return max(took, now - at - max(took, WRITE_EVERY_S))

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


class Events:
    """The guard's events from now on. Raises CliError."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._queue: queue.Queue[dict[str, Any] | Exception] = queue.Queue()
        # It ends with the process: its read cannot be interrupted.
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(READY_S):
            raise CliError("hostguard does not answer: see systemctl status hostguard")

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next event, or None after this time. Raises CliError if there will be none."""
        try:
            event = self._queue.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(event, Exception):
            raise event
        return event

    def _read(self) -> None:
        try:
            with client.request("GET", "/v1/events") as answer:
                lines = answer.lines()
                next(lines, None)  # ": ready"
                self._ready.set()
                for event in client.server_sent(lines):
                    self._queue.put(event)
            raise ConnectionLost()
        except Exception as error:
            self._queue.put(error)
            self._ready.set()


class Scopes:
    """Counts the demo's live scopes in the kernel, independently of the guard, inside this context."""

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Scopes:
        above = subprocess.run(
            ["systemctl", "show", "--property=ControlGroup", "--value"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        root = ROOT / above.lstrip("/") / SLICE
        self._slices = [root / mind_slice(configured(mind)) for mind in MINDS]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            # During a scan, one scope may follow another. Scopes in two scans lived at the time between them.
            self.most = max(self.most, len(self._look() & self._look()))

    def _look(self) -> set[Path]:
        scopes = (scope for folder in self._slices for scope in folder.glob("hostguard-turn-*.scope"))
        return {scope for scope in scopes if populated(scope)}
