"""Minds that fail are seen first: turns that fail one after another, dead letters, servers that are down, freezes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from guard import Guard, systemctl, wait_for
from guarded import LONG_S, GuardedHost
from resident_host import ResidentHost
from scripted_host import ScriptedHost

MINDS = """
[minds.ada]
command = ["/bin/sh", "-c", 'read -r said; case $said in *good*) exit 0 ;; *crash*) kill -SEGV $$ ;; esac; exit 3']
user = "root"
[minds.bob]
command = ["/bin/true"]
user = "root"
"""


@pytest.fixture
def failing(guard: Guard) -> GuardedHost:
    guard.start(MINDS)
    return GuardedHost(guard)


def first(host: GuardedHost, about: str) -> str:
    """The line of the status about this, which comes before all that is well; top has it, too."""
    lines = host.guard.cli("status").stdout.splitlines()
    (line,) = [line for line in lines if line[3:].startswith(f"{about} ")]
    assert all(one.startswith("!") for one in lines[: lines.index(line) + 1]), lines
    top = host.guard.cli("top", "--once").stdout.splitlines()
    assert line in top
    return line


def calm(host: GuardedHost) -> bool:
    return "!" not in host.guard.cli("status").stdout.split("\n\n")[0]


def mind(host: GuardedHost, name: str) -> Any:
    (found,) = [mind for mind in host.guard.json("minds")["minds"] if mind["name"] == name]
    return found


def metric(host: GuardedHost, line: str) -> bool:
    return f"{line}\n" in host.guard.cli("metrics").stdout


def test_turns_that_fail_one_after_another(failing: GuardedHost) -> None:
    host = failing
    host.done(host.send("@ada", "good"), host.send("@bob"))
    assert calm(host)
    rows = [host.send("@ada", "x") for _ in range(6)]
    host.done(*rows)
    said = "ada 6 times in a row, at last: exit status 3 (hostguard queue --state failed)"
    assert first(host, "failing") == f"!  failing  {said}"
    assert mind(host, "ada")["failures"]["in_a_row"] == 6
    assert mind(host, "bob")["failures"] is None
    assert "idle, 6 failed" in host.guard.cli("minds").stdout
    listed = host.guard.json("queue", "--state", "failed")["deliveries"]
    assert [(row["id"], row["failed"], row["result"]["exit"]) for row in listed] == [
        (row, True, 3) for row in rows
    ]
    text = host.guard.cli("queue", "--state", "failed").stdout
    assert text.count("  failed  ") == 6
    assert text.count("exit status 3") == 6
    (seen,) = [one for one in host.get("/v1/report")["minds"] if one["name"] == "ada"]
    assert (seen["turns"], seen["failed"]) == (7, 6)
    (problem,) = host.guard.json("status")["problems"]
    assert problem == {"code": "mind_failing", "severity": "warning", "text": said}
    assert metric(host, 'hostguard_turn_exits_total{exit="3",mind="ada"} 6.0')
    assert metric(host, 'hostguard_mind_failures_in_a_row{mind="ada"} 6.0')
    assert metric(host, 'hostguard_problem{code="mind_failing"} 1.0')
    checks = json.loads(host.guard.cli("doctor", "--json", check=False).stdout)["checks"]
    (daemon,) = [check for check in checks if check["name"] == "daemon"]
    assert (daemon["level"], daemon["found"]) == ("warning", said)

    host.guard.restart()
    assert first(host, "failing") == f"!  failing  {said}"
    host.done(host.send("@ada", "good"))
    assert calm(host)
    assert mind(host, "ada")["failures"] is None
    assert [row["id"] for row in host.guard.json("queue", "--state", "failed")["deliveries"]] == rows
    host.api.close()


def test_dead_letters(failing: GuardedHost) -> None:
    host = failing
    systemctl("stop", "hostguard.service")
    host.guard.restart()
    row = host.send("@ada", "crash")
    wait_for(lambda: host.row(row)["attempts"] == 1, LONG_S)
    assert host.guard.json("queue", "--state", "failed")["deliveries"][0]["id"] == row
    host.guard.stop()
    host.sql("UPDATE deliveries SET attempts = 9, not_before = 0 WHERE id = ?", row)
    host.guard.restart()
    host.done(row, state="dead")
    assert first(host, "dead") == "!  dead     1 of ada (hostguard dead list)"
    assert mind(host, "ada")["dead"] == 1
    assert ", 1 dead" in host.guard.cli("minds").stdout
    assert metric(host, 'hostguard_dead_letters_kept{mind="ada"} 1.0')
    host.guard.restart()
    first(host, "dead")
    host.guard.configure(MINDS.replace("ada", "eve"))
    host.guard.reload()
    first(host, "dead")  # a mind that was removed has it, too
    host.guard.configure(MINDS)
    host.guard.reload()
    host.guard.cli("dead", "drop", str(row))
    assert "dead_letters" not in [one["code"] for one in host.get("/v1/status")["problems"]]
    assert mind(host, "ada")["dead"] == 0
    host.api.close()


def test_a_turn_that_is_frozen_by_hand(scripted: ScriptedHost) -> None:
    scripted.start("ab")
    row = scripted.send("@a", "wait_go")
    scripted.wait_started(row)
    unit = f"hostguard-turn-a-{row}.scope"
    systemctl("freeze", unit)
    try:
        assert first(scripted, "frozen") == f"!  frozen   a: systemctl thaw {unit}"
        assert mind(scripted, "a")["state"] == "frozen"
        assert [turn["frozen"] for turn in scripted.turns()] == [True]
        assert "  frozen  " in scripted.guard.cli("turns").stdout
        assert metric(scripted, 'hostguard_mind_frozen{mind="a"} 1.0')
        assert metric(scripted, 'hostguard_mind_frozen{mind="b"} 0.0')
    finally:
        systemctl("thaw", unit)
    assert calm(scripted)
    assert mind(scripted, "a")["state"] == "in_turn"
    scripted.go(row)
    scripted.done(row)


UNIT = """[Service]
ExecStart=/usr/bin/python3 -m http.server --bind 127.0.0.1 {port}
"""


def test_a_mind_whose_service_is_frozen_or_down(guard: Guard, host: ResidentHost) -> None:
    port = 4177
    for name in ("mind-eve.service", "mind@eve.service"):
        with open(f"/run/systemd/system/{name}", "w") as file:
            file.write(UNIT.format(port=port))
    systemctl("daemon-reload")
    for name in ("mind-eve.service", "mind@eve.service"):
        systemctl("start", name)
        guard.configure(f'[minds.eve]\nurl = "http://127.0.0.1:{port}"\nunit = "{name}"\n')
        if name == "mind-eve.service":
            guard.start(f'[minds.eve]\nurl = "http://127.0.0.1:{port}"\nunit = "{name}"\n')
        else:
            guard.reload()
        assert calm(host)
        systemctl("freeze", name)
        assert first(host, "frozen") == f"!  frozen   eve: systemctl thaw {name}"
        systemctl("thaw", name)
        assert calm(host)
        systemctl("stop", name)
    row = host.send("@eve", "are you there?")
    wait_for(lambda: mind(host, "eve")["down"], LONG_S)
    assert first(host, "down").startswith("!  down     eve: ")
    assert mind(host, "eve")["state"] == "down"
    assert metric(host, 'hostguard_mind_down{mind="eve"} 1.0')
    # Not while it is just tried again.
    wait_for(lambda: guard.cli("cancel", str(row), check=False).returncode == 0, LONG_S)
