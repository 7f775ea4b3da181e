"""Keys and values as TOML: what is written is read as it was."""

from __future__ import annotations

import tomllib
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from hostguard.config.toml import dotted, toml_value

TEXT = st.text(max_size=20)
VALUES = TEXT | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.lists(TEXT, max_size=3)


@given(path=st.lists(TEXT, min_size=1, max_size=3), value=VALUES)
def test_what_is_written_is_read_and_moves_no_cursor(path, value):
    line = f"{dotted(tuple(path))} = {toml_value(value)}"
    found = tomllib.loads(line)
    for key in path:
        found = found[key]
    assert found == value
    assert type(found) is type(value)
    assert not {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Zl", "Zp"}


def test_plain_keys_need_no_quotes():
    assert dotted(("minds", "a-b_1", "#x y")) == 'minds.a-b_1."#x y"'
