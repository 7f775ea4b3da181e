"""A slot becomes free when there is evidence, at once, and only once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bus_relay import Bus
from guard import run, systemctl, wait_for
from guarded import LONG_S
from scripted_host import ScriptedHost

SHARES_GUARD = True
CGROUPS = Path("/sys/fs/cgroup/hostguard.slice")


@pytest.mark.parametrize("what", ["the command", "all of it"])
def test_case_03_its_processes_are_killed(scripted: ScriptedHost, what: str) -> None:
    """3, rails/solid_queue#546: the mind's next turn starts at once, not after a lease."""
    scripted.start("a")
    killed = scripted.send("@a", "[ $HOSTGUARD_ATTEMPT -gt 1 ] || wait_go")
    after = scripted.send("@a")
    scripted.wait_started(killed)
    if what == "all of it":
        systemctl("kill", "--signal=KILL", unit("a", killed))
    else:
        for pid in (CGROUPS / "hostguard-a.slice" / unit("a", killed) / "cgroup.procs").read_text().split():
            if Path(f"/proc/{pid}/comm").read_text() == "turn\n":
                os.kill(int(pid), 9)
    (ended,) = scripted.done(after)
    assert scripted.events("failed", "hold_ended", "started")[:4] == [
        ("started", killed), ("failed", killed), ("hold_ended", after), ("started", after),
    ]  # fmt: skip
    assert scripted.row(killed)["result"]["outcome"] == "killed"
    assert ended["started_at"] < scripted.row(killed)["not_before"], "before the killed row is tried again"
    scripted.prove(cap=1, attempts=2, killed=(str(killed),))


def test_case_05_a_late_second_end(scripted: ScriptedHost, bus: Bus) -> None:
    """5, rails/solid_queue#761: it frees nothing: the slot belongs to the newer turn."""
    scripted.start("abz", global_concurrent_turns=1)
    first = scripted.send("@a", "wait_go")
    second, third = (scripted.send(f"@{mind}", "wait_go") for mind in "ab")
    scripted.wait_started(first)
    bus.hold_answers()  # the scope's end is seen in its cgroup first; systemd's word comes late
    scripted.go(first)
    scripted.done(first)
    wait_for(lambda: scripted.guard.scopes() == [unit("a", second)])
    assert [turn["state"] for turn in scripted.turns()] == ["starting"]
    bus.go()
    scripted.wait_started(second)
    assert [turn["delivery"] for turn in scripted.turns()] == [second]
    assert scripted.row(third)["hold"]["reason"] == "global_cap"
    scripted.go(second)
    scripted.wait_started(third)
    scripted.go(third)
    scripted.done(second, third)
    assert scripted.order() == [first, second, third]
    scripted.prove(cap=1)


def test_case_05_a_late_end_of_a_turn_of_the_same_name(scripted: ScriptedHost, bus: Bus) -> None:
    """5, rails/solid_queue#761: a row that is tried again has a turn of the same name; the old end is not its end."""
    scripted.start("ab", global_concurrent_turns=1)
    row = scripted.send("@a", "wait_go")
    scripted.wait_started(row)
    other = scripted.send("@b", "wait_go")
    scripted.post("/v1/pause", mind="b")
    bus.hold_answers()
    scripted.go(row)
    scripted.done(row)
    wait_for(lambda: scripted.guard.scopes() == [])
    scripted.post(f"/v1/deliveries/{row}/retry")
    wait_for(lambda: scripted.guard.scopes() == [unit("a", row)])
    scripted.post("/v1/resume", mind="b")
    (scripted.folder / f"go-{row}").unlink()
    bus.go()
    wait_for(lambda: len(scripted.log("waits")) == 2)
    assert [turn["delivery"] for turn in scripted.turns()] == [row]
    assert scripted.row(other)["hold"]["reason"] == "global_cap"
    scripted.go(row)
    (ended,) = scripted.done(row)
    scripted.wait_started(other)
    scripted.go(other)
    scripted.done(other)
    assert ended["attempts"] == 0
    assert scripted.order() == [row, row, other]
    scripted.prove(cap=1, attempts=2)


