"""Sources of the guarded phases: the guard's events, and the scopes in the kernel."""

from __future__ import annotations

import queue
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from hostguard.cli import client
from hostguard.cli.demo.plan import MINDS, configured
from hostguard.cli.errors import CliError, ConnectionLost
from hostguard.core.units import SLICE, mind_slice
from hostguard.linux.cgroup import ROOT, populated

EVERY_S = 0.05
READY_S = 30.0


class Events:
    """The guard's events since this context was entered. Raises CliError."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._queue: queue.Queue[dict[str, Any] | Exception] = queue.Queue()

    def __enter__(self) -> Events:
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(READY_S):
            raise CliError("hostguard does not answer: see systemctl status hostguard")
        return self

    def __exit__(self, *_: object) -> None:
        pass  # the thread ends with the process: its read cannot be interrupted

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            # During a scan, one scope may follow another. Scopes in two scans lived at the time between them.
            self.most = max(self.most, len(self._look() & self._look()))

    def _look(self) -> set[Path]:
        return {
            scope
            for folder in self._slices
            for scope in folder.glob("hostguard-turn-*.scope")
            if populated(scope)
        }
