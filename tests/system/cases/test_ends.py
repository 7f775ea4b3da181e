"""Ends and slots: a slot comes free on evidence, at once, and once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bus import Bus
from guard import run, systemctl, wait_for
from guarded import LONG_S
from host import Host

CGROUPS = Path("/sys/fs/cgroup/hostguard.slice")


@pytest.mark.parametrize("what", ["the command", "all of it"])
def test_case_03_its_processes_are_killed(host: Host, what: str) -> None:
    """3, rails/solid_queue#546: the mind's next turn starts at once, not after a lease."""
    host.start("a")
    killed = host.send("@a", "[ $HOSTGUARD_ATTEMPT -gt 1 ] || wait_go")
    after = host.send("@a")
    host.wait_started(killed)
    if what == "all of it":
        systemctl("kill", "--signal=KILL", "hostguard-turn-a-1.scope")
    else:
        for pid in (CGROUPS / "hostguard-a.slice/hostguard-turn-a-1.scope/cgroup.procs").read_text().split():
            if Path(f"/proc/{pid}/comm").read_text() == "turn\n":
                os.kill(int(pid), 9)
    (ended,) = host.done(after)
    assert host.events("failed", "hold_ended", "started")[:4] == [
        ("started", killed), ("failed", killed), ("hold_ended", after), ("started", after),
    ]  # fmt: skip
    assert host.row(killed)["result"]["outcome"] == "killed"
    assert ended["started_at"] < host.row(killed)["not_before"], "before the killed row is tried again"
    host.prove(cap=1, attempts=2, killed=("1",))


def test_case_05_a_late_second_end(host: Host, bus: Bus) -> None:
    """5, rails/solid_queue#761: it frees nothing: the slot belongs to the newer turn."""
    host.start("abz", global_concurrent_turns=1)
    first = host.send("@a", "wait_go")
    second, third = (host.send(f"@{mind}", "wait_go") for mind in "ab")
    host.wait_started(first)
    bus.hold_answers()  # the scope's end is seen in its cgroup first; systemd's word comes late
    host.go(first)
    host.done(first)
    wait_for(lambda: host.guard.scopes() == ["hostguard-turn-a-2.scope"])
    assert [turn["state"] for turn in host.turns()] == ["starting"]
    bus.go()
    host.wait_started(second)
    assert [turn["delivery"] for turn in host.turns()] == [second]
    assert host.row(third)["hold"]["reason"] == "global_cap"
    host.go(second)
    host.wait_started(third)
    host.go(third)
    host.done(second, third)
    assert host.order() == [first, second, third]
    host.prove(cap=1)


def test_case_05_a_late_end_of_a_turn_of_the_same_name(host: Host, bus: Bus) -> None:
    """5, rails/solid_queue#761: a row that is tried again has a turn of the same name; the old end is not its end."""
    host.start("ab", global_concurrent_turns=1)
    row = host.send("@a", "wait_go")
    host.wait_started(row)
    other = host.send("@b", "wait_go")
    host.post("/v1/pause", mind="b")
    bus.hold_answers()
    host.go(row)
    host.done(row)
    wait_for(lambda: host.guard.scopes() == [])
    host.post(f"/v1/deliveries/{row}/retry")
    wait_for(lambda: host.guard.scopes() == ["hostguard-turn-a-1.scope"])
    host.post("/v1/resume", mind="b")
    (host.folder / f"go-{row}").unlink()
    bus.go()
    wait_for(lambda: len(host.log("waits")) == 2)
    assert [turn["delivery"] for turn in host.turns()] == [row]
    assert host.row(other)["hold"]["reason"] == "global_cap"
    host.go(row)
    (ended,) = host.done(row)
    host.wait_started(other)
    host.go(other)
    host.done(other)
    assert ended["attempts"] == 0
    assert host.order() == [row, row, other]
    host.prove(cap=1, attempts=2)


def test_a_scope_that_is_gone_before_its_start_is_known(host: Host, bus: Bus) -> None:
    """Kin of 5: killed as it came up, it ran nothing: its slot is free, and the row keeps its place."""
    host.start("a", global_concurrent_turns=1)
    bus.hold_answers()
    row, after = host.send("@a"), host.send("@a")
    wait_for(lambda: host.guard.scopes() == ["hostguard-turn-a-1.scope"])
    systemctl("kill", "--signal=KILL", "hostguard-turn-a-1.scope")
    wait_for(lambda: host.guard.scopes() == [])
    assert host.order() == []
    bus.go()
    ended = host.done(row, after)
    assert [row["attempts"] for row in ended] == [0, 0]
    assert host.order() == [row, after]
    host.prove(cap=1)


def test_case_06_a_turn_longer_than_its_time_out(host: Host) -> None:
    """6, rails/solid_queue#689: past max_turn it defies SIGTERM: nothing else of that mind starts while it lives."""
    host.start("a", "[minds.a.turn]\nmax_turn = 1")
    long = host.send("@a", "trap '' TERM; wait_go; exit 7")
    after = host.send("@a")
    host.wait_started(long)
    wait_for(lambda: state("hostguard-turn-a-1.scope") == "stop-sigterm")
    host.kill()
    assert host.row(after)["hold"] | {"since": 0} == {
        "reason": "session_busy", "blocker": "hostguard-turn-a-1.scope", "since": 0,
    }  # fmt: skip
    host.go(long)
    ended = host.done(long, after)
    assert (ended[0]["result"]["outcome"], ended[0]["result"]["exit"]) == ("exited", 7)
    assert host.order() == [long, after]
    host.prove(cap=1)


