"""A payload that crashes its mind, and `hostguard run` of a process that has a turn already."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from guard import wait_for
from scripted_host import ScriptedHost

SHARES_GUARD = True
DEAD = "MESSAGE_ID=6b0e4d2f0a5c4b7c9d1f3a8e52c70416"


@pytest.mark.parametrize(("signal", "reason"), [("SEGV", "died of SIGSEGV"), ("KILL", "died of SIGKILL")])
def test_case_23_a_payload_that_crashes_its_mind(scripted: ScriptedHost, signal: str, reason: str) -> None:
    """23, oban-bg/oban#137: crashes count as attempts and end in the dead letters; holds never do."""
    scripted.start("ab")
    row, other = scripted.send("@a", f"kill -{signal} $$"), scripted.send("@a")
    (after,) = scripted.done(other)  # the crash holds up nobody
    crashed = scripted.row(row)
    assert (crashed["state"], crashed["attempts"], crashed["hold"]) == ("queued", 1, None)
    assert crashed["result"]["reason"] == reason
    told = scripted.get(f"/v1/deliveries/{row}/why")
    assert (told["reason"], "attempt 2" in told["text"]) == ("not_due", True)
    assert told["due"] == crashed["not_before"]
    assert 4_000 < crashed["not_before"] - after["started_at"] <= 5_000, "the first pause is 5 s"

    scripted.kill_for_good()
    scripted.sql(
        "UPDATE deliveries SET attempts = 9, not_before = 0, due = 0 WHERE id = ?", row
    )  # rather than wait for it
    scripted.guard.configure(scripted.config("ab", mind_concurrent_turns=0))
    scripted.guard.restart()
    for _ in range(12):  # each offers it again
        scripted.limit(0)
        scripted.limit("default")
    held = scripted.row(row)
    assert (held["attempts"], held["hold"]["reason"]) == (9, "mind_busy")
    scripted.limit(1, "mind_concurrent_turns", "a")
    (dead,) = scripted.done(row, state="dead")
    assert (dead["attempts"], dead["result"]["reason"]) == (10, reason)
    assert [line["HOSTGUARD_DELIVERY"] for line in scripted.guard.journal(DEAD)] == [str(row)]
    assert scripted.events("dead") == [("dead", row)]
    assert [found["id"] for found in scripted.guard.json("queue", "--state", "dead")["deliveries"]] == [row]
    (notice,) = [one["id"] for one in scripted.rows() if one["kind"] == "notice"]
    scripted.done(notice)
    assert scripted.turns() == []

    scripted.guard.cli("retry", str(row))
    wait_for(lambda: scripted.row(row)["attempts"] == 1)
    assert scripted.row(row)["state"] == "queued"
    scripted.post(f"/v1/deliveries/{row}/cancel")
    scripted.done(row, state="cancelled")
    assert [line.row for line in scripted.log("start")] == [row, other, row, notice, row]


def test_case_23_a_command_that_cannot_be_run(scripted: ScriptedHost) -> None:
    """23, oban-bg/oban#137: it counts as an attempt too, the reason names the file, and no command ran."""
    scripted.start("ab")
    scripted.turn.chmod(0o644)
    row = scripted.send("@a")
    wait_for(lambda: scripted.row(row)["attempts"] == 1)
    assert scripted.row(row)["result"]["outcome"] == "not_started"
    assert scripted.row(row)["result"]["reason"] == f"{scripted.turn}: Permission denied"
    failed = f"failed: {scripted.turn}: Permission denied"
    assert scripted.get(f"/v1/deliveries/{row}/why")["text"].endswith(f"(attempt 2); the last one {failed}")
    assert f"attempt 1 {failed}\n" in scripted.guard.cli("queue").stdout
    scripted.turn.chmod(0o755)
    scripted.post(f"/v1/deliveries/{row}/cancel")
    scripted.post(f"/v1/deliveries/{row}/retry")
    scripted.done(row)
    assert scripted.order() == [row]


def test_a_commands_own_exit_status_is_no_crash(scripted: ScriptedHost) -> None:
    """Kin of 23: whatever the status, the message was delivered; nothing is tried again."""
    scripted.start("ab")
    rows = [scripted.send("@a", f"exit {status}") for status in (0, 1, 127, 255)]
    ended = scripted.done(*rows)
    assert [row["result"]["exit"] for row in ended] == [0, 1, 127, 255]
    assert [row["attempts"] for row in ended] == [0] * 4
    assert scripted.order() == rows


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


def test_case_35_two_starts_name_the_same_process(scripted: ScriptedHost) -> None:
    """35, systemd/systemd#26925: the second is refused before systemd is asked, which would move it silently."""
    scripted.start("ab")
    running = scripted.send("@a", "wait_go")
    scripted.wait_started(running)
    with subprocess.Popen(
        [sys.executable, "-c", ASK_TWICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def heard() -> list[object]:
            return list(json.loads(stdout.readline()))

        assert heard() == ["held"]
        assert heard() == [
            409,
            f"process {process.pid} already waits for a turn or has one: leave out the inner hostguard run",
        ]
        scripted.go(running)
        assert heard() == ["start"]
        status, cgroup = heard()
        assert (status, str(cgroup)) == (
            409,
            f"0::/hostguard.slice/hostguard-a.slice/hostguard-turn-a-{running + 1}.scope",
        )
        wait_for(lambda: scripted.guard.scopes() == [f"hostguard-turn-a-{running + 1}.scope"])
        assert [row["id"] for row in scripted.rows()] == [running, running + 1]
        stdin.close()
    scripted.done(running + 1)
    assert not Path(f"/run/hostguard/turns/{running + 1}").exists()
