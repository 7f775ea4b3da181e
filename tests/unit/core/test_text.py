"""Times and sizes as people read them, and text that others wrote, on a terminal."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.core import text as shown
from hostguard.core.text import whole


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
    assert shown.duration(seconds) == text


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
    assert shown.size(count) == text


# -- untrusted text on a terminal


@given(st.text())
def test_nothing_that_is_shown_moves_the_cursor(text: str) -> None:
    assert not {unicodedata.category(c) for c in shown.safe(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain Ünï 日本", "plain Ünï 日本"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udcff", "\\udcff"),
        ("\x9b1m", "\\x9b1m"),
    ],
)
def test_control_characters_are_shown_escaped(text: str, escaped: str) -> None:
    assert shown.safe(text) == escaped


cell = st.text(max_size=30)


@given(st.lists(st.tuples(cell, cell, cell), max_size=5), st.integers(min_value=1, max_value=100))
def test_a_table_fits_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    text = shown.table(("ID", "MIND", "DESCRIPTION"), rows, width)
    lines = text.split("\n")
    assert len(lines) == len(rows) + 1
    assert all(shown.columns(line) <= width for line in lines)


def test_columns_are_aligned_though_letters_are_wide() -> None:
    text = shown.table(("A", "B"), [("日本", "x"), ("ab", "y"), (None, 3)], None)
    assert text == "A     B\n日本  x\nab    y\n      3"


def test_the_widest_cells_are_cut_and_nothing_is_cut_for_a_pipe() -> None:
    rows = [("1", "x" * 50)]
    assert shown.table(("ID", "TEXT"), rows, 20).split("\n")[1] == "1   " + "x" * 15 + "…"
    wide_first = [("x" * 50, "1", "why it waits")]
    assert (
        shown.table(("MIND", "ID", "NOTE"), wide_first, 30).split("\n")[1] == "x" * 11 + "…  1   why it waits"
    )
    assert shown.table(("ID", "TEXT"), rows, None).split("\n")[1] == "1   " + "x" * 50


def test_fields_leave_out_what_is_not_known() -> None:
    assert shown.fields([("A", 0), ("B", None), ("C", "x\ny")]) == "A: 0\nC: x\\ny"


@pytest.mark.parametrize("text", ["0", "17", "9" * 18])
def test_a_whole_number(text: str) -> None:
    assert whole(text) == int(text)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "9" * 19, "9" * 5000, "²", "٣", " 1", "+1", "1_0"])
def test_what_is_no_whole_number_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match="invalid number") as refusal:
        whole(text)
    assert len(str(refusal.value)) < 200


NOON = 1_796_126_400.0  # 2026-12-01 12:00 UTC


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("90m", 1.5),
        ("today", 12),
        ("yesterday", 36),
        ("2026-12-01 11:30", 0.5),
        ("2026-11-30", 36),
        ("2026-12-01T12:30+01:00", 0.5),
    ],
)
def test_a_time_that_something_is_shown_since(
    text: str, hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert shown.parse_since(text, round(NOON * 1000)) == pytest.approx(hours * 3600)


@pytest.mark.parametrize("text", ["", "soon", "2126-01-01", "24:00h", "9" * 400])
def test_a_time_that_nothing_can_be_shown_since(text: str) -> None:
    with pytest.raises(ValueError, match=r"use 24h, yesterday or|not in the past"):
        shown.parse_since(text, round(NOON * 1000))
