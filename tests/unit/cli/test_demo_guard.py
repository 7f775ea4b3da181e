"""The demo's dealings with the guard and the device, as far as they need no guard."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from guard import wait_for

from hostguard.cli.demo import phases, plan
from hostguard.cli.demo.host import Signals
from hostguard.cli.demo.plan import HEARTBEATS, MINDS, WAKES, Note
from hostguard.cli.demo.results import Held, Turn
from hostguard.cli.demo.watch import Bystander
from hostguard.cli.errors import CliError
from hostguard.config import load as config
from hostguard.core.model import Channel

# -- what is asked of the guard


def test_fifteen_turns_of_twelve_minds() -> None:
    assert len(set(MINDS)) == 12
    assert len(WAKES) == 15
    assert set(HEARTBEATS) < set(MINDS)


@pytest.mark.parametrize("folder", ["/card/hostguard-demo-x", '/a "b"\\c\n ü/hostguard-demo-x'])
def test_the_drop_in_is_configuration_and_keeps_its_note(tmp_path: Path, folder: str) -> None:
    note = Note(folder, 4, True)
    file = tmp_path / "demo-minds.toml"
    file.write_text(plan.drop_in(note, 6 << 20), encoding="utf-8")
    loaded = config.load([file])
    assert sorted(loaded.minds) == sorted(map(plan.configured, MINDS))
    assert loaded.channels == {plan.CHANNEL: Channel(plan.CHANNEL, tuple(map(plan.configured, MINDS)))}
    mimsy = loaded.minds["demo-mimsy"]
    assert mimsy.command == tuple(plan.command(Path(folder, "mimsy"), 6 << 20))
    assert (mimsy.user, mimsy.concurrent_turns, mimsy.limits.max_turn) == ("root", 1, 600)
    assert plan.read_note(file.read_text(encoding="utf-8")) == note


@pytest.mark.parametrize("text", ["", "# undo: ", "# undo: []", '# undo: {"folders": 1}', "[minds.x]"])
def test_a_note_that_makes_no_sense_is_none(text: str) -> None:
    assert plan.read_note(text) is None


@pytest.mark.parametrize(
    ("value", "source", "expected"),
    [
        (4, "config", ("default", False)),
        (None, "default", ("default", False)),
        (4, "kept", (4, False)),
        (None, "kept", ("unlimited", False)),
        (0, "runtime", (0, True)),
        (None, "runtime", ("unlimited", True)),
    ],
)
def test_a_limit_is_set_again_as_it_was(
    value: int | None, source: str, expected: tuple[object, bool]
) -> None:
    assert plan.restoring({"value": value, "source": source}) == expected


def test_a_turn_follows_its_events() -> None:
    waiting = Turn("pip", "heartbeat", 0.0, id=3)
    held, *said = phases.after(waiting, {"type": "held", "reason": "global_cap", "blocker": "x.scope"}, 0.1)
    assert held.held == Held("global_cap", "x.scope")
    assert said == ["held", "pip heartbeat: global_cap, behind x.scope"]
    free, *_ = phases.after(
        held, {"type": "hold_ended", "reason": "global_cap", "blocker": "x.scope", "waited_ms": 2500}, 2.6
    )
    assert free.held == Held("global_cap", "x.scope", 2.5)
    running, *said = phases.after(free, {"type": "started"}, 2.6)
    assert running.started == 2.6
    assert said == ["start", "pip heartbeat after 2.5 s"]
    over, *said = phases.after(running, {"type": "ended"}, 3.0)
    assert (over.ended, said) == (3.0, ["end", "pip heartbeat"])
    assert phases.after(waiting, {"type": "accepted"}, 0.0)[0] == waiting
    with pytest.raises(CliError, match="no such file"):
        phases.after(running, {"type": "failed", "text": "no such file"}, 3.0)


# -- small parts for real


def test_a_bystander_writes_flushes_and_ends(tmp_path: Path) -> None:
    bystander = Bystander(tmp_path / "file")
    start = time.time()
    assert bystander.delay(start) is None
    bystander.begin()
    wait_for(lambda: len(bystander._writes) > 2)
    writes = bystander.end(start)
    assert len(writes) > 2
    assert all(0 < write.took < 1 for write in writes)
    assert writes[0].at > 0
    assert writes[1].at - writes[0].at > 0.2
    assert (tmp_path / "file").stat().st_size == 4096 * len(writes)
    felt_now = bystander.delay(writes[-1].at + start + 10.25)
    assert felt_now == pytest.approx(10, abs=0.1)


def test_a_signal_waits_for_the_end_of_a_change() -> None:
    done = []
    signals = Signals()
    before = signal.getsignal(signal.SIGTERM)

    def change() -> None:
        with signals.caught():
            with signals.held():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)
                done.append("whole")
            done.append("never")

    with pytest.raises(SystemExit) as end:
        change()
    assert done == ["whole"]
    assert end.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_may_tear_what_is_let() -> None:
    done = []
    signals = Signals()

    def change() -> None:
        with signals.caught(), signals.held():
            try:
                with signals.let():
                    done.append("begun")
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(1)
                    done.append("never")
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
                done.append("undone")

    with pytest.raises(KeyboardInterrupt):
        change()
    assert done == ["begun", "undone"]
