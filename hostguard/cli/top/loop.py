"""`hostguard top` on a terminal."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from hostguard.cli.errors import CliError
from hostguard.cli.top.ask import Asker
from hostguard.cli.top.draw import failed, screen
from hostguard.cli.top.keys import Quit, Ui, press
from hostguard.cli.top.model import Look, View, look, view
from hostguard.cli.top.terminal import Terminal

RATE_S = 0.9  # the shortest span of a rate: the status after a key comes too soon
MESSAGE_S = 5.0  # how long the answer to a key is shown
DUMB_S = 10.0  # between two screens where each is printed whole


class Top:
    """The data and the state of the screen. Times are time.monotonic()."""

    def __init__(self, terminal: Terminal, first: Any) -> None:
        self._terminal = terminal
        self._asker = Asker(terminal.wake)
        self._ui = Ui()
        self._failed: str | None = None
        self._last = self._base = Look(0.0, {})  # rates are since the second one
        self._message_at = 0.0
        self._due = 0.0  # of the next whole screen, where the cursor cannot be moved
        self._look(first)

    def run(self) -> None:
        """Run until q is pressed. Raises Ended, KeyboardInterrupt."""
        self._asker.start()
        self._show()
        while True:
            for key in self._terminal.pressed():
                self._ui, asked = press(self._ui, key, self._view())
                self._message_at, self._due = time.monotonic(), 0.0
                if isinstance(asked, Quit):
                    return
                if asked is not None:
                    self._asker.ask(asked)
            while not self._asker.answers.empty():
                self._take(self._asker.answers.get())
            if self._terminal.moves or time.monotonic() >= self._due:
                self._show()

    def _take(self, answer: Any) -> None:
        if isinstance(answer, CliError):
            self._failed = answer.message
        elif isinstance(answer, str):
            self._ui = replace(self._ui, message=answer)
            self._message_at, self._due = time.monotonic(), 0.0
        else:
            self._failed = None
            self._look(answer)
        if time.monotonic() - self._message_at > MESSAGE_S:
            self._ui = replace(self._ui, message="")

    def _look(self, status: Any) -> None:
        self._status, self._mono = status, time.monotonic()
        if self._mono - self._last.at >= RATE_S:
            self._base, self._last = self._last, look(status, self._mono)

    def _view(self) -> View:
        slots = max(10, min(60, self._terminal.size()[0] - 20))
        return view(self._status, self._status["at"], self._mono, self._base, self._ui.wanted, slots)

    def _show(self) -> None:
        self._due = time.monotonic() + DUMB_S
        width, height = self._terminal.size()
        lines = screen(self._view(), self._ui, width, height, self._terminal.ink)
        self._terminal.show(lines if self._failed is None else failed(lines, self._failed, width))


def run(first: Any) -> None:
    """Show the screen until q is pressed; `first` is a status. Raises Ended, KeyboardInterrupt."""
    terminal = Terminal()
    with terminal.taken():
        Top(terminal, first).run()
