"""Events: what happens, reported to the journal, the counters and the readers of the API."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from hostguard.core.clock import now_ms
from hostguard.systemd.journal import Journal

Json = dict[str, Any]
KEPT = 1000  # events in memory, for a client that reconnects
BEHIND_MAX = 1000  # a client that reads slower than this loses its connection, not our memory


class Event(StrEnum):
    """Types of events. Each but ACCEPTED is one journal line."""

    ACCEPTED = "accepted"
    HELD = "held"
    HOLD_ENDED = "hold_ended"
    STARTED = "started"
    ENDED = "ended"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    PAUSED = "paused"
    RESUMED = "resumed"
    LIMIT = "limit"
    RELOADED = "reloaded"
    FOLDED = "folded"
    MISSED = "missed"  # times of a schedule
    SKIPPED = "skipped"  # times of a schedule: the message of an earlier one has not begun
    ASLEEP = "asleep"
    AWAKE = "awake"
    PRESSURE = "pressure"  # the level or its cap has changed
    FROZEN = "frozen"
    THAWED = "thawed"
    OUTSIDE = "outside"  # processes that a turn left outside of its scope
    PORT_TAKEN = "port_taken"  # somebody else listens on the port of a mind
    ENFORCEMENT = "enforcement"  # how far a limit is applied has changed


# Stable for ever, documented in hostguard-api(7): journalctl MESSAGE_ID=...
MESSAGE_IDS = {
    Event.HELD: "6b0e4d2f0a5c4b7c9d1f3a8e52c70411",
    Event.HOLD_ENDED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70412",
    Event.STARTED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70413",
    Event.ENDED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70414",
    Event.FAILED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70415",
    Event.DEAD: "6b0e4d2f0a5c4b7c9d1f3a8e52c70416",
    Event.CANCELLED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70417",
    Event.EXPIRED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70418",
    Event.PAUSED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70419",
    Event.RESUMED: "6b0e4d2f0a5c4b7c9d1f3a8e52c7041a",
    Event.LIMIT: "6b0e4d2f0a5c4b7c9d1f3a8e52c7041b",
    Event.RELOADED: "6b0e4d2f0a5c4b7c9d1f3a8e52c7041c",
    Event.FOLDED: "6b0e4d2f0a5c4b7c9d1f3a8e52c7041d",
    Event.MISSED: "6b0e4d2f0a5c4b7c9d1f3a8e52c7041e",
    Event.ASLEEP: "6b0e4d2f0a5c4b7c9d1f3a8e52c7041f",
    Event.AWAKE: "6b0e4d2f0a5c4b7c9d1f3a8e52c70420",
    Event.PRESSURE: "6b0e4d2f0a5c4b7c9d1f3a8e52c70421",
    Event.FROZEN: "6b0e4d2f0a5c4b7c9d1f3a8e52c70422",
    Event.THAWED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70423",
    Event.ENFORCEMENT: "6b0e4d2f0a5c4b7c9d1f3a8e52c70424",
    Event.SKIPPED: "6b0e4d2f0a5c4b7c9d1f3a8e52c70425",
    Event.OUTSIDE: "6b0e4d2f0a5c4b7c9d1f3a8e52c70426",
    Event.PORT_TAKEN: "6b0e4d2f0a5c4b7c9d1f3a8e52c70427",
}
_COMMON = ("id", "at", "type", "text")  # to all events
# Of syslog: error, warning, notice; all others info.
_PRIORITY = {
    Event.DEAD: 3,
    Event.PORT_TAKEN: 3,
    Event.FAILED: 4,
    Event.MISSED: 4,
    Event.ENFORCEMENT: 4,
    Event.OUTSIDE: 4,
    Event.PRESSURE: 5,
    Event.SKIPPED: 5,
}


class Events:
    """Passes each event to all sinks, in their order; none of them waits for anything.

    An event has id, at (ms since the epoch), type and text, and the fields of its type.
    """

    def __init__(self, *sinks: Callable[[Json], None]) -> None:
        self.sinks = sinks
        # Above all ids of an earlier run, so that a client's Last-Event-ID stays valid.
        self._last = now_ms()

    def emit(self, type_: Event, text: str, **fields: Any) -> None:
        """Report an event; fields that are None are left out."""
        self._last += 1
        event = {"id": self._last, "at": now_ms(), "type": str(type_), "text": text}
        event |= {name: value for name, value in fields.items() if value is not None}
        for sink in self.sinks:
            sink(event)


class RecentEvents:
    """Keeps the latest events in memory, and passes new ones to any number of readers."""

    def __init__(self) -> None:
        self._kept: deque[Json] = deque(maxlen=KEPT)
        self._readers: set[asyncio.Queue[Json]] = set()

    def take(self, event: Json) -> None:
        """Keep an event and pass it on."""
        self._kept.append(event)
        for reader in self._readers:
            if reader.qsize() < BEHIND_MAX:
                reader.put_nowait(event)

    def kept(self, after: int) -> list[Json]:
        """Events in memory with an id above `after`."""
        return [event for event in self._kept if event["id"] > after]

    @contextmanager
    def reader(self) -> Iterator[asyncio.Queue[Json]]:
        """A queue that receives every event from now on; full (BEHIND_MAX) = some were lost."""
        queue: asyncio.Queue[Json] = asyncio.Queue()
        self._readers.add(queue)
        try:
            yield queue
        finally:
            self._readers.discard(queue)


def to_journal(journal: Journal, event: Json) -> None:
    """Write an event that has a MESSAGE_ID to the journal, each field as HOSTGUARD_<NAME>."""
    type_ = Event(event["type"])
    if type_ in MESSAGE_IDS:
        own = {f"HOSTGUARD_{key.upper()}": str(value) for key, value in event.items() if key not in _COMMON}
        journal.send(event["text"], _PRIORITY.get(type_, 6), {**own, "MESSAGE_ID": MESSAGE_IDS[type_]})
