"""Whatever works holds a slot: when a resident mind's turn is over, and what is done about work outside of turns.

The minds behave as Volute's templates; tests/volute has the real ones.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from guard import run, wait_for
from guarded import LONG_S, overlaps
from minds import OneMind
from resident_host import ResidentHost

SHARES_GUARD = True
QUIET = ("done", "the mind reported that it is done, and has been quiet since")


def spans(*minds: OneMind) -> list[tuple[float, float]]:
    """When the minds were at work, one span for each message."""
    lines = [mind.log("begin", "end") for mind in minds]
    return [(begin["at"], end["at"]) for log in lines for begin, end in zip(log[::2], log[1::2], strict=True)]


def cgroup(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().rpartition("0::")[2].strip()


def rested(host: ResidentHost) -> None:
    """Wait until the process that a mind starts in advance is at rest, for which it had a turn."""
    wait_for(lambda: not host.turns(), LONG_S)


def own_turns(host: ResidentHost) -> list[Any]:
    return [turn for turn in host.turns() if turn["id"].startswith("w")]


@pytest.mark.parametrize("interrupt", [False, True])
def test_a_folded_message_keeps_the_slot_though_the_first_is_done(
    host: ResidentHost, interrupt: bool
) -> None:
    """The issue's case, with 1 s and 4 s instead of 3 s and 12 s."""
    ada, bob = host.minds.add("ada", "claude"), host.minds.add("bob")
    host.start(global_concurrent_turns=1)
    rested(host)
    first = host.send("ada", "first !work=1", session="s")
    turn = host.in_turn(first)
    wait_for(lambda: ada.log("begin"))
    second = host.send("ada", "second !work=1 tool=3", session="s", interrupt=interrupt)
    waits = host.send("bob", "third")
    host.done(first, second, waits)
    assert len([line for line in ada.log("done") if line["session"] == "s"]) == 2
    assert overlaps(spans(ada, bob)) == 1
    assert spans(bob)[0][0] > spans(ada)[1][1]
    assert [host.row(row)["turn"] for row in (first, second)] == [turn["id"]] * 2
    assert host.ended(second) == QUIET
    assert turn["unit"] in ada.log("end")[1]["cgroup"]
    assert not host.events("outside")


def test_each_form_of_a_fold_and_what_must_not_wait(host: ResidentHost) -> None:
    """A single message ends its turn at once; three messages may have two `done`, or one."""
    forms = {
        "two": ("claude", ["a !work=1", "b !work=0.5"]),
        "three": ("claude", ["a !work=1", "b !work=0.5", "c !work=0.5"]),
        "tool": ("claude", ["a !work=0.2 tool=1", "b !work=0.5"]),
        "pi": ("pi", ["a !work=1", "b !work=0.5", "c !work=0 tool=2"]),
        "one": ("claude", ["a !work=0.5"]),
        "onepi": ("pi", ["a !work=0.5"]),
    }
    minds = {name: host.minds.add(name, preset) for name, (preset, _) in forms.items()}
    host.start()
    rested(host)
    rows = {name: [host.send(name, texts[0], session="s")] for name, (_, texts) in forms.items()}
    for name, (_, texts) in forms.items():
        wait_for(lambda name=name: minds[name].log("tool" if name == "tool" else "begin"))  # type: ignore[misc]
        rows[name] += [host.send(name, text, session="s") for text in texts[1:]]
    host.done(*(row for found in rows.values() for row in found))
    for name, found in rows.items():
        last, ended = minds[name].log("end")[-1]["at"], host.row(found[0])["ended_at"] / 1000
        assert len({host.row(row)["turn"] for row in found}) == 1, name
        if len(found) == 1:
            assert host.ended(found[0]) == ("done", "the mind reported that it is done"), name
        else:
            assert host.ended(found[0]) == QUIET, name
            assert ended - last > 4, name
    assert not host.events("outside")


