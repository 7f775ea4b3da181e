"""Which waiting turns would wait for ever."""

from __future__ import annotations

import pytest

from hostguard.gate.deadlock import hopeless

CASES = [
    ("nobody waits", {}, {}, set()),
    ("for a row behind itself", {"a": [1]}, {1: ["a"]}, {"a"}),
    ("for a row that is in its own turn", {"a": [1]}, {1: ["a"]}, {"a"}),
    ("for a row behind a turn that ends", {"a": [1]}, {1: ["a", "b"]}, set()),
    ("for a row that runs", {"a": [1]}, {1: ["b"]}, set()),
    ("for a row that is due later", {"a": [1]}, {1: None}, set()),
    ("for each other", {"a": [1], "b": [2]}, {1: ["b"], 2: ["a"]}, {"a", "b"}),
    ("in a chain whose last one ends", {"a": [1], "b": [2]}, {1: ["b"], 2: ["c"]}, set()),
    ("behind two that wait for each other", {"a": [1], "b": [2], "c": [3]}, {1: ["b"], 2: ["a"], 3: ["a"]}, {"a", "b", "c"}),
    ("all at a full cap wait", {"a": [1], "b": [2]}, {1: ["a", "b"], 2: ["a", "b"]}, {"a", "b"}),
    ("one of two rows is hopeless", {"a": [1, 2]}, {1: ["b"], 2: ["a"]}, {"a"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "waits", "blockers", "hopeless_ones"), CASES, ids=[case[0] for case in CASES]
)
def test_who_waits_for_ever(name, waits, blockers, hopeless_ones):
    assert hopeless(waits, blockers) == hopeless_ones
