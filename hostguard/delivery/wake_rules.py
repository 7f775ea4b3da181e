"""Whether a message wakes a sleeping mind, waits, or is skipped. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from hostguard.core.model import WakeOn
from hostguard.core.names import matches, says

Answer = Literal["queue", "skip", "wake"]


def on_message(while_sleeping: str, wake_on: WakeOn, mind: str, payload: Mapping[str, Any]) -> Answer:
    """Queue it until the mind wakes, skip it, or queue it and wake the mind.

    `while_sleeping` is the message's own wish: skip, queue, trigger-wake, or "" for the mind's triggers.
    """
    wishes: dict[str, Answer] = {"skip": "skip", "trigger-wake": "wake", "queue": "queue"}
    if while_sleeping in wishes:
        return wishes[while_sleeping]
    channel, sender = payload.get("channel"), payload.get("sender")
    wakes = (
        (wake_on.dm and payload.get("isDM") is True)
        or (isinstance(channel, str) and any(matches(glob, channel) for glob in wake_on.channels))
        or (isinstance(sender, str) and any(matches(glob, sender) for glob in wake_on.senders))
        or (wake_on.mention and says(f"@{mind}", text_of(payload.get("content"))))
    )
    return "wake" if wakes else "queue"


def text_of(content: Any) -> str:
    """The text of a message's content, which is a text, a list of parts, or any other JSON value."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return json.dumps(content, ensure_ascii=False)
