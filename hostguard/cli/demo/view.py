"""Output while the demo runs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence

import click

from hostguard.cli.demo.draw import WIDTH, Ink, cut_with, ink, seconds, timeline
from hostguard.cli.demo.plan import MINDS
from hostguard.cli.demo.results import Phase, Turn

FRAME_S = 0.2
SCALE_S = 5.0  # the initial length of a growing timeline
HEIGHT = len(MINDS) + 5  # lines of a timeline with the text around it


class View:
    """No output, for --json."""

    def phase(self, name: str, said: str) -> None:
        """Show the start of a phase."""

    def line(self, at: float, word: str, said: str) -> None:
        """Show an event, `at` seconds from the start of the phase."""

    def frame(self, turns: Sequence[Turn], now: float, felt: float | None) -> None:
        """Show the turns, `now` seconds from the start; `felt` is the bystander's delay."""

    def over(self, phase: Phase) -> None:
        """Show the end of a phase."""


class Lines(View):
    """One line per event."""

    def phase(self, name: str, said: str) -> None:
        """A heading."""
        click.echo(f"{name}: {said}")

    def line(self, at: float, word: str, said: str) -> None:
        """The event's line."""
        click.echo(f"{max(at, 0.0):7.2f} s  {word:<5}  {said}")

    def over(self, phase: Phase) -> None:
        """The last line."""
        click.echo(f"{phase.total:7.2f} s  over   the bystander's slowest write: {seconds(phase.felt.max)}\n")


class Screen(View):
    """A growing timeline, on a terminal."""

    def __init__(self, width: int, with_: Ink) -> None:
        self._width, self._ink = width, with_
        self._drawn = 0  # lines that the next frame replaces
        self._due = 0.0
        self._scale = SCALE_S

    def phase(self, name: str, said: str) -> None:
        """A heading."""
        click.echo(cut_with(f"{name.capitalize()}: {said}", self._width, self._ink))

    def frame(self, turns: Sequence[Turn], now: float, felt: float | None) -> None:
        """Replace the previous frame, a few times a second."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + FRAME_S
        runs = sum(turn.started is not None and turn.ended is None for turn in turns)
        waits = sum(turn.started is None and turn.ended is None for turn in turns)
        said = f"{runs} running, {waits} waiting; the bystander's write takes {seconds(felt)}"
        lines = timeline(turns, now, max(self._scale, now), self._width, self._ink)
        self._draw([*lines, cut_with(said, self._width, self._ink)])

    def over(self, phase: Phase) -> None:
        """Leave one line: the summary shows the timeline again."""
        self._scale = max(self._scale, phase.total)
        self._draw([f"  done after {seconds(phase.total)}"])
        self._drawn = 0

    def _draw(self, lines: Sequence[str]) -> None:
        over = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""  # up to its first line; clear below
        print(over + "\n".join(lines), flush=True)
        self._drawn = len(lines)


def choose(as_json: bool) -> tuple[View, int, Ink]:
    """The view for stdout, with the width and the characters of the summary."""
    with_ = ink(sys.stdout.encoding)
    size = shutil.get_terminal_size()
    if as_json:
        return View(), WIDTH, with_
    if not sys.stdout.isatty():
        return Lines(), WIDTH, with_
    if os.environ.get("TERM", "dumb") == "dumb" or size.lines < HEIGHT:
        return Lines(), size.columns, with_
    return Screen(size.columns, with_), size.columns, with_
