"""What the `hostguard` command asks the daemon, and makes of the answers."""

from __future__ import annotations

import json
import re
import tempfile
import time
from typing import Any

import pytest
from standin import StandIn, row


def test_send_posts_the_message_and_prints_a_line_per_delivery(daemon: StandIn) -> None:
    hold = {"reason": "global_cap", "blocker": "u.scope", "since": 1}
    daemon.answer(
        "POST /v1/deliveries",
        {"deliveries": [row(1), row(2, mind="n", session="s", hold=hold)], "refused": []},
        201,
    )
    done = daemon.run(
        "send", "#c", "hi", "--session", "s", "--sender", "ci", "--key", "k", "--at", "+1m", "--interrupt"
    )
    assert done.stdout == "1 m queued\n2 n/s queued (global_cap: u.scope)\n"
    request, body = daemon.asked[0]
    assert request == "POST /v1/deliveries"
    assert abs(body.pop("not_before") - (time.time() + 60) * 1000) < 30_000
    assert body == {
        "to": "#c", "content": "hi", "session": "s", "sender": "ci", "key": "k", "expires_at": None,
        "interrupt": True,
        "instructions": None,
        "whileSleeping": None,
    }  # fmt: skip


@pytest.mark.parametrize("args", [["-"], []])
def test_send_reads_standard_input(daemon: StandIn, args: list[str]) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": []}, 201)
    assert daemon.run("send", "@m", *args, input="a\nü\n").returncode == 0
    assert daemon.asked[0][1]["content"] == "a\nü\n"


def test_send_refuses_too_much_input_and_what_is_not_text(daemon: StandIn) -> None:
    done = daemon.run("send", "@m", input="x" * (1 << 20) + "x")
    assert (done.returncode, "1048576 bytes" in done.stderr) == (1, True)
    with tempfile.TemporaryFile() as binary:
        binary.write(b"ab\xff")
        binary.seek(0)
        done = daemon.run("send", "@m", stdin=binary)
    assert (done.returncode, "byte 2" in done.stderr) == (1, True)
    assert daemon.asked == []


EXITED = {"outcome": "exited", "exit": 0, "reason": "exit status 0", "run_ms": 1200, "held_ms": 63_000}


@pytest.mark.parametrize(
    ("state", "result", "exit_code", "said"),
    [
        ("done", EXITED, 0, "1 m done: exit status 0, held 1m 3s, ran 1.2s"),
        ("done", {**EXITED, "exit": 3, "reason": "exit status 3"}, 1, "exit status 3"),
        ("done", {**EXITED, "exit": None, "outcome": "killed", "reason": ""}, 1, "killed"),
        ("dead", {"outcome": "not_started", "exit": None, "reason": "no such file"}, 1, "no such file"),
        ("expired", {}, 1, "1 m expired"),
        ("cancelled", EXITED, 1, "1 m cancelled"),
        ("queued", {}, 75, "hostguard cancel 1"),
        ("in_turn", {}, 1, "its turn goes on"),
    ],
)
def test_send_wait_exits_with_what_became_of_it(
    daemon: StandIn, state: str, result: dict[str, Any], exit_code: int, said: str
) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": []}, 201)
    daemon.answer("GET /v1/deliveries/1", row(state=state, result=result))
    done = daemon.run("send", "@m", "hi", "--wait", "--timeout", "500ms")
    assert (done.returncode, said in done.stdout) == (exit_code, True), done


def test_minds_whose_queue_was_full_are_named(daemon: StandIn) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": ["n"]}, 201)
    done = daemon.run("send", "#c", "hi")
    assert (done.returncode, done.stdout) == (1, "1 m queued\n")
    assert "not sent to n" in done.stderr


def test_timeout_without_wait_is_a_usage_error(daemon: StandIn) -> None:
    assert daemon.run("send", "@m", "hi", "--timeout", "1s").returncode == 2
    assert daemon.asked == []


def test_one_refused_cancel_does_not_stop_the_others(daemon: StandIn) -> None:
    daemon.answer("POST /v1/deliveries/2/cancel", row(2, "cancelled"))
    done = daemon.run("cancel", "1", "2")
    assert (done.returncode, done.stdout) == (4, "2 m cancelled\n")
    assert done.stderr.startswith("hostguard: not there")


def test_limit_set_patches_and_prints(daemon: StandIn) -> None:
    limits = [{"name": "global_concurrent_turns", "mind": None, "value": None, "source": "kept"}]
    daemon.answer("PATCH /v1/limits", {"limits": limits})
    done = daemon.run("limit", "set", "global_concurrent_turns=unlimited", "--runtime")
    assert daemon.asked[0][1] == {
        "name": "global_concurrent_turns", "mind": None, "value": "unlimited", "runtime": True,
    }  # fmt: skip
    assert done.stdout.splitlines()[1].split() == ["global_concurrent_turns", "-", "unlimited", "kept"]


def test_a_configuration_error_on_reload_is_a_failure_not_a_usage_error(daemon: StandIn) -> None:
    daemon.answer("POST /v1/reload", {"code": "bad_request", "detail": "a.toml: x: no\nb.toml: y: no"}, 400)
    done = daemon.run("reload")
    assert (done.returncode, done.stderr) == (1, "hostguard: a.toml: x: no\nb.toml: y: no\n")


def test_events_prints_what_is_remembered_and_ends(daemon: StandIn) -> None:
    event = {
        "id": 5,
        "at": 0,
        "type": "held",
        "mind": "m",
        "session": "main",
        "delivery": 7,
        "text": "waits\x1b",
        "waited_ms": 2000,
    }
    daemon.answer("GET /v1/events", f"id: 5\nevent: held\ndata: {json.dumps(event)}\n\n".encode())
    done = daemon.run("events")
    assert re.fullmatch(r"5  \d{4}-\S+ \S+  held        waits\\x1b\n", done.stdout)
    assert json.loads(daemon.run("events", "--json").stdout) == event


@pytest.mark.parametrize(
    ("event", "exit_code", "said"),
    [
        ({"event": "expired"}, 75, "held for too long"),
        ({"event": "cancelled"}, 1, "cancelled"),
        ({"event": "failed", "detail": "no scope"}, 1, "no scope"),
        (
            {"event": "start", "turn": "1", "unit": "hostguard-turn-m-1.scope"},
            1,
            "is not in hostguard-turn-m-1",
        ),
    ],
)
def test_run_starts_nothing_outside_its_scope(
    daemon: StandIn, event: dict[str, Any], exit_code: int, said: str
) -> None:
    held = {"event": "held", "reason": "mind_busy", "blocker": "u.scope"}
    stream = "".join(json.dumps(e) + "\n" for e in (held, held, event))
    daemon.answer("POST /v1/run", stream.encode())
    marker = daemon.folder / "ran"
    done = daemon.run("run", "-v", "--mind", "m", "--", "touch", str(marker))
    assert (done.returncode, said in done.stderr) == (exit_code, True), done
    assert done.stderr.count("held: mind_busy: u.scope") == 1
    assert not marker.exists()


@pytest.mark.parametrize(("command", "exit_code"), [("no-such-thing", 127), ("/etc/passwd", 126)])
def test_run_refuses_what_cannot_run_before_it_waits(daemon: StandIn, command: str, exit_code: int) -> None:
    assert daemon.run("run", "--mind", "m", "--", command).returncode == exit_code
    assert daemon.asked == []