def test_work_of_a_session_without_a_turn_takes_a_slot_at_once(host: ResidentHost) -> None:
    host.minds.add("o")
    mind = host.one("silent", global_concurrent_turns=1)
    assert host.tell(mind, type="usage", session="s") == 200
    assert not host.turns(), "no work"
    assert host.tell(mind, type="tool_use", session="s") == 200
    [turn] = own_turns(host)
    assert (turn["mind"], turn["session"]) == ("m", "s")
    assert host.tell(mind, type="text", session="s") == 200
    other = host.send("o", "waits")
    wait_for(lambda: host.guard.scopes() == [turn["unit"]])
    folded = host.send("m", "!work=0.5", session="s")
    wait_for(lambda: mind.log("end"))
    assert turn["unit"] in mind.log("end")[0]["cgroup"], "the process of the session is in its scope"
    assert [found["id"] for found in host.turns()] == [turn["id"]]
    assert host.row(other)["state"] == "queued"
    assert host.tell(mind, type="done", session="s") == 200
    host.done(folded, other)
    assert host.row(folded)["turn"] == turn["id"]
    assert host.ended(folded) == QUIET
    [event] = host.events("outside")
    assert (
        event["text"]
        == f"m: session s works outside of a turn (it reported tool_use): turn {turn['id']} is for it"
    )


def test_processes_that_go_on_after_a_done_are_above_the_cap_until_they_rest(host: ResidentHost) -> None:
    """And a guard that is killed meanwhile follows them to their end."""
    other, third = host.minds.add("o", work=3), host.minds.add("p")
    mind = host.one(config="idle_end = 8", global_concurrent_turns=1)  # else it may rest for a minute
    first = host.send("m", "!work=10 spin=0.03 mute silent", session="s")
    host.in_turn(first)
    wait_for(lambda: mind.log("begin"))
    waits = [host.send(name, "x") for name in "op"]
    assert host.tell(mind, type="done", session="s") == 200
    host.done(first)
    wait_for(lambda: own_turns(host), LONG_S)
    [turn] = own_turns(host)
    assert (turn["mind"], turn["session"]) == ("m", "s")
    wait_for(lambda: turn["unit"] in cgroup(mind.log("begin")[0]["pid"]))
    assert third.log("begin") == []
    os.kill(host.guard.pid, signal.SIGKILL)
    host.guard.restart()
    assert [found["id"] for found in own_turns(host)] == [turn["id"]]
    host.done(*waits)
    assert third.log("begin")[0]["at"] > mind.log("end")[0]["at"], "nothing else starts until it is over"
    assert other.log("begin")[0]["at"] < mind.log("end")[0]["at"]
    wait_for(lambda: not host.turns(), LONG_S)
    assert mind.unit in cgroup(mind.log("begin")[0]["pid"])


def test_a_late_done_ends_no_turn_of_another_row(host: ResidentHost) -> None:
    mind = host.one("silent", config="idle_end = 3")
    first = host.send("m", "!work=0.1 tool=7 mute")
    host.done(first)
    assert host.ended(first)[0] == "idle", "its tool waits, and uses nothing"
    second = host.send("m", "!work=3 mute")
    host.in_turn(second)
    assert host.tell(mind, type="done", session="main") == 200, "the first one's"
    time.sleep(0.5)
    assert [turn["delivery"] for turn in host.turns()] == [second]
    host.done(second)


def test_the_process_that_a_mind_started_in_advance_is_adopted_by_main_alone(host: ResidentHost) -> None:
    mind = host.one("claude")
    rested(host)
    row = host.send("m", "!work=1.5", session="s")
    turn = host.in_turn(row)
    wait_for(lambda: mind.log("begin"))
    wait_for(lambda: turn["unit"] in cgroup(mind.log("begin")[0]["pid"]))
    mains = [pid for pid in children(mind) if pid != mind.log("begin")[0]["pid"]]
    assert len(mains) == 1
    assert mind.unit in cgroup(mains[0])
    host.done(row)
    assert mind.unit in cgroup(mains[0])
    row = host.send("m", "!work=1")
    turn = host.in_turn(row)
    wait_for(lambda: turn["unit"] in cgroup(mains[0]))
    host.done(row)


def children(mind: OneMind) -> list[int]:
    pid = int(run("systemctl", "show", "--value", "--property=MainPID", mind.unit).stdout)
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for task in found for child in task]
