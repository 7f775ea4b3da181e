"""Which turns are frozen and thawed: a table of moments, and for how long; and what becomes of it if systemd does not do it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.core import paths
from hostguard.core.model import LiveTurn
from hostguard.core.settings import Level
from hostguard.core.signals import Signal, TurnThawed
from hostguard.linux import files
from hostguard.pressure import freezer as module
from hostguard.pressure.freezer import Freezer, plan
from hostguard.pressure.rule import State
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns.live import Live, Phase, Turn

ABCD = ("a", "b", "c", "d")  # oldest first
CALM, STRAINED, STALLED = Level

MOMENTS = [
    ("calm, nothing frozen", (), (), CALM, None, ([], [])),
    ("strained: nobody is frozen for that", (), (), STRAINED, 1, ([], [])),
    ("stalled: all but the floor, youngest first", (), (), STALLED, 1, (["d", "c", "b"], [])),
    ("stalled, a floor of 3", (), (), STALLED, 3, (["d"], [])),
    ("stalled, fewer than the floor", (), (), STALLED, 9, ([], [])),
    ("stalled, pressure does not limit", (), (), STALLED, None, ([], [])),
    ("still stalled: those that came since", ("c", "b"), (), STALLED, 1, (["d"], [])),
    ("one that starts is spared, and no older one pays for it", (), ("d",), STALLED, 2, (["c"], [])),
    ("strained after a stall: what piled up comes first", ("d", "c"), (), STRAINED, 2, ([], [])),
    ("calm: one, the oldest", ("d", "c", "b"), (), CALM, 2, ([], ["b"])),
    ("one that is over is not thawed", ("z",), (), CALM, 2, ([], [])),
]


@pytest.mark.parametrize(
    ("frozen", "spared", "level", "admit", "todo"), [m[1:] for m in MOMENTS], ids=[m[0] for m in MOMENTS]
)
def test_which_are_frozen_and_thawed(frozen, spared, level, admit, todo):
    assert plan(ABCD, spared, frozen, level, admit) == todo


@given(
    live=st.lists(st.integers(0, 20).map(str), unique=True),
    frozen=st.sets(st.integers(0, 20).map(str)),
    spared=st.sets(st.integers(0, 20).map(str)),
    level=st.sampled_from(Level),
    admit=st.none() | st.integers(1, 20),
)
def test_whatever_the_moment(live, frozen, spared, level, admit):
    """The oldest go on, nobody is frozen twice, and nobody is both frozen and thawed."""
    freeze, thaw = plan(live, spared, frozen, level, admit)
    assert not {*freeze} & (frozen | spared | {*live[: admit or len(live)]})
    assert {*freeze} <= {*live}
    assert {*thaw} <= frozen & {*live}
    assert len(thaw) == (level is CALM and bool(frozen & {*live}))
    if level is not Level.STALLED:
        assert not freeze


class Systemd:
    """systemd that refuses, or does not answer, as often as set."""

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
    events = SimpleNamespace(emit=lambda *_, **__: None)
    signal = Signal[TurnThawed]()
    signal.subscribe(lambda turn: thawed.append(turn.unit))
    return Freezer(live, systemd, events, signal)


@pytest.fixture
def notes(monkeypatch, tmp_path):
    """The file for the next guard."""
    monkeypatch.setattr(paths, "FROZEN", tmp_path / "frozen.json")
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
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


def test_none_is_frozen_for_longer_than_it_may_though_no_tick_comes(notes):
    """The oldest goes on first, and each rests then for as long."""

    async def main():
        systemd, thawed = Systemd(), []
        made = freezer(systemd, thawed)
        made.follow(State(level=STALLED, floor=2), 0.2)
        began = asyncio.get_running_loop().time()
        for _ in range(500):
            if made.frozen:
                await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began >= 0.2
        made.follow(State(level=STALLED, floor=2), 60)
        await asyncio.sleep(0)
        assert systemd.asked == ["freeze d", "freeze c", "thaw c", "thaw d"]
        assert thawed == ["c", "d"]

    asyncio.run(main())


def test_what_cannot_be_noted_for_the_next_guard_is_not_frozen(notes):
    async def main():
        notes.with_name(f".{notes.name}.new").mkdir()
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
        files.note(notes, ["z", "d"])
        systemd, thawed = Systemd(), []
        made = freezer(systemd, thawed)
        made.open()
        await made.close()
        assert sorted(systemd.asked) == ["thaw d", "thaw z"]
        assert (thawed, notes.exists()) == (["d"], False)  # z ended meanwhile

    asyncio.run(main())


@pytest.mark.parametrize("left", ["", "{", "[1", "5", '{"a": 1}', "[1]", "[" * 99_999])
def test_a_note_that_cannot_be_read_is_kept_and_logged(notes, caplog, left):
    notes.write_text(left)
    assert files.recall(notes, files.texts) is None
    assert "what it says is not undone" in caplog.text
    assert notes.with_name(f"{notes.name}.damaged").read_text() == left
    asyncio.run(module.thaw_left())  # the start goes on
