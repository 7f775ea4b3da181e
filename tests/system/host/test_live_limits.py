"""Pauses, limits and configuration hold, whatever happens meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from bus_relay import Bus
from guard import UNIT, systemctl, wait_for
from scripted_host import ScriptedHost

SHARES_GUARD = True


def held(scripted: ScriptedHost, row: int) -> str:
    found = scripted.row(row)
    assert (found["state"], found["attempts"]) == ("queued", 0)
    return str(found["hold"]["reason"])


@pytest.mark.parametrize(("second", "how"), [("global_cap", "killed"), ("paused", "stopped")])
def test_case_07_admitted_by_one_limit_stopped_by_another(
    scripted: ScriptedHost, second: str, how: str
) -> None:
    """7, hatchet-dev/hatchet#4804: after a restart the row is offered again, and no slot is lost."""
    scripted.start("abc", global_concurrent_turns=1)
    running = scripted.send("@a", "wait_go")
    scripted.wait_started(running)
    if second == "paused":
        scripted.post("/v1/pause")
    waits = scripted.send("@b"), scripted.send("@c")
    assert [held(scripted, row) for row in waits] == [second] * 2
    if how == "stopped":
        scripted.guard.restart()
    else:
        scripted.kill()
    assert [held(scripted, row) for row in waits] == [second] * 2
    if second == "paused":
        scripted.post("/v1/resume")
    scripted.go(running)
    scripted.done(running, *waits)
    assert scripted.order() == [running, *waits]
    scripted.prove(cap=1)
    assert scripted.get("/v1/status")["turns"] == 0
    after = scripted.send("@a", "wait_go")
    scripted.wait_started(after)
    scripted.go(after)
    scripted.done(after)


def test_case_08_a_pause_outlives_changes(scripted: ScriptedHost) -> None:
    """8, triggerdotdev/trigger.dev#2066 and #2745: the configuration and limits change, and it is still paused."""
    scripted.start("ab")
    scripted.guard.cli("pause", "a")
    row = scripted.send("@a")
    changed = scripted.config("abc", mind_concurrent_turns=2, global_concurrent_turns=5)
    changes: list[Callable[[], object]] = [
        lambda: scripted.post("/v1/reload"),
        lambda: scripted.guard.configure(changed),
        scripted.guard.reload,
        lambda: scripted.guard.cli("limit", "set", "global_concurrent_turns=3"),
        lambda: scripted.limit(4, "mind_concurrent_turns", "a"),
        lambda: scripted.limit("default", "mind_concurrent_turns", "a"),
        lambda: scripted.limit(7),
        scripted.guard.restart,
        lambda: scripted.done(scripted.send("@b"), scripted.send("@c")),
    ]
    for change in changes:
        change()
        assert held(scripted, row) == "mind_paused"
    assert scripted.get("/v1/status")["paused_minds"] == ["a"]
    assert [mind["state"] for mind in scripted.get("/v1/minds")["minds"]] == ["paused", "idle", "idle"]
    scripted.guard.cli("resume", "a")
    scripted.done(row)
    assert scripted.order()[-1] == row


def test_case_08_a_pause_of_the_whole_guard(scripted: ScriptedHost) -> None:
    """8, triggerdotdev/trigger.dev#2066 and #2745: the same for all minds at once."""
    scripted.start("ab")
    scripted.post("/v1/pause")
    rows = [scripted.send("@a"), scripted.send("@b")]
    scripted.guard.configure(scripted.config("abc"))
    scripted.post("/v1/reload")
    scripted.limit(5)
    scripted.kill()
    rows.append(scripted.send("@c"))
    assert [held(scripted, row) for row in rows] == ["paused"] * 3
    assert scripted.get("/v1/status")["state"] == "paused"
    scripted.post("/v1/resume")
    scripted.done(*rows)
    assert sorted(scripted.order()) == rows


@pytest.mark.parametrize("moment", ["systemd has not heard of it", "its scope is up"])
def test_case_09_paused_between_admission_and_start(scripted: ScriptedHost, bus: Bus, moment: str) -> None:
    """9, triggerdotdev/trigger.dev#4398: the turn does not start; the row is whole."""
    scripted.start("ab", global_concurrent_turns=1)
    if moment == "its scope is up":
        bus.hold_answers()
    else:
        bus.hold_asks()
    row = scripted.send("@a")
    after = scripted.send("@a")
    wait_for(lambda: len(scripted.guard.scopes()) == (moment == "its scope is up"))
    assert [turn["state"] for turn in scripted.turns()] == ["starting"]
    scripted.post("/v1/pause", mind="a")
    bus.go()
    wait_for(lambda: scripted.row(row)["state"] == "queued")
    other = scripted.send("@b")  # the slot is free again
    scripted.done(other)
    assert [held(scripted, row) for row in (row, after)] == ["mind_paused"] * 2
    assert scripted.order() == [other]
    scripted.guard.restart()
    scripted.post("/v1/resume", mind="a")
    ended = scripted.done(row, after)
    assert [(row["attempts"], row["result"]["exit"]) for row in ended] == [(0, 0)] * 2
    assert scripted.order() == [other, row, after]
    scripted.prove(cap=1)


def test_paused_and_resumed_between_admission_and_start(scripted: ScriptedHost, bus: Bus) -> None:
    """Kin of 9: the turn runs, once, and before the later row."""
    scripted.start("a")
    bus.hold_asks()
    rows = [scripted.send("@a"), scripted.send("@a")]
    scripted.post("/v1/pause")
    scripted.post("/v1/resume")
    bus.go()
    assert [row["attempts"] for row in scripted.done(*rows)] == [0, 0]
    assert scripted.order() == rows
    scripted.prove(cap=1)


def test_a_bad_configuration_is_refused_whole(scripted: ScriptedHost) -> None:
    """A reload of a bad file, by whatever way, changes nothing; the daemon says why."""
    scripted.start("ab", global_concurrent_turns=1)
    before = scripted.get("/v1/config")
    scripted.guard.configure(scripted.config("abc", global_concurrent_turns=9) + "[limits2]\n")
    pid = scripted.guard.pid
    scripted.guard.kill("HUP")
    wait_for(
        lambda: any(
            "configuration is rejected" in line["MESSAGE"] for line in scripted.guard.journal(f"_PID={pid}")
        )
    )
    for command in ("systemctl reload hostguard", "hostguard reload"):
        done = subprocess.run(command.split(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done
    assert "limits2: unknown key" in done.stderr
    assert scripted.get("/v1/config") == before
    assert scripted.guard.pid == pid
    rows = [scripted.send("@a", "wait_go"), scripted.send("@b")]
    scripted.wait_started(rows[0])
    assert held(scripted, rows[1]) == "global_cap"
    scripted.guard.configure(scripted.config("ab", global_concurrent_turns=2))
    systemctl("reload", UNIT)
    scripted.done(rows[1])
    scripted.go(rows[0])
    scripted.done(rows[0])
