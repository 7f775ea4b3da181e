"""Times and durations as people type them. Pure."""

from __future__ import annotations

import re
from datetime import datetime

import click

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")


def parse_duration(text: str) -> float:
    """Seconds of "90", "90s", "1h30m", "500ms", "2d". Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    seconds, end = 0.0, 0
    while end < len(text):
        part = _PART.match(text, end)
        if part is None:
            raise ValueError(f"{text!r} is no duration; write 90s, 10m, 1h30m or 2d")
        seconds += float(part[1]) * _UNITS[part[2]]
        end = part.end()
    if not text:
        raise ValueError("a duration is missing; write 90s, 10m, 1h30m or 2d")
    return seconds


def parse_when(text: str, now_ms: int) -> int:
    """Ms since the epoch of "+10m", "in 10m" or an ISO 8601 time; without a zone it is local time.

    Raises ValueError.
    """
    text = text.strip()
    for prefix in ("+", "in "):
        if text.startswith(prefix):
            return now_ms + round(parse_duration(text.removeprefix(prefix)) * 1000)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is no time; write +10m or 2026-07-21T16:00:45") from None


def as_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback of an option that is a duration: seconds."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def as_time(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of an option that is a point in time: ms since the epoch."""
    try:
        return None if value is None else parse_when(value, round(datetime.now().timestamp() * 1000))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
