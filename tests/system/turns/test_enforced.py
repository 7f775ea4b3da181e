"""The guest's kernel has no controllers for cgroup version 2: systemd takes every limit, and none is applied.

And what the doctor says of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from guard import Guard, run
from guarded import GuardedHost

ENFORCEMENT = "MESSAGE_ID=6b0e4d2f0a5c4b7c9d1f3a8e52c70424"
LIMITS = """
io_weight = 50
read_bandwidth = "8M"
write_bandwidth = "4M"
read_iops = 500
write_iops = 200
memory_high = "200M"
memory_max = "256M"
tasks_max = 64
max_turn = "1min"
"""
MIND = '[minds.ada]\ncommand = ["/bin/true"]\nuser = "root"\n'
NAMES = [line.split()[0] for line in LIMITS.split("\n")[1:-2]]


@pytest.fixture
def host(guard: Guard) -> Iterator[GuardedHost]:
    guard.start(f"[turn]{LIMITS}{MIND}")
    host = GuardedHost(guard)
    yield host
    host.api.close()


def labels(host: GuardedHost) -> dict[str, str]:
    return {item["limit"]: item["label"] for item in host.get("/v1/status")["enforcement"]}


def test_nothing_is_called_enforced_before_or_after_a_turn_and_each_is_told_once(host: GuardedHost) -> None:
    guard = host.guard
    assert labels(host) == dict.fromkeys(NAMES, "inert")
    host.done(host.send("@ada", "x"))  # it ran all the same
    assert labels(host) == dict.fromkeys(NAMES, "inert")
    guard.reload()
    host.done(host.send("@ada", "x"))
    told = guard.journal(ENFORCEMENT)
    assert [line["HOSTGUARD_LIMIT"] for line in told] == NAMES
    assert {line["PRIORITY"] for line in told} == {"4"}
    assert {line["HOSTGUARD_LABEL"] for line in told} == {"inert"}
    assert all("no io controller here" in line["MESSAGE"] for line in told if "io" in line["HOSTGUARD_LIMIT"])
    assert [event["limit"] for event in host.all_events() if event["type"] == "enforcement"] == NAMES


def test_status_has_one_line_of_it_and_none_when_no_limit_is_set(host: GuardedHost) -> None:
    shown = host.guard.cli("status").stdout
    [line] = [line for line in shown.splitlines() if line.split()[:2] == ["!", "limits"]]
    limits = line.split("not enforced: ")[1].split(" (")[0].split(", ")
    assert {"io_weight", "write_bandwidth"} <= {*limits}
    assert "hostguard doctor" in line
    host.guard.configure(MIND)
    host.guard.reload()
    assert labels(host) == {}
    assert "enforced" not in host.guard.cli("status").stdout


def examined(guard: Guard) -> dict[str, Any]:
    done = guard.cli("doctor", "--json", check=False)
    assert done.returncode == 1, done
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_the_doctor_tells_what_the_daemon_read_back_and_works_without_it(host: GuardedHost) -> None:
    host.done(host.send("@ada", "x"))
    checks = examined(host.guard)
    assert checks["limits"]["level"] == checks["io_controller"]["level"] == "problem"
    assert all(name in checks["limits"]["found"] for name in NAMES)
    assert checks["daemon"]["level"] == "warning"  # the test did not enable it
    assert (checks["cgroup"]["level"], checks["strays"]["level"]) == ("ok", "ok")
    assert int(checks["systemd"]["found"].split()[1]) >= 252

    host.guard.stop()
    run("systemctl", "stop", "hostguard.socket")
    alone = examined(host.guard)
    assert (alone["daemon"]["level"], alone["daemon"]["found"]) == ("problem", "it is not running")
    assert alone["limits"] == checks["limits"]
    shown = host.guard.cli("doctor", check=False).stdout.splitlines()
    assert shown[0].split()[0] == "problem"
    assert shown[-1].startswith(("ok", " "))


def test_the_doctor_finds_what_got_away_from_its_turn(host: GuardedHost) -> None:
    run("systemd-run", "--unit=away", "--setenv=HOSTGUARD_TURN=9", "sleep", "300")
    try:
        assert "sleep in away.service" in examined(host.guard)["strays"]["found"]
    finally:
        run("systemctl", "stop", "away.service")
