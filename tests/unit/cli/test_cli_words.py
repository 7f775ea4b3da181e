"""Times and sizes as people type and read them, and text that others wrote, on a terminal."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.cli import render, when

# -- times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("500ms", 0.5),
        ("10m", 600),
        ("1h30m", 5_400),
        ("1h 30m", 5_400),
        ("2d", 172_800),
        (" 1.5h ", 5_400),
    ],
)
def test_durations_as_people_type_them(text: str, seconds: float) -> None:
    assert when.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", " ", "x", "10x", "-5", "10m!", "m", "1h,30m", "inf", "nan", "1e3"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="10m"):
        when.parse_duration(text)


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
    assert when.parse_when(text, 1_000_000_000) == ms


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 7, 21, 16, 0, 45).astimezone()
    assert when.parse_when("2026-07-21T16:00:45", 0) == local.astimezone(UTC).timestamp() * 1000


@pytest.mark.parametrize("text", ["", "10m", "tomorrow", "+", "in", "-10m", "2026-13-01", "9999999999"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="10m"):
        when.parse_when(text, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.04, "0s"),
        (0.25, "0.2s"),
        (9, "9s"),
        (9.9, "9.9s"),
        (9.99, "10s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (60, "1m"),
        (123, "2m 3s"),
        (3_600, "1h"),
        (3_605, "1h"),
        (3_665, "1h 1m"),
        (90_000, "1d 1h"),
        (-5, "-5s"),
    ],
)
def test_durations_as_people_read_them(seconds: float, text: str) -> None:
    assert render.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, None),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_sizes(count: int | None, text: str | None) -> None:
    assert render.size(count) == text


# -- untrusted text on a terminal


@given(st.text())
def test_nothing_that_is_shown_moves_the_cursor(text: str) -> None:
    assert not {unicodedata.category(c) for c in render.safe(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Ünï 日本", "plain Ünï 日本"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udcff", "\\udcff"),
        ("\x9b1m", "\\x9b1m"),
    ],
)
def test_control_characters_are_shown_escaped(text: str, shown: str) -> None:
    assert render.safe(text) == shown


cell = st.text(max_size=30)


@given(st.lists(st.tuples(cell, cell, cell), max_size=5), st.integers(min_value=1, max_value=100))
def test_a_table_fits_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    text = render.table(("ID", "MIND", "DESCRIPTION"), rows, width)
    lines = text.split("\n")
    assert len(lines) == len(rows) + 1
    assert all(render.columns(line) <= width for line in lines)


def test_columns_are_aligned_though_letters_are_wide() -> None:
    text = render.table(("A", "B"), [("日本", "x"), ("ab", "y"), (None, 3)], None)
    assert text == "A     B\n日本  x\nab    y\n      3"


def test_the_widest_cells_are_cut_and_nothing_is_cut_for_a_pipe() -> None:
    rows = [("1", "x" * 50)]
    assert render.table(("ID", "TEXT"), rows, 20).split("\n")[1] == "1   " + "x" * 15 + "…"
    wide_first = [("x" * 50, "1", "why it waits")]
    assert (
        render.table(("MIND", "ID", "NOTE"), wide_first, 30).split("\n")[1]
        == "x" * 11 + "…  1   why it waits"
    )
    assert render.table(("ID", "TEXT"), rows, None).split("\n")[1] == "1   " + "x" * 50


def test_fields_leave_out_what_is_not_known() -> None:
    assert render.fields([("A", 0), ("B", None), ("C", "x\ny")]) == "A: 0\nC: x\\ny"
