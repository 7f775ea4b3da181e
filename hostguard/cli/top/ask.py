"""What `hostguard top` asks the daemon, in a thread of its own: keys are heard while it does not answer."""

from __future__ import annotations

import queue
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
READ_S = 5.0  # the daemon answers from memory: longer, and it is in trouble


class Asker(threading.Thread):
    """Asks for the status once a second, and for what keys want at once.

    `answers` has statuses, or a CliError for one that did not come, and a str for each key's request. `told`
    is called, in this thread, when there are more.
    """

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asks: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        self._told = told

    def ask(self, ask: Ask) -> None:
        """Have this asked next."""
        self._asks.put(ask)

    def run(self) -> None:
        """Until the process ends."""
        while True:
            said = None
            with suppress(queue.Empty):
                said = _asked(self._asks.get(timeout=EVERY_S))
            if said is None and not self.answers.empty():
                continue  # the terminal takes no more: nobody looks
            try:
                self.answers.put(status())
            except CliError as error:
                self.answers.put(error)
            if said is not None:  # after the status that shows it
                self.answers.put(said)
            self._told()


def status() -> Any:
    """GET /v1/status. Raises CliError."""
    return client.call("GET", "/v1/status", read_s=READ_S)


def _asked(ask: Ask) -> str:
    """What to say once it was answered."""
    try:
        client.call(ask.method, "/".join(["/v1", *map(client.quote, ask.path)]), body=ask.body)
        return ask.done
    except CliError as error:
        return error.message


def once(seconds: float = EVERY_S) -> View:
    """What is shown, from two looks so far apart, so that there are rates. Raises CliError."""
    first = look(status(), time.monotonic())
    time.sleep(seconds)
    second = status()
    return view(second, round(time.time() * 1000), time.monotonic(), first)