def test_a_turn_that_defies_its_stop(host: Host) -> None:
    """Kin of 6: to be asked to stop is no end."""
    host.start("a")
    row, after = host.send("@a", "trap '' TERM; wait_go; exit 7"), host.send("@a")
    host.wait_started(row)
    host.post(f"/v1/turns/{row}/stop")
    wait_for(lambda: state("hostguard-turn-a-1.scope") == "stop-sigterm")
    assert [(turn["delivery"], turn["stopping"]) for turn in host.turns()] == [(row, True)]
    assert host.row(after)["hold"]["reason"] == "session_busy"
    host.go(row)
    ended = host.done(row, after)
    assert (ended[0]["result"]["outcome"], ended[0]["result"]["exit"]) == ("stopped", 7)
    host.prove(cap=1)


@pytest.mark.parametrize("slow", ["asked", "answered"])
def test_a_turn_that_is_stopped_while_it_is_started(host: Host, bus: Bus, slow: str) -> None:
    """Its command is never run, and the row does not come again."""
    host.start("ab")
    host.done(host.send("@b"))  # all that a first start asks of the bus is asked
    (bus.hold_asks if slow == "asked" else bus.hold_answers)()
    row, after = host.send("@a"), host.send("@a")
    host.wait_turns(1)
    assert [(turn["delivery"], turn["state"]) for turn in host.turns()] == [(row, "starting")]
    host.post(f"/v1/turns/{row}/stop")
    bus.go()
    ended = host.done(row, after)[0]
    assert (ended["result"]["outcome"], ended["attempts"]) == ("stopped", 0)
    assert row not in host.order()


def state(unit: str) -> str:
    return run("systemctl", "show", "--value", "--property=SubState", unit).stdout.strip()


def test_children_that_outlive_the_command_keep_the_slot(host: Host) -> None:
    """Kin of 6: the command ends, a child of it lives on in the scope; only its end frees the slot."""
    host.start("a")
    row = host.send("@a", "wait_go & disown; exit 3")
    after = host.send("@a")
    host.wait_started(row)
    wait_for(lambda: [turn["state"] for turn in host.turns()] == ["lingering"])
    assert host.row(after)["hold"]["blocker"] == "hostguard-turn-a-1.scope"
    host.guard.restart()
    assert host.row(after)["state"] == "queued"
    host.go(row)
    ended = host.done(row, after)
    assert ended[0]["result"]["exit"] == 3
    assert host.order() == [row, after]


def test_systemctl_stop_frees_the_slot_at_once(host: Host) -> None:
    """systemd is the semaphore: whoever stops a scope frees its slot."""
    host.start("a")
    row, after = host.send("@a", "wait_go"), host.send("@a")
    host.wait_started(row)
    systemctl("stop", "hostguard-turn-a-1.scope")
    ended = host.done(row, after)
    assert ended[0]["result"]["outcome"] == "stopped"
    assert ended[1]["started_at"] - ended[0]["ended_at"] < 500


def test_a_scope_of_somebody_else_counts(host: Host) -> None:
    """systemd is the semaphore: a hand-made scope counts for its mind and for the host; its end starts the next."""
    host.start("ab", global_concurrent_turns=2)
    command = ["systemd-run", "--scope", "--quiet", "--unit=by-hand", "--slice=hostguard-a.slice", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as by_hand:
        host.wait_turns(1)
        assert [(turn["unit"], turn["state"]) for turn in host.turns()] == [("by-hand.scope", "foreign")]
        mine = host.send("@a")
        assert host.row(mine)["hold"]["reason"] == "mind_busy"
        other = host.send("@b", "wait_go")
        host.wait_started(other)
        host.limit(2, "mind_concurrent_turns", "a")
        assert host.row(mine)["hold"] | {"since": 0} == {
            "reason": "global_cap", "blocker": "by-hand.scope", "since": 0,
        }  # fmt: skip
        host.guard.restart()
        assert {turn["unit"] for turn in host.turns()} == {"by-hand.scope", "hostguard-turn-b-2.scope"}
        assert host.row(mine)["hold"]["reason"] == "global_cap"
        assert by_hand.stdin is not None
        by_hand.stdin.close()
        host.done(mine)
        assert by_hand.wait() == 0
    host.go(other)
    host.done(other)
    host.prove(cap=2)


def test_case_36_300_turns_leave_no_unit_behind(host: Host) -> None:
    """36, bigbluebutton/bigbluebutton#24088: some fail in each way; only live ones are listed, none as failed."""
    unrunnable = host.folder / "unrunnable"
    unrunnable.touch()
    minds = f'[minds.c.turn]\nmax_turn = 1\n[minds.d]\ncommand = ["{unrunnable}"]\nuser = "root"'
    host.start("abc", minds, global_concurrent_turns=4)
    host.limit("unlimited", "mind_concurrent_turns", "b")
    live = host.send("@a", "wait_go")
    host.send("@c", "exec sleep 60")
    ends = ("true", "exit 3", "kill -KILL $$", "kill -SEGV $$", "kill -KILL 0")
    for i in range(290):
        host.send("@b", ends[i % len(ends)], session=f"s{i}")
    for i in range(8):
        host.send("@d", session=f"s{i}")
    wait_for(
        lambda: sum(map(ended, host.get("/v1/deliveries?state=all&limit=400")["deliveries"])) == 299, LONG_S
    )
    host.post("/v1/pause")  # those that crashed would be tried again
    wait_for(lambda: host.guard.scopes() == ["hostguard-turn-a-1.scope"])
    host.go(live)
    host.done(live)
    wait_for(lambda: host.guard.scopes() == [])
    failed = run("systemctl", "list-units", "--all", "--plain", "--no-legend", "--state=failed").stdout
    assert "hostguard" not in failed


def ended(row: dict[str, Any]) -> bool:
    return bool(row["state"] == "done" or row["attempts"] > 0)
