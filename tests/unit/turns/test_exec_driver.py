"""A command's turn: its record, what the stub is told to run, and what its record says at the end."""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import replace

import pytest
from turned_on import MIND, keeping, row

from hostguard.core import outcome, paths
from hostguard.core.model import NOT_HELD, Kind, LiveTurn, Waited
from hostguard.turns.drivers.exec_driver import ExecDriver, work
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
            assert (turns / "7").read_text() == 'session "main"\n'
            assert await driver.start(turn, MIND, delivery, b'{"content":"x"}')
            spec = turn.stub.spec
            assert (spec["argv"], spec["cwd"], spec["capture"]) == (("/bin/true",), "/", 0)
            scope = "/hostguard.slice/hostguard-m.slice/hostguard-turn-m-7.scope/"
            assert scope in str(spec["account"])
            assert (spec["env"]["HOSTGUARD_TURN"], spec["confined"]) == ("7", False)
            assert spec["env"]["HOSTGUARD_HELD_MS"] == "12"
            assert b'"x"' in turn.stub.stdin
            assert keeper.host.units[turn.live.unit]["TasksMax"] == MIND.limits.tasks_max
            assert "Delegate" not in keeper.host.units[turn.live.unit]
            driver.feed(turn)
            await driver.resume(turn, MIND)

    asyncio.run(run())


@pytest.mark.parametrize("uid", [0, None])
def test_what_was_authorised_for_another_user_does_not_start(monkeypatch, uid):
    async def run():
        async with keeping(monkeypatch) as keeper:
            driver = ExecDriver(keeper.scopes)
            mind = replace(MIND, user="dan", uid=1001)
            delivery = row(7, Kind.SCRIPT, session="$script:x:main", uid=uid)
            turn = keeper.turn("7", delivery, driver)
            assert driver.prepare(turn)
            assert not await driver.start(turn, mind, delivery, b'{"script":"id"}')
            assert turn.stub is None
            assert keeper.host.units == {}
            [(_, ending)] = keeper.over
            assert (ending.outcome, ending.failed, ending.hopeless) == ("not_authorised", True, True)
            assert "m runs as dan (uid 1001) now" in ending.reason

    asyncio.run(run())


DAN = replace(
    MIND, user="dan", home="/home/dan", shell="/bin/zsh", environment={"LANG": "de_DE.UTF-8", "TOKEN": "x"}
)


def ran(todo):
    """The standard output of the work, run as a stub runs it."""
    done = subprocess.run(
        todo.argv, input=todo.stdin, env=dict(todo.environment), capture_output=True, check=True
    )
    return done.stdout


def test_the_environment_of_a_command():
    first = work(DAN, row(7, session="s"), b'{"content":"x"}', Waited(12, None)).environment
    assert first == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "de_DE.UTF-8",
        "TOKEN": "x",
        "HOME": "/home/dan",
        "USER": "dan",
        "LOGNAME": "dan",
        "SHELL": "/bin/zsh",
        "HOSTGUARD_MIND": "m",
        "HOSTGUARD_TURN": "7",
        "HOSTGUARD_DELIVERY": "7",
        "HOSTGUARD_SESSION": "s",
        "HOSTGUARD_CHANNEL": "",
        "HOSTGUARD_SENDER": "ann",
        "HOSTGUARD_ATTEMPT": "1",
        "HOSTGUARD_HELD_MS": "12",
    }
    third = row(7, session="s", attempts=2, channel="#c", sender=None)
    again = work(MIND, third, b'{"content":"x"}', Waited(0, None)).environment
    assert (again["HOSTGUARD_TURN"], again["HOSTGUARD_ATTEMPT"]) == ("7.2", "3")
    assert (again["HOSTGUARD_CHANNEL"], again["HOSTGUARD_SENDER"]) == ("#c", "")
    assert again["LANG"] == "C.UTF-8"


def test_a_schedules_script_runs_in_a_shell_and_its_output_is_kept():
    body = b'{"script":"echo $HOSTGUARD_MIND; cat"}'
    script = work(DAN, row(7, Kind.SCRIPT, session="$script:x:main"), body, NOT_HELD)
    assert ran(script) == b"m\n"
    assert script.capture == 65_536


def test_a_file_gets_a_line_more(tmp_path):
    path = tmp_path / "it's a $file"
    path.write_text("before\n")
    body = b'{"content":"x","sender":"ann","channel":"#c"}'
    append = work(DAN, row(7, Kind.FILE, session=f"$file:{path}"), body, NOT_HELD)
    assert ran(append) == b""
    assert append.capture == 0
    before, line = path.read_text().splitlines()
    assert before == "before"
    assert json.loads(line) == {"at": 1000, "channel": "#c", "sender": "ann", "content": "x"}


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
    turn.max_turn, turn.ran_s = 5.0, 5.0
    assert ExecDriver(None).end(turn).outcome == "timeout"
    turn.ran_s = 4.0
    assert ExecDriver(None).end(turn).outcome == "stopped"
