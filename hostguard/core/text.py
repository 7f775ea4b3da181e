"""Values as text for people, and back. Pure, except that `clock` and `parse_when` ask for the time zone.

Names and texts come from minds and from anybody who may send: whatever could move the cursor or change
the writing direction is shown escaped.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress

DAY = 86_400  # seconds
DIGITS_MAX = 18  # of a number: below 2^63, which D-Bus and SQLite can hold

_NARROWEST = 4  # columns; below this a cell says nothing
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 1000 * DAY}
_PART = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*(ms|s|min|m|h|d)?\s*")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def safe(text: object) -> str:
    r"""`text` on one line, with what is not printable as \xNN or \uNNNN."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text)
    )


def columns(text: str) -> int:
    """Terminal columns of a text that is already safe."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def cut(text: str, width: int) -> str:
    """`text` in at most `width` columns; "…" at the end if it was cut."""
    if columns(text) <= width:
        return text
    kept, used = [], 1
    for char in text:
        used += columns(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept) + "…"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], width: int | None) -> str:
    """Aligned columns under headers; the widest is cut first until all fit `width` (None: no limit)."""
    cells = [list(headers), *([safe("" if cell is None else cell) for cell in row] for row in rows)]
    widths = [max(columns(row[i]) for row in cells) for i in range(len(headers))]
    if width is not None:
        excess = sum(widths) + 2 * (len(widths) - 1) - width
        while excess > 0 and max(widths) > _NARROWEST:
            widths[widths.index(max(widths))] -= 1
            excess -= 1

    def padded(cell: str, wide: int) -> str:
        text = cut(cell, wide)
        return text + " " * (wide - columns(text))

    lines = ["  ".join(map(padded, row, widths)).rstrip() for row in cells]
    return "\n".join(lines if width is None else [cut(line, width) for line in lines])


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """One "Key: value" line for each value that is not None."""
    return "\n".join(f"{key}: {safe(value)}" for key, value in pairs if value is not None)


def duration(seconds: float) -> str:
    """The largest unit and the next, as in "2m 3s"; below ten seconds with one decimal."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    rest = round(seconds)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        parts.append(f"{count}{unit}" if count else "")
    first = next(i for i, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)


def span(ms: int) -> str:
    """A length of time of `ms` milliseconds in words, as in "1 h 2 min 3 s"."""
    seconds = max(0, ms) // 1000
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes)
    return " ".join([*parts, f"{seconds} s"])


def ms(value: float | None) -> str | None:
    """A duration given in ms; None stays None."""
    return None if value is None else duration(value / 1000)


def clock(at_ms: int | None) -> str | None:
    """Local time of ms since the epoch; None stays None."""
    return None if at_ms is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


def size(count: int | None) -> str | None:
    """Bytes in binary units; None stays None."""
    if count is None:
        return None
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


# -- as people write them: these raise ValueError with a message for people


def whole(text: str) -> int:
    """A whole number, 0 or more, of at most DIGITS_MAX digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise ValueError(f"invalid number {text!r:.100}: use 0 or more, with at most {DIGITS_MAX} digits")
    return int(text)


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


def parse_since(text: str, now_ms: int) -> float:
    """Seconds since "90m" ago, "today" or "yesterday" (midnight), or an ISO 8601 time, by default local."""
    from datetime import datetime, timedelta

    with suppress(ValueError):
        return parse_duration(text)
    midnight = datetime.fromtimestamp(now_ms / 1000).replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"today": midnight, "yesterday": midnight - timedelta(days=1)}
    try:
        since = now_ms / 1000 - (named.get(text) or datetime.fromisoformat(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"invalid time {text!r:.100}: use 24h, yesterday or 2026-12-01") from None
    if since <= 0:
        raise ValueError(f"{text} is not in the past")
    return since


def parse_size(text: str, base: int) -> int:
    """A number with an optional suffix K, M, G or T, each `base` times the one before."""
    match = re.fullmatch(r"([0-9]{1,18})\s*([KMGT]?)", text)
    if not match:
        raise ValueError(f"invalid size {text!r}: use a number, or one with K, M, G or T, such as 64M")
    return int(match[1]) * int(base ** _POWER[match[2]])