def test_a_scope_that_is_gone_before_its_start_is_known(scripted: ScriptedHost, bus: Bus) -> None:
    """Kin of 5: killed as it came up, it ran nothing: its slot is free, and the row keeps its place."""
    scripted.start("a", global_concurrent_turns=1)
    bus.hold_answers()
    row, after = scripted.send("@a"), scripted.send("@a")
    wait_for(lambda: scripted.guard.scopes() == [unit("a", row)])
    systemctl("kill", "--signal=KILL", unit("a", row))
    wait_for(lambda: scripted.guard.scopes() == [])
    assert scripted.order() == []
    bus.go()
    ended = scripted.done(row, after)
    assert [row["attempts"] for row in ended] == [0, 0]
    assert scripted.order() == [row, after]
    scripted.prove(cap=1)


def test_case_06_a_turn_longer_than_its_time_out(scripted: ScriptedHost) -> None:
    """6, rails/solid_queue#689: past max_turn it defies SIGTERM: nothing else of that mind starts while it lives."""
    scripted.start("a", "[minds.a.turn]\nmax_turn = 1")
    long = scripted.send("@a", "trap '' TERM; wait_go; exit 7")
    after = scripted.send("@a")
    scripted.wait_started(long)
    wait_for(lambda: state(unit("a", long)) == "stop-sigterm")
    scripted.kill()
    assert scripted.row(after)["hold"].items() >= {
        "reason": "session_busy", "blocker": unit("a", long),
    }.items()  # fmt: skip
    scripted.go(long)
    ended = scripted.done(long, after)
    assert (ended[0]["result"]["outcome"], ended[0]["result"]["exit"]) == ("exited", 7)
    assert scripted.order() == [long, after]
    scripted.prove(cap=1)


def test_a_turn_that_defies_its_stop(scripted: ScriptedHost) -> None:
    """Kin of 6: to be asked to stop is no end."""
    scripted.start("a")
    row, after = scripted.send("@a", "trap '' TERM; wait_go; exit 7"), scripted.send("@a")
    scripted.wait_started(row)
    scripted.post(f"/v1/turns/{row}/stop")
    wait_for(lambda: state(unit("a", row)) == "stop-sigterm")
    assert [(turn["delivery"], turn["stopping"]) for turn in scripted.turns()] == [(row, True)]
    assert scripted.row(after)["hold"]["reason"] == "session_busy"
    scripted.go(row)
    ended = scripted.done(row, after)
    assert (ended[0]["result"]["outcome"], ended[0]["result"]["exit"]) == ("stopped", 7)
    scripted.prove(cap=1)


@pytest.mark.parametrize("slow", ["asked", "answered"])
def test_a_turn_that_is_stopped_while_it_is_started(scripted: ScriptedHost, bus: Bus, slow: str) -> None:
    """Its command is never run, and the row does not come again."""
    scripted.start("ab")
    scripted.done(scripted.send("@b"))  # all that a first start asks of the bus is asked
    (bus.hold_asks if slow == "asked" else bus.hold_answers)()
    row, after = scripted.send("@a"), scripted.send("@a")
    scripted.wait_turns(1)
    assert [(turn["delivery"], turn["state"]) for turn in scripted.turns()] == [(row, "starting")]
    scripted.post(f"/v1/turns/{row}/stop")
    bus.go()
    ended = scripted.done(row, after)[0]
    assert (ended["result"]["outcome"], ended["attempts"]) == ("stopped", 0)
    assert row not in scripted.order()


def unit(mind: str, row: int) -> str:
    return f"hostguard-turn-{mind}-{row}.scope"


def state(unit: str) -> str:
    return run("systemctl", "show", "--value", "--property=SubState", unit).stdout.strip()


