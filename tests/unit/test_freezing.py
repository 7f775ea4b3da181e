"""Which turns are frozen and thawed: a table of moments; and what becomes of it if systemd does not do it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard import freezing, paths, undo
from hostguard.bus import SystemdError, SystemdLost
from hostguard.freezing import Freezer, Plan, plan
from hostguard.live import Live, Phase, Turn
from hostguard.model import LiveTurn
from hostguard.pressure import Level, State

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


class Systemd:
    """systemd that refuses, or does not answer, as often as told."""

    def __init__(self, *, refuses: bool = False, lost: int = 0) -> None:
        self.refuses, self.lost = refuses, lost
        self.asked: list[str] = []

    async def freeze(self, unit: str) -> None:
        self.asked.append(f"freeze {unit}")
        if self.refuses:
            raise SystemdError("org.freedesktop.DBus.Error.NotSupported", "no freezer here")

    async def thaw(self, unit: str) -> None:
        self.asked.append(f"thaw {unit}")
        if self.lost:
            self.lost -= 1
            raise SystemdLost("the bus is gone")


def freezer(systemd: Systemd, thawed: list[str]) -> Freezer:
    live = Live()
    for unit in ABCD:
        live.add(Turn(LiveTurn(unit, "m"), 0, Phase.RUNNING))
    runner = SimpleNamespace(live=live, systemd=systemd)
    events = SimpleNamespace(emit=lambda *_, **__: None)
    return Freezer(runner, events, lambda unit, _: thawed.append(unit))


@pytest.fixture
def notes(monkeypatch, tmp_path):
    """The file for the next guard."""
    monkeypatch.setattr(paths, "FROZEN", tmp_path / "frozen.json")
    monkeypatch.setattr(freezing, "AGAIN_S", 0.01)
    return tmp_path / "frozen.json"


def test_where_nothing_can_be_frozen_it_is_not_asked_for_at_each_tick(notes):
    async def main():
        systemd = Systemd(refuses=True)
        made = freezer(systemd, [])
        for _ in range(3):
            made.follow(State(level=STALLED), 15)
            await asyncio.sleep(0)
        assert systemd.asked == ["freeze d", "freeze c", "freeze b"]
        assert (made.frozen, notes.exists()) == ({}, False)

    asyncio.run(main())


def test_all_of_a_tick_are_overdue_at_once(notes):
    async def main():
        made = freezer(Systemd(), [])
        made.follow(State(level=STALLED), 15)
        assert (len(made.frozen), len({*made.frozen.values()})) == (3, 1)

    asyncio.run(main())


def test_what_cannot_be_noted_for_the_next_guard_is_not_frozen(notes):
    async def main():
        notes.with_suffix(".new").mkdir()
        systemd = Systemd()
        made = freezer(systemd, [])
        made.follow(State(level=STALLED), 15)
        await asyncio.sleep(0)
        assert (systemd.asked, made.frozen) == ([], {})

    asyncio.run(main())


def test_a_thaw_is_tried_until_it_is_done(notes):
    async def main():
        thawed = []
        systemd = Systemd(lost=2)
        made = freezer(systemd, thawed)
        made.follow(State(level=STALLED, floor=3), 15)
        assert json.loads(notes.read_text()) == ["d"]
        await made.close()
        assert systemd.asked == ["freeze d", "thaw d", "thaw d", "thaw d"]
        assert (thawed, made.frozen, notes.exists()) == (["d"], {}, False)

    asyncio.run(main())


def test_what_an_earlier_guard_froze_is_thawed_at_once(notes):
    async def main():
        undo.note(notes, ["z", "d"])
        systemd, thawed = Systemd(), []
        made = freezer(systemd, thawed)
        made.open()
        await made.close()
        assert sorted(systemd.asked) == ["thaw d", "thaw z"]
        assert (thawed, notes.exists()) == (["d"], False)  # z ended meanwhile

    asyncio.run(main())


@pytest.mark.parametrize("left", ["", "{", "[1"])
def test_a_note_that_cannot_be_read_is_said(notes, caplog, left):
    notes.write_text(left)
    assert undo.recall(notes) is None
    assert "what it tells of is not undone" in caplog.text
