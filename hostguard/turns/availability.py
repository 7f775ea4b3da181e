"""The resident minds that are down: their servers refused a connection, or somebody else took it.

They are retried after a pause.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from hostguard.core.outcome import backoff
from hostguard.telemetry.events import Event, Events


@dataclass(frozen=True, slots=True)
class Down:
    """A mind whose server refused connections `tries` times in a row; `until` is time.monotonic().

    `taken`: somebody else listens on its port.
    """

    text: str
    until: float
    tries: int
    taken: bool

    @property
    def left(self) -> float:
        """Seconds left of the pause; it is over at 0 or less."""
        return self.until - time.monotonic()


class Availability:
    """The minds that were down at the last attempt."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._down: dict[str, Down] = {}

    def note(self, mind: str, text: str, taken: bool = False) -> None:
        """The mind's server refused the connection, or is not the one that listens; `text` is the reason."""
        before = self._down.get(mind)
        tries = before.tries + 1 if before is not None else 1
        self._down[mind] = Down(text, time.monotonic() + backoff(tries) / 1000, tries, taken)
        if taken and (before is None or before.text != text):
            self._events.emit(Event.PORT_TAKEN, f"{mind} gets no messages: {text}", mind=mind, reason=text)

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

    def taken(self, mind: str) -> bool:
        """True if somebody else listened on the mind's port at the last attempt."""
        known = self._down.get(mind)
        return known is not None and known.taken

    def up_in(self) -> float | None:
        """Seconds until the next mind that is down is retried."""
        return min((down.left for down in self._down.values() if down.left > 0), default=None)

    def retried(self) -> list[str]:
        """Minds whose pause is over."""
        return [mind for mind, down in self._down.items() if down.left <= 0]