def test_children_that_outlive_the_command_keep_the_slot(scripted: ScriptedHost) -> None:
    """Kin of 6: the command ends, a child of it lives on in the scope; only its end frees the slot."""
    scripted.start("a")
    row = scripted.send("@a", "wait_go & disown; exit 3")
    after = scripted.send("@a")
    scripted.wait_started(row)
    wait_for(lambda: [turn["state"] for turn in scripted.turns()] == ["lingering"])
    assert scripted.row(after)["hold"]["blocker"] == unit("a", row)
    scripted.guard.restart()
    assert scripted.row(after)["state"] == "queued"
    scripted.go(row)
    ended = scripted.done(row, after)
    assert ended[0]["result"]["exit"] == 3
    assert scripted.order() == [row, after]


def test_systemctl_stop_frees_the_slot_at_once(scripted: ScriptedHost) -> None:
    """systemd is the semaphore: whoever stops a scope frees its slot."""
    scripted.start("a")
    row, after = scripted.send("@a", "wait_go"), scripted.send("@a")
    scripted.wait_started(row)
    systemctl("stop", unit("a", row))
    ended = scripted.done(row, after)
    assert ended[0]["result"]["outcome"] == "stopped"
    assert ended[1]["started_at"] - ended[0]["ended_at"] < 500


def test_a_scope_of_somebody_else_counts(scripted: ScriptedHost) -> None:
    """systemd is the semaphore: a hand-made scope counts for its mind and for the host; its end starts the next."""
    scripted.start("ab", global_concurrent_turns=2)
    command = ["systemd-run", "--scope", "--quiet", "--unit=by-hand", "--slice=hostguard-a.slice", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as by_hand:
        scripted.wait_turns(1)
        assert [(turn["unit"], turn["state"]) for turn in scripted.turns()] == [("by-hand.scope", "foreign")]
        mine = scripted.send("@a")
        assert scripted.row(mine)["hold"]["reason"] == "mind_busy"
        other = scripted.send("@b", "wait_go")
        scripted.wait_started(other)
        scripted.limit(2, "mind_concurrent_turns", "a")
        assert scripted.row(mine)["hold"].items() >= {
            "reason": "global_cap", "blocker": "by-hand.scope",
        }.items()  # fmt: skip
        scripted.guard.restart()
        assert {turn["unit"] for turn in scripted.turns()} == {"by-hand.scope", unit("b", other)}
        assert scripted.row(mine)["hold"]["reason"] == "global_cap"
        assert by_hand.stdin is not None
        by_hand.stdin.close()
        scripted.done(mine)
        assert by_hand.wait() == 0
    scripted.go(other)
    scripted.done(other)
    scripted.prove(cap=2)


def test_case_36_300_turns_leave_no_unit_behind(scripted: ScriptedHost) -> None:
    """36, bigbluebutton/bigbluebutton#24088: some fail in each way; only live ones are listed, none as failed."""
    unrunnable = scripted.folder / "unrunnable"
    unrunnable.touch()
    minds = f'[minds.c.turn]\nmax_turn = 1\n[minds.d]\ncommand = ["{unrunnable}"]\nuser = "root"'
    scripted.start("abc", minds, global_concurrent_turns=4)
    scripted.limit("unlimited", "mind_concurrent_turns", "b")
    live = scripted.send("@a", "wait_go")
    scripted.send("@c", "exec sleep 60")
    ends = ("true", "exit 3", "kill -KILL $$", "kill -SEGV $$", "kill -KILL 0")
    for i in range(290):
        scripted.send("@b", ends[i % len(ends)], session=f"s{i}")
    for i in range(8):
        scripted.send("@d", session=f"s{i}")
    wait_for(
        lambda: sum(map(ended, scripted.rows())) == 299,
        LONG_S,
    )
    scripted.post("/v1/pause")  # those that crashed would be tried again
    wait_for(lambda: scripted.guard.scopes() == [unit("a", live)])
    scripted.go(live)
    scripted.done(live)
    wait_for(lambda: scripted.guard.scopes() == [])
    failed = run("systemctl", "list-units", "--all", "--plain", "--no-legend", "--state=failed").stdout
    assert "hostguard" not in failed


def ended(row: dict[str, Any]) -> bool:
    return bool(row["state"] == "done" or row["attempts"] > 0)
