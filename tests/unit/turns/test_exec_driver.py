"""A command's turn: its record, what the stub is told to run, and what its record says at the end."""

from __future__ import annotations

import asyncio

import pytest
from turned_on import MIND, keeping, row

from hostguard.core import outcome, paths
from hostguard.core.model import Kind, LiveTurn, Waited
from hostguard.turns.exec_driver import ExecDriver
from hostguard.turns.live import Phase, Turn


@pytest.fixture(autouse=True)
def turns(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    return tmp_path / "turns"


def test_a_command_is_run_for_its_row(monkeypatch, turns):
    async def run():
        async with keeping(monkeypatch) as keeper:
            driver = ExecDriver(keeper.scopes)
            assert not driver.takes_input
            delivery = row(7)
            turn = keeper.turn("7", delivery, driver)
            turn.waited = Waited(12, "b")
            assert driver.prepare(turn)
            assert (turns / "7").read_text() == ""
            assert await driver.start(turn, MIND, delivery, b'{"content":"x"}')
            spec = turn.stub.spec
            assert (spec["argv"], spec["cwd"], spec["capture"]) == (("/bin/true",), "/", 0)
            scope = "/hostguard.slice/hostguard-m.slice/hostguard-turn-m-7.scope/"
            assert scope in str(spec["account"])
            assert spec["env"]["HOSTGUARD_TURN"] == "7"
            assert spec["env"]["HOSTGUARD_HELD_MS"] == "12"
            assert b'"x"' in turn.stub.stdin
            assert keeper.host.units[turn.live.unit]["TasksMax"] == MIND.limits.tasks_max
            assert "Delegate" not in keeper.host.units[turn.live.unit]
            driver.feed(turn)
            await driver.resume(turn, MIND)

    asyncio.run(run())


def test_a_record_that_cannot_be_made(turns):
    turns.touch()
    turn = Turn(LiveTurn("u", "m", "main", "7"), 0, Phase.STARTING)
    assert not ExecDriver(None).prepare(turn)


ENDS = [
    ("exit", "started\nexit 3\n", {}, outcome.Ending("exited", "exit status 3", 3)),
    ("stopped", "started\nexit 3\n", {"stopped": True}, outcome.Ending("stopped", "was asked to stop", 3)),
    (
        "stopped by us",
        "started\nexit 3\n",
        {"stopped": True, "asked": True},
        outcome.Ending("stopped", "", 3),
    ),
    ("never let run", "", {}, outcome.ending(outcome.Record(), False, 0, None)),
    ("never let run, as asked", "", {"asked": True}, outcome.NEVER_BEGAN),
    ("removed", None, {"released": True}, outcome.RECORD_LOST),
    ("of an earlier boot", None, {}, outcome.ending(None, False, 0, None)),
]


@pytest.mark.parametrize(("text", "flags", "want"), [e[1:] for e in ENDS], ids=[e[0] for e in ENDS])
def test_the_record_says_how_it_ended(turns, text, flags, want):
    turns.mkdir()
    turn = Turn(LiveTurn("u", "m", "main", "7"), 0, Phase.RUNNING, row(7))
    for name, value in flags.items():
        setattr(turn, name, value)
    if text is not None:
        (turns / "7").write_text(text)
    got = ExecDriver(None).end(turn)
    assert (got.outcome, got.exit, got.failed, got.back) == (want.outcome, want.exit, want.failed, want.back)
    assert (turn.record is None) == (text is None)


def test_a_file_that_could_not_be_written_and_a_turn_over_its_time(turns):
    turns.mkdir()
    (turns / "7").write_text("started\nexit 1\n")
    turn = Turn(LiveTurn("u", "m", "$file:/x", "7"), 0, Phase.RUNNING, row(7, Kind.FILE))
    assert ExecDriver(None).end(turn).failed
    (turns / "7").write_text("started\nsignal 15\n")
    turn.max_turn = 5.0
    assert ExecDriver(None).end(turn).outcome == "timeout", (
        "an earlier guard's turn is timed by the wall clock"
    )
