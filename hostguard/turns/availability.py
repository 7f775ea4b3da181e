"""The resident minds that are down: their servers refused a connection, and are retried after a pause."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hostguard.core.outcome import backoff


@dataclass(frozen=True, slots=True)
class Down:
    """A mind whose server refused connections `tries` times in a row; `until` is time.monotonic()."""

    text: str
    until: float
    tries: int

    @property
    def left(self) -> float:
        """Seconds left of the pause; it is over at 0 or less."""
        return self.until - time.monotonic()


class Availability:
    """The minds that were down at the last attempt."""

    def __init__(self) -> None:
        self._down: dict[str, Down] = {}

    def note(self, mind: str, text: str) -> None:
        """The mind's server refused the connection; `text` is the reason."""
        tries = self._down[mind].tries + 1 if mind in self._down else 1
        self._down[mind] = Down(text, time.monotonic() + backoff(tries) / 1000, tries)

    def up(self, mind: str) -> bool:
        """The mind accepted or reported something, or must be retried now. False if it was not down."""
        return self._down.pop(mind, None) is not None

    def why(self, mind: str) -> str | None:
        """Why the mind gets no messages now; None if it may get some."""
        known = self._down.get(mind)
        return f"{mind} is down: {known.text}" if known is not None and known.left > 0 else None

    def down(self, mind: str) -> str | None:
        """Why the mind's server refused the last connection; None if it did not."""
        known = self._down.get(mind)
        return None if known is None else known.text

    def up_in(self) -> float | None:
        """Seconds until the next mind that is down is retried."""
        return min((down.left for down in self._down.values() if down.left > 0), default=None)

    def retried(self) -> list[str]:
        """Minds whose pause is over."""
        return [mind for mind, down in self._down.items() if down.left <= 0]
