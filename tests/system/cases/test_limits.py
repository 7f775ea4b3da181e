"""Pauses, limits and configuration: they hold whatever happens meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from bus import Bus
from guard import UNIT, systemctl, wait_for
from host import Host


def held(host: Host, row: int) -> str:
    found = host.row(row)
    assert (found["state"], found["attempts"]) == ("queued", 0)
    return str(found["hold"]["reason"])


@pytest.mark.parametrize(("second", "how"), [("global_cap", "killed"), ("paused", "stopped")])
def test_case_07_admitted_by_one_limit_stopped_by_another(host: Host, second: str, how: str) -> None:
    """7, hatchet-dev/hatchet#4804: after a restart the row is offered again, and no slot is lost."""
    host.start("abc", global_concurrent_turns=1)
    running = host.send("@a", "wait_go")
    host.wait_started(running)
    if second == "paused":
        host.post("/v1/pause")
    waits = host.send("@b"), host.send("@c")
    assert [held(host, row) for row in waits] == [second] * 2
    if how == "stopped":
        host.guard.restart()
    else:
        host.kill()
    assert [held(host, row) for row in waits] == [second] * 2
    if second == "paused":
        host.post("/v1/resume")
    host.go(running)
    host.done(running, *waits)
    assert host.order() == [running, *waits]
    host.prove(cap=1)
    assert host.get("/v1/status")["turns"] == 0
    after = host.send("@a", "wait_go")
    host.wait_started(after)
    host.go(after)
    host.done(after)


def test_case_08_a_pause_outlives_changes(host: Host) -> None:
    """8, triggerdotdev/trigger.dev#2066 and #2745: the configuration and limits change, and it is still paused."""
    host.start("ab")
    host.guard.cli("pause", "a")
    row = host.send("@a")
    changed = host.config("abc", mind_concurrent_turns=2, global_concurrent_turns=5)
    changes: list[Callable[[], object]] = [
        lambda: host.post("/v1/reload"),
        lambda: host.guard.configure(changed),
        host.guard.reload,
        lambda: host.guard.cli("limit", "set", "global_concurrent_turns=3"),
        lambda: host.limit(4, "mind_concurrent_turns", "a"),
        lambda: host.limit("default", "mind_concurrent_turns", "a"),
        lambda: host.limit(7),
        host.guard.restart,
        lambda: host.done(host.send("@b"), host.send("@c")),
    ]
    for change in changes:
        change()
        assert held(host, row) == "mind_paused"
    assert host.get("/v1/status")["paused_minds"] == ["a"]
    assert [mind["state"] for mind in host.get("/v1/minds")["minds"]] == ["paused", "idle", "idle"]
    host.guard.cli("resume", "a")
    host.done(row)
    assert host.order()[-1] == row


def test_case_08_a_pause_of_the_whole_guard(host: Host) -> None:
    """8, triggerdotdev/trigger.dev#2066 and #2745: the same for all minds at once."""
    host.start("ab")
    host.post("/v1/pause")
    rows = [host.send("@a"), host.send("@b")]
    host.guard.configure(host.config("abc"))
    host.post("/v1/reload")
    host.limit(5)
    host.kill()
    rows.append(host.send("@c"))
    assert [held(host, row) for row in rows] == ["paused"] * 3
    assert host.get("/v1/status")["state"] == "paused"
    host.post("/v1/resume")
    host.done(*rows)
    assert sorted(host.order()) == rows


@pytest.mark.parametrize("moment", ["systemd has not heard of it", "its scope is up"])
def test_case_09_paused_between_admission_and_start(host: Host, bus: Bus, moment: str) -> None:
    """9, triggerdotdev/trigger.dev#4398: the turn does not start; the row is whole."""
    host.start("ab", global_concurrent_turns=1)
    if moment == "its scope is up":
        bus.hold_answers()
    else:
        bus.hold_asks()
    row = host.send("@a")
    after = host.send("@a")
    wait_for(lambda: len(host.guard.scopes()) == (moment == "its scope is up"))
    assert [turn["state"] for turn in host.turns()] == ["starting"]
    host.post("/v1/pause", mind="a")
    bus.go()
    wait_for(lambda: host.row(row)["state"] == "queued")
    other = host.send("@b")  # the slot is free again
    host.done(other)
    assert [held(host, row) for row in (row, after)] == ["mind_paused"] * 2
    assert host.order() == [other]
    host.guard.restart()
    host.post("/v1/resume", mind="a")
    ended = host.done(row, after)
    assert [(row["attempts"], row["result"]["exit"]) for row in ended] == [(0, 0)] * 2
    assert host.order() == [other, row, after]
    host.prove(cap=1)


def test_paused_and_resumed_between_admission_and_start(host: Host, bus: Bus) -> None:
    """Kin of 9: the turn runs, once, and before the later row."""
    host.start("a")
    bus.hold_asks()
    rows = [host.send("@a"), host.send("@a")]
    host.post("/v1/pause")
    host.post("/v1/resume")
    bus.go()
    assert [row["attempts"] for row in host.done(*rows)] == [0, 0]
    assert host.order() == rows
    host.prove(cap=1)


def test_a_bad_configuration_is_refused_whole(host: Host) -> None:
    """A reload of a bad file, by whatever way, changes nothing; the daemon says why."""
    host.start("ab", global_concurrent_turns=1)
    before = host.get("/v1/config")
    host.guard.configure(host.config("abc", global_concurrent_turns=9) + "[limits2]\n")
    pid = host.guard.pid
    host.guard.kill("HUP")
    wait_for(lambda: any("not taken over" in line["MESSAGE"] for line in host.guard.journal(f"_PID={pid}")))
    for command in ("systemctl reload hostguard", "hostguard reload"):
        done = subprocess.run(command.split(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done
    assert "limits2: unknown key" in done.stderr
    assert host.get("/v1/config") == before
    assert host.guard.pid == pid
    rows = [host.send("@a", "wait_go"), host.send("@b")]
    host.wait_started(rows[0])
    assert held(host, rows[1]) == "global_cap"
    host.guard.configure(host.config("ab", global_concurrent_turns=2))
    systemctl("reload", UNIT)
    host.done(rows[1])
    host.go(rows[0])
    host.done(rows[0])
