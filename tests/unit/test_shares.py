"""Each file of tests is in the share of one guest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from shares import LONG, share

TESTS = Path(__file__).parents[1]
FILES = sorted((TESTS / "system").rglob("test_*.py"))


@pytest.mark.parametrize("of", [1, 2, 3, 4])
def test_the_shares_are_all_files_once_and_alike_long(of: int) -> None:
    shares = [share(FILES, number, of) for number in range(of)]
    assert Counter(file for each in shares for file in each) == Counter(FILES)
    long = [len({TESTS / "system" / name for name in LONG} & each) for each in shares]
    assert max(long) - min(long) <= 1


def test_the_long_files_are_there() -> None:
    assert {TESTS / "system" / name for name in LONG} <= {*FILES}
