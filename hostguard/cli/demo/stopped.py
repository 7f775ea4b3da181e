"""The third phase: the card stops during the guarded turns, and continues after a while."""

from __future__ import annotations

import time
from pathlib import Path

from hostguard.cli import client
from hostguard.cli.demo import guarded
from hostguard.cli.demo.host import Host
from hostguard.cli.demo.plan import STOP_AFTER_S, WAKES
from hostguard.cli.demo.results import Phase, Stop, felt
from hostguard.cli.demo.signals import Signals
from hostguard.cli.demo.view import View

NAME = "stopped"
BACK_S = 120.0  # for the full cap; after that, the summary reports that it did not come back


def run(host: Host, view: View, signals: Signals, stop_file: Path, seconds: float) -> tuple[Phase, Stop]:
    """Run the phase. The card is stopped while the file `stop_file` exists. Raises CliError, OSError."""
    card = _Card(stop_file, seconds, view)
    said = f"{len(WAKES)} turns again; after {STOP_AFTER_S:g} s the card stops for {seconds:g} s"
    try:
        phase = guarded.run(host, view, signals, NAME, said, card.look)
    finally:
        stop_file.unlink(missing_ok=True)
    return phase, card.result(phase)


class _Card:
    """Stops the card and watches the guard's response. Times are in seconds since the phase's start."""

    def __init__(self, stop_file: Path, seconds: float, view: View) -> None:
        self._file, self._seconds, self._view = stop_file, seconds, view
        self._stopped: float | None = None
        self._going: float | None = None
        self._told: float | None = None
        self._back: float | None = None
        self._cap: int | None = None
        self._answers: list[float] = []

    def look(self, at: float) -> bool:
        """Do what is due; True if all is done. Call it about ten times a second. Raises CliError."""
        if self._stopped is None:
            if at >= STOP_AFTER_S:
                self._file.touch()
                self._stopped = at
                self._view.line(at, "stop", "the card stops: no request completes")
            return False
        if self._going is None and at >= self._stopped + self._seconds:
            self._file.unlink()
            self._going = at
            self._view.line(at, "go", "the card continues")
        began = time.monotonic()
        pressure = client.call("GET", "/v1/status")["pressure"]
        took = time.monotonic() - began
        if self._going is None:
            self._answers.append(took)
            if self._told is None and pressure["level"] == "stalled":
                self._told = at + took
                self._cap = client.call("GET", "/v1/pressure")["cap"]
            return False
        if self._back is None and client.call("GET", "/v1/pressure")["admit"] is None:
            self._back = at
        return self._back is not None or at > self._going + BACK_S

    def result(self, phase: Phase) -> Stop:
        """The guard's response."""
        assert self._stopped is not None
        assert self._going is not None
        told = self._told if self._told is not None else self._going
        return Stop(
            self._stopped,
            self._going,
            None if self._told is None else self._told - self._stopped,
            self._cap,
            sum(turn.started is not None and told < turn.started < self._going for turn in phase.turns),
            felt(self._answers),
            None if self._back is None else self._back - self._going,
        )
