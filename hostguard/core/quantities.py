"""Times and sizes as people write them. All functions raise ValueError with a message for people. Pure."""

from __future__ import annotations

import re

DAY = 86_400  # seconds

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 1000 * DAY}
_PART = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*(ms|s|min|m|h|d)?\s*")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_duration(text: str) -> float:
    """Seconds of a length of time: a number of seconds, or parts with the units ms, s, m or min, h, d."""
    scaled, at, parts, bare = 0, 0, 0, False  # in ms * 10^9: no part is rounded by itself
    whole = text.strip()
    while part := _PART.match(whole, at):
        units, fraction, unit = part.groups()
        scaled += int(units + (fraction or "").ljust(9, "0")) * _UNIT_MS[unit or "s"]
        at, parts, bare = part.end(), parts + 1, bare or unit is None
    if at < len(whole) or not parts or (bare and parts > 1):
        raise ValueError(f"invalid length of time {text!r}: use 90s, 10min, 1.5h or 1h 30min")
    return scaled / 10**12


def parse_when(text: str, now_ms: int) -> int:
    """Ms since the epoch of "+10m", "in 10m", "14:30" (the next) or an ISO 8601 time, by default local."""
    from datetime import datetime, timedelta

    text = text.strip()
    for prefix in ("+", "in "):
        if text.startswith(prefix):
            return now_ms + round(parse_duration(text.removeprefix(prefix)) * 1000)
    try:
        if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}", text):
            now = datetime.fromtimestamp(now_ms / 1000)
            hour, minute = map(int, text.split(":"))
            time = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return round((time if time > now else time + timedelta(days=1)).timestamp() * 1000)
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"invalid time {text!r}: use +10m, 14:30 or 2026-12-01 14:30") from None


def parse_size(text: str, base: int) -> int:
    """A number with an optional suffix K, M, G or T, each `base` times the one before."""
    match = re.fullmatch(r"([0-9]{1,18})\s*([KMGT]?)", text)
    if not match:
        raise ValueError(f"invalid size {text!r}: use a number, or one with K, M, G or T, such as 64M")
    return int(match[1]) * int(base ** _POWER[match[2]])
