"""Requests of `hostguard top` to the daemon, in a thread: keys work while the daemon does not answer."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hostguard.cli import client
from hostguard.cli.errors import CliError
from hostguard.cli.top.keys import Ask
from hostguard.cli.top.model import View, look, view

EVERY_S = 1.0
READ_S = 5.0  # the daemon answers from memory; if it takes longer, it is in trouble


class Asker(threading.Thread):
    """Requests the status once a second, and sends the requests of keys immediately.

    `answers` holds statuses, a CliError for each that failed, and a message for each key's request.
    `notify` is called in this thread after something was added.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asks: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        self._notify = notify

    def ask(self, ask: Ask) -> None:
        """Send this request next."""
        self._asks.put(ask)

    def run(self) -> None:
        """Run until the process ends."""
        # These are handled by curses, which only the main thread may use.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP, signal.SIGWINCH))
        while True:
            message = None
            with suppress(queue.Empty):
                message = _send(self._asks.get(timeout=EVERY_S))
            if message is None and not self.answers.empty():
                continue  # the terminal accepts no output at present
            try:
                self.answers.put(status())
            except CliError as error:
                self.answers.put(error)
            if message is not None:  # after the status that shows the effect
                self.answers.put(message)
            self._notify()


def status() -> Any:
    """GET /v1/status. Raises CliError."""
    return client.call("GET", "/v1/status", read_s=READ_S)


def _send(ask: Ask) -> str:
    """Send a key's request; the message to show."""
    try:
        client.call(ask.method, "/".join(["/v1", *map(client.quote, ask.path)]), body=ask.body)
        return ask.done
    except CliError as error:
        return error.message


def once(seconds: float = EVERY_S) -> View:
    """The view of two statuses this many seconds apart, so that it has rates. Raises CliError."""
    first = look(status(), time.monotonic())
    time.sleep(seconds)
    second = status()
    return view(second, second["at"], time.monotonic(), first)
