"""Which turns are frozen and thawed: a table of moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.freezing import Plan, plan
from hostguard.pressure import Level

ABCD = ("a", "b", "c", "d")  # oldest first
CALM, STRAINED, STALLED = Level

MOMENTS = [
    ("calm, nothing frozen", {}, (), CALM, None, Plan()),
    ("strained: nobody is frozen for that", {}, (), STRAINED, 1, Plan()),
    ("stalled: all but the floor, youngest first", {}, (), STALLED, 1, Plan(("d", "c", "b"))),
    ("stalled, a floor of 3", {}, (), STALLED, 3, Plan(("d",))),
    ("stalled, fewer than the floor", {}, (), STALLED, 9, Plan()),
    ("stalled, pressure does not limit", {}, (), STALLED, None, Plan()),
    ("still stalled: those that came since", {"c": 8, "b": 8}, (), STALLED, 1, Plan(("d",))),
    ("one that starts is spared, and no older one pays for it", {}, ("d",), STALLED, 2, Plan(("c",))),
    ("still stalled, and long enough", {"d": 0, "c": 0, "b": 1}, (), STALLED, 1, Plan((), ("c", "d"))),
    ("strained after a stall: what piled up comes first", {"d": 8, "c": 8}, (), STRAINED, 2, Plan()),
    ("strained, and long enough", {"d": 0, "c": 8}, (), STRAINED, 2, Plan((), ("d",))),
    ("calm: one, the oldest", {"d": 8, "c": 8, "b": 8}, (), CALM, 2, Plan((), ("b",))),
    ("calm, and long enough for two", {"d": 0, "c": 0, "b": 8}, (), CALM, 2, Plan((), ("c", "d"))),
    ("one that is over is not thawed", {"z": 0}, (), CALM, 2, Plan()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("frozen", "spared", "level", "admit", "todo"), [m[1:] for m in MOMENTS], ids=[m[0] for m in MOMENTS]
)
def test_at_second_10_with_10_seconds_at_most(frozen, spared, level, admit, todo):
    assert plan(ABCD, spared, frozen, level, admit, 10.0, 10.0) == todo


@given(
    live=st.lists(st.integers(0, 20).map(str), unique=True),
    frozen=st.dictionaries(st.integers(0, 20).map(str), st.floats(0, 10)),
    spared=st.sets(st.integers(0, 20).map(str)),
    level=st.sampled_from(Level),
    admit=st.none() | st.integers(1, 20),
    longest=st.floats(1, 10),
)
def test_whatever_the_moment(live, frozen, spared, level, admit, longest):
    """The oldest go on, nobody is frozen twice or kept for too long, and nobody is both frozen and thawed."""
    todo = plan(live, spared, frozen, level, admit, 10.0, longest)
    assert not {*todo.freeze} & ({*frozen} | spared | {*live[: admit or len(live)]})
    assert {*todo.freeze} <= {*live}
    assert (
        {unit for unit in live if unit in frozen and 10 - frozen[unit] >= longest}
        <= {*todo.thaw}
        <= {*frozen}
    )
    assert [*todo.thaw] == [unit for unit in live if unit in todo.thaw]
    if level is not Level.STALLED:
        assert not todo.freeze
