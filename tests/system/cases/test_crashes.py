"""A payload that crashes its mind, and `hostguard run` of a process that has a turn already."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from guard import wait_for
from host import Host

DEAD = "MESSAGE_ID=6b0e4d2f0a5c4b7c9d1f3a8e52c70416"


@pytest.mark.parametrize(("signal", "reason"), [("SEGV", "died of SIGSEGV"), ("KILL", "died of SIGKILL")])
def test_case_23_a_payload_that_crashes_its_mind(host: Host, signal: str, reason: str) -> None:
    """23, oban-bg/oban#137: crashes count as attempts and end in the dead letters; holds never do."""
    host.start("ab")
    row, other = host.send("@a", f"kill -{signal} $$"), host.send("@a")
    (after,) = host.done(other)  # the crash holds up nobody
    crashed = host.row(row)
    assert (crashed["state"], crashed["attempts"], crashed["hold"]) == ("queued", 1, None)
    assert crashed["result"]["reason"] == reason
    told = host.get(f"/v1/deliveries/{row}/why")
    assert (told["reason"], "attempt 2" in told["text"]) == ("not_due", True)
    assert told["due"] == crashed["not_before"]
    assert 4_000 < crashed["not_before"] - after["started_at"] <= 5_000, "the first pause is 5 s"

    host.kill_for_good()
    host.sql(
        "UPDATE deliveries SET attempts = 9, not_before = 0 WHERE id = ?", row
    )  # rather than wait for it
    host.guard.configure(host.config("ab", mind_concurrent_turns=0))
    host.guard.restart()
    for _ in range(12):  # each offers it again
        host.limit(0)
        host.limit("default")
    held = host.row(row)
    assert (held["attempts"], held["hold"]["reason"]) == (9, "mind_busy")
    host.limit(1, "mind_concurrent_turns", "a")
    (dead,) = host.done(row, state="dead")
    assert (dead["attempts"], dead["result"]["reason"]) == (10, reason)
    assert [line["HOSTGUARD_DELIVERY"] for line in host.guard.journal(DEAD)] == [str(row)]
    assert host.events("dead") == [("dead", row)]
    assert [found["id"] for found in host.guard.json("queue", "--state", "dead")["deliveries"]] == [row]
    (notice,) = [
        one["id"] for one in host.get("/v1/deliveries?state=all")["deliveries"] if one["kind"] == "notice"
    ]
    host.done(notice)
    assert host.turns() == []

    host.guard.cli("retry", str(row))
    wait_for(lambda: host.row(row)["attempts"] == 1)
    assert host.row(row)["state"] == "queued"
    host.post(f"/v1/deliveries/{row}/cancel")
    host.done(row, state="cancelled")
    assert [line.row for line in host.log("start")] == [row, other, row, notice, row]


def test_case_23_a_command_that_cannot_be_run(host: Host) -> None:
    """23, oban-bg/oban#137: it counts as an attempt too, the reason names the file, and no command ran."""
    host.start("ab")
    host.turn.chmod(0o644)
    row = host.send("@a")
    wait_for(lambda: host.row(row)["attempts"] == 1)
    assert host.row(row)["result"]["outcome"] == "not_started"
    assert host.row(row)["result"]["reason"] == f"{host.turn}: Permission denied"
    failed = f"failed: {host.turn}: Permission denied"
    assert host.get(f"/v1/deliveries/{row}/why")["text"].endswith(f"(attempt 2); the last one {failed}")
    assert f"attempt 1 {failed}\n" in host.guard.cli("queue").stdout
    host.turn.chmod(0o755)
    host.post(f"/v1/deliveries/{row}/cancel")
    host.post(f"/v1/deliveries/{row}/retry")
    host.done(row)
    assert host.order() == [row]


def test_a_commands_own_exit_status_is_no_crash(host: Host) -> None:
    """Kin of 23: whatever the status, the message was delivered; nothing is tried again."""
    host.start("ab")
    rows = [host.send("@a", f"exit {status}") for status in (0, 1, 127, 255)]
    ended = host.done(*rows)
    assert [row["result"]["exit"] for row in ended] == [0, 1, 127, 255]
    assert [row["attempts"] for row in ended] == [0] * 4
    assert host.order() == rows


ASK_TWICE = """
import http.client, json, socket, sys

def ask(key):
    connection = http.client.HTTPConnection("hostguard")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(30)
    connection.sock.connect("/run/hostguard/hostguard.sock")
    connection.request("POST", "/v1/run", json.dumps({"mind": "a", "key": key}))
    return connection, connection.getresponse()

def say(*words):
    print(json.dumps(words), flush=True)

first, waiting = ask("one")
say(json.loads(waiting.readline())["event"])
second, refused = ask("two")
say(refused.status, json.loads(refused.read())["detail"])
say(json.loads(waiting.readline())["event"])
third, refused = ask("three")
say(refused.status, open("/proc/self/cgroup").read().splitlines()[-1])
sys.stdin.read()
"""


def test_case_35_two_starts_name_the_same_process(host: Host) -> None:
    """35, systemd/systemd#26925: the second is refused before systemd is asked, which would move it silently."""
    host.start("ab")
    running = host.send("@a", "wait_go")
    host.wait_started(running)
    with subprocess.Popen(
        [sys.executable, "-c", ASK_TWICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def heard() -> list[object]:
            return list(json.loads(stdout.readline()))

        assert heard() == ["held"]
        assert heard() == [409, f"process {process.pid} waits for a turn, or has one, already"]
        host.go(running)
        assert heard() == ["start"]
        status, cgroup = heard()
        assert (status, str(cgroup)) == (
            409,
            "0::/hostguard.slice/hostguard-a.slice/hostguard-turn-a-2.scope",
        )
        wait_for(lambda: host.guard.scopes() == ["hostguard-turn-a-2.scope"])
        assert [row["id"] for row in host.get("/v1/deliveries?state=all")["deliveries"]] == [running, 2]
        stdin.close()
    host.done(2)
    assert Path("/run/hostguard/turns/2").exists() is False
