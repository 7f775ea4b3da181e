"""When the messages of a session's batch go out. Pure.

The rules are Volute's: after a pause in the talk while the session is idle; after the longest wait even while
it is busy; at once for a trigger, for many messages, or when somebody new speaks in a channel of the turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hostguard.core.payload import told
from hostguard.delivery.routes import Batch

MESSAGES_MAX = 50  # Volute's own: as many go out at once


@dataclass(frozen=True, slots=True)
class Item:
    """A message that waits. `at`: when it came, in seconds of the monotonic clock."""

    id: int
    at: float
    batch: Batch
    size: int = 0  # bytes of its payload
    urgent: bool = False  # it has a trigger, or `interrupt`
    interrupt: bool = False  # somebody new spoke: it goes into the running turn at once
    sender: str | None = None
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """Whether the session has a turn. `idle_since` counts only while it has none."""

    busy: bool = False
    idle_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Heard:
    """The last messages that the session's running turn got: their senders and channels, and when."""

    senders: frozenset[str]
    channels: frozenset[str]
    at: float


@dataclass(frozen=True, slots=True)
class Flush:
    """The first `count` messages go out now."""

    count: int
    interrupt: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing goes out before `until`; None: nothing waits."""

    until: float | None


def decide(items: Sequence[Item], session: Session, now: float, bytes_max: int) -> Flush | Wait:
    """Whether the messages, in order of id, go out now. One larger than `bytes_max` goes alone."""
    if not items:
        return Wait(None)
    count = _fitting(items, bytes_max)
    longest = min(item.at + item.batch.max_wait_s for item in items)
    newest = max(items, key=lambda item: item.at)
    quiet = max(newest.at, session.idle_since) + newest.batch.debounce_s
    due = longest if session.busy else min(longest, quiet)
    full = count < len(items) or count == MESSAGES_MAX
    if full or due <= now or any(item.urgent for item in items):
        return Flush(count, any(item.interrupt for item in items[:count]))
    return Wait(due)


def _fitting(items: Sequence[Item], bytes_max: int) -> int:
    count = total = 0
    for item in items[:MESSAGES_MAX]:
        total += item.size
        if count and total > bytes_max:
            break
        count += 1
    return count


def triggered(batch: Batch, text: str) -> bool:
    """True if a message with this text sends the whole batch at once."""
    folded = text.casefold()
    return any(trigger.casefold() in folded for trigger in batch.triggers)


def interrupts(item: Item, heard: Heard | None, interrupted: float | None) -> bool:
    """True if a message that just came goes into the running turn at once. `heard` is None if none runs.

    `interrupted`: when that last happened in the session.
    """
    return (
        heard is not None
        and item.sender is not None
        and item.sender not in heard.senders
        and item.channel in heard.channels
        and item.at - heard.at < item.batch.max_wait_s
        and (interrupted is None or item.at - interrupted > item.batch.debounce_s)
    )


def gathered(payloads: Sequence[bytes], interrupt: bool) -> dict[str, Any]:
    """The payload of a batch's row, Volute's `batch`: the messages by channel."""
    channels: dict[str, list[Any]] = {}
    for raw in payloads:
        payload = told(json.loads(raw))
        channels.setdefault(payload["channel"], []).append(payload)
    return {"batch": {"channels": channels}, "interrupt": interrupt}
