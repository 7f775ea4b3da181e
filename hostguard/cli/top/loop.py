"""`hostguard top` at work on a terminal."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from hostguard.cli.errors import CliError
from hostguard.cli.top.ask import Asker
from hostguard.cli.top.draw import away, screen
from hostguard.cli.top.keys import Quit, Ui, press
from hostguard.cli.top.model import Look, View, look, view
from hostguard.cli.top.terminal import Terminal

RATE_S = 0.9  # a rate is over this at least: a look that a key brought is too near to the one before
SAID_S = 5.0  # that the answer to a key is shown
DUMB_S = 10.0  # between two screens where each is printed whole


class Top:
    """What is known, and shown. Times are time.monotonic()."""

    def __init__(self, terminal: Terminal, first: Any) -> None:
        self._terminal = terminal
        self._asker = Asker(terminal.wake)
        self._ui = Ui()
        self._failed: str | None = None
        self._last = self._base = Look(0.0, {})  # rates are since the second one
        self._said_at = 0.0
        self._due = 0.0  # of the next whole screen, where the cursor cannot be moved
        self._look(first)

    def run(self) -> None:
        """Until the person quits. Raises Ended, KeyboardInterrupt."""
        self._asker.start()
        self._show()
        while True:
            for key in self._terminal.pressed():
                self._ui, asked = press(self._ui, key, self._view())
                self._said_at, self._due = time.monotonic(), 0.0
                if isinstance(asked, Quit):
                    return
                if asked is not None:
                    self._asker.ask(asked)
            while not self._asker.answers.empty():
                self._took(self._asker.answers.get())
            if self._terminal.moves or time.monotonic() >= self._due:
                self._show()

    def _took(self, answer: Any) -> None:
        if isinstance(answer, CliError):
            self._failed = answer.message
        elif isinstance(answer, str):
            self._ui = replace(self._ui, said=answer)
            self._said_at, self._due = time.monotonic(), 0.0
        else:
            self._failed = None
            self._look(answer)
        if time.monotonic() - self._said_at > SAID_S:
            self._ui = replace(self._ui, said="")

    def _look(self, status: Any) -> None:
        self._status, self._at, self._mono = status, round(time.time() * 1000), time.monotonic()
        if self._mono - self._last.at >= RATE_S:
            self._base, self._last = self._last, look(status, self._mono)

    def _view(self) -> View:
        slots = max(10, min(60, self._terminal.size()[0] - 20))
        return view(self._status, self._at, self._mono, self._base, self._ui.wanted, slots)

    def _show(self) -> None:
        self._due = time.monotonic() + DUMB_S
        width, height = self._terminal.size()
        lines = screen(self._view(), self._ui, width, height, self._terminal.ink)
        self._terminal.show(lines if self._failed is None else away(lines, self._failed, width))


def run(first: Any) -> None:
    """Show it, `first` being a status, until the person quits. Raises Ended, KeyboardInterrupt."""
    terminal = Terminal()
    with terminal.taken():
        Top(terminal, first).run()
