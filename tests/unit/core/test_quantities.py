"""Lengths of time, points in time and sizes as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from hostguard.core.text import parse_duration, parse_size, parse_when


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("500ms", 0.5),
        ("10m", 600),
        ("1h30m", 5_400),
        ("10min", 600),
        ("1h 30min", 5_400),
        ("1.1h", 3_960),  # no rounding: the configuration wants whole seconds
        ("1.5 min 500 ms", 90.5),
        ("999999999999999999", 1e18),
        ("1h 30m", 5_400),
        ("2d", 172_800),
        (" 1.5h ", 5_400),
    ],
)
def test_durations_as_people_type_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


NO_DURATIONS = [
    "",
    " ",
    "x",
    "10x",
    "-5",
    "10m!",
    "m",
    "1h,30m",
    "inf",
    "nan",
    "1e3",
    "1h 30",
    "30 1h",
    "1.h",
    ".5h",
]


@pytest.mark.parametrize("text", [*NO_DURATIONS, "1 2", "1" * 19, "1,5h", "\u0661s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=f"^invalid length of time {re.escape(repr(text))}: use 90s, "):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("+10m", 1_000_600_000),
        ("+0", 1_000_000_000),
        ("in 1h30m", 1_005_400_000),
        ("2026-07-21T16:00:45Z", 1_784_649_645_000),
        ("2026-07-21T18:00:45.5+02:00", 1_784_649_645_500),
        (" 2026-07-21 16:00:45+00:00 ", 1_784_649_645_000),
    ],
)
def test_times_as_people_type_them(text: str, ms: int) -> None:
    assert parse_when(text, 1_000_000_000) == ms


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 7, 21, 16, 0, 45).astimezone()
    assert parse_when("2026-07-21T16:00:45", 0) == local.astimezone(UTC).timestamp() * 1000


@pytest.mark.parametrize("text", ["", "10m", "tomorrow", "+", "in", "-10m", "2026-13-01", "9999999999"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="10m"):
        parse_when(text, 0)


def test_a_time_of_day_is_the_next_one() -> None:
    now = datetime(2026, 12, 1, 14, 29, 59).timestamp()
    assert parse_when("14:30", round(now * 1000)) == round(now + 1) * 1000
    tomorrow = datetime(2026, 12, 2, 14, 30).timestamp()
    assert parse_when("14:30", round(now + 1) * 1000) == round(tomorrow) * 1000
    assert parse_when("9:05", round(now * 1000)) == round(datetime(2026, 12, 2, 9, 5).timestamp()) * 1000


@pytest.mark.parametrize("text", ["24:00", "14:60", "14:3", "1430"])
def test_no_time_of_day(text: str) -> None:
    with pytest.raises(ValueError, match=f"^invalid time '{text}': use [+]10m, 14:30 or 2026-12-01 14:30$"):
        parse_when(text, 0)


@pytest.mark.parametrize(
    ("text", "base", "count"),
    [
        ("0", 1000, 0),
        ("64", 1024, 64),
        ("6M", 1024, 6 << 20),
        ("6 M", 1000, 6_000_000),
        ("2T", 1000, 2 * 10**12),
    ],
)
def test_sizes(text: str, base: int, count: int) -> None:
    assert parse_size(text, base) == count


@pytest.mark.parametrize("text", ["", "M", "1.5M", "-1", "6 MB", "6m", "1P", "1" * 19])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=f"^invalid size {re.escape(repr(text))}: use .*64M$"):
        parse_size(text, 1024)
