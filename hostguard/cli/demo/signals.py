"""Signals that end the demo between two changes to the host, never during one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """A signal raises KeyboardInterrupt or SystemExit(128 + number), immediately or at the end of `held`."""

    def __init__(self) -> None:
        self._holding = 0
        self._pending: int | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals inside this context."""
        before = {number: signal.signal(number, self._handle) for number in ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals do not interrupt this context."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            self._raise_pending()

    @contextmanager
    def let(self) -> Iterator[None]:
        """Signals may interrupt this context, although it is inside `held`."""
        holding, self._holding = self._holding, 0
        try:
            self._raise_pending()
            yield
        finally:
            self._holding = holding

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending = number
        self._raise_pending()

    def _raise_pending(self) -> None:
        if self._holding or self._pending is None:
            return
        number, self._pending = self._pending, None
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)
