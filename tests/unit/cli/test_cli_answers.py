"""What the `hostguard` command asks the daemon, and makes of the answers."""

from __future__ import annotations

import json
import re
import tempfile
import time
from typing import Any

import pytest
from standin import NEW_YEAR, SHOWN, StandIn, lines, row


def test_send_posts_the_message_and_prints_a_line_per_delivery(daemon: StandIn) -> None:
    hold = {"reason": "global_cap", "blocker": "hostguard-turn-m-16.scope", "since": 1}
    daemon.answer(
        "POST /v1/deliveries",
        {"deliveries": [row(1), row(2, mind="n", session="s", hold=hold)], "refused": []},
        201,
    )
    done = daemon.run(
        "send", "#c", "hi", "--session", "s", "--sender", "ci", "--key", "k", "--at", "+1m", "--interrupt"
    )
    assert done.stdout == "1 m queued\n2 n/s queued (no slot free, behind turn 16)\n"
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
    done = daemon.run("send", "@m", input="x" * (64 << 20) + "x")
    assert (done.returncode, "67108864 bytes" in done.stderr) == (1, True)
    with tempfile.TemporaryFile() as binary:
        binary.write(b"ab\xff")
        binary.seek(0)
        done = daemon.run("send", "@m", stdin=binary)
    assert (done.returncode, "byte 2" in done.stderr) == (1, True)
    assert daemon.asked == []


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_send_refuses_an_empty_text(daemon: StandIn, text: str) -> None:
    for done in (daemon.run("send", "@m", text), daemon.run("send", "@m", input=text)):
        assert (done.returncode, "the text is empty" in done.stderr) == (2, True)
    assert daemon.asked == []


def test_porcelain_is_the_ids_alone(daemon: StandIn) -> None:
    hold = {"reason": "global_cap", "blocker": "hostguard-turn-m-16.scope", "since": 1}
    daemon.answer(
        "POST /v1/deliveries", {"deliveries": [row(1), row(2, mind="n", hold=hold)], "refused": []}, 201
    )
    assert daemon.run("send", "#c", "hi", "--porcelain").stdout == "1\n2\n"


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
        ("in_turn", {}, 1, "its turn continues"),
    ],
)
def test_send_wait_exits_with_what_became_of_it(
    daemon: StandIn, state: str, result: dict[str, Any], exit_code: int, said: str
) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": []}, 201)
    daemon.answer("GET /v1/deliveries/1", row(state=state, result=result))
    done = daemon.run("send", "@m", "hi", "--wait", "--timeout", "500ms")
    assert (done.returncode, said in done.stdout) == (exit_code, True), done


def test_a_key_that_was_used_for_another_message_says_what_differs(daemon: StandIn) -> None:
    document = {
        "code": "conflict",
        "detail": "x",
        "delivery": 3,
        "differs": ["content", "not_before", "typing"],
    }
    daemon.answer("POST /v1/deliveries", document, 409)
    done = daemon.run("send", "@m", "hi", "--key", "k", "--at", "+1m")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "hostguard: the key k was used for another message, delivery 3; different here: the text, --at, typing."
        " A time such as +10m is another one each time: give it as a date\n"
    )
    document["differs"] = ["whileSleeping"]
    daemon.answer("POST /v1/deliveries", document, 409)
    done = daemon.run("send", "@m", "hi", "--key", "k")
    assert done.stderr.endswith("different here: --while-sleeping\n")


def test_send_wait_says_the_id_first_and_bears_with_a_disk_that_stalls(daemon: StandIn) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": []}, 201)
    daemon.answer("GET /v1/deliveries/1", {"code": "unavailable", "detail": "the card stalls"}, 503)
    done = daemon.run("send", "@m", "hi", "--wait", "--timeout", "1s")
    assert (done.returncode, done.stderr) == (75, "hostguard: 1 m queued\nhostguard: the card stalls\n")
    daemon.answer("GET /v1/deliveries/1", {"code": "conflict", "detail": "it would never end"}, 409)
    done = daemon.run("send", "@m", "hi", "--wait")
    assert (done.returncode, done.stderr) == (1, "hostguard: 1 m queued\nhostguard: it would never end\n")


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
        ({"event": "expired"}, 75, "held for longer than --max-wait"),
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
    assert done.stderr.count("held: mind busy, behind u.scope") == 1
    assert not marker.exists()


@pytest.mark.parametrize(("command", "exit_code"), [("no-such-thing", 127), ("/etc/passwd", 126)])
def test_run_refuses_what_cannot_run_before_it_waits(daemon: StandIn, command: str, exit_code: int) -> None:
    assert daemon.run("run", "--mind", "m", "--", command).returncode == exit_code
    assert daemon.asked == []


def test_send_says_what_a_sleeping_mind_does(daemon: StandIn) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": []}, 201)
    done = daemon.run("send", "@m", "hi", "--while-sleeping", "trigger-wake", "--instructions", "be brief")
    assert done.returncode == 0
    assert daemon.asked[0][1]["whileSleeping"] == "trigger-wake"
    assert daemon.asked[0][1]["instructions"] == "be brief"
    assert daemon.run("send", "@m", "hi", "--while-sleeping", "wake").returncode == 2


@pytest.mark.parametrize(
    ("result", "exit_code"),
    [
        ({"outcome": "done"}, 0),
        ({"outcome": "gone"}, 0),
        ({"outcome": "idle"}, 0),
        ({"outcome": "died"}, 1),
        ({"outcome": "timeout"}, 1),
    ],
)
def test_send_wait_knows_how_turns_of_resident_minds_end(
    daemon: StandIn, result: dict[str, Any], exit_code: int
) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": []}, 201)
    daemon.answer("GET /v1/deliveries/1", row(1, "done", result={**result, "exit": None}))
    assert daemon.run("send", "@m", "hi", "--wait").returncode == exit_code


def test_send_wait_follows_a_message_into_its_batch(daemon: StandIn) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row(1, "batching")], "refused": []}, 201)
    daemon.answer("GET /v1/deliveries/1", row(1, "batched", result={"outcome": "batched", "delivery": 9}))
    daemon.answer("GET /v1/deliveries/9", row(9, "done", kind="batch", result={"outcome": "done"}))
    done = daemon.run("send", "@m", "hi", "--wait")
    assert (done.returncode, done.stdout) == (0, "9 m done: done\n")


def test_send_wait_for_a_message_that_was_skipped_fails(daemon: StandIn) -> None:
    skipped = row(1, "skipped", result={"outcome": "skipped", "reason": "m sleeps"})
    daemon.answer("POST /v1/deliveries", {"deliveries": [skipped], "refused": []}, 201)
    done = daemon.run("send", "@m", "hi", "--wait")
    assert (done.returncode, done.stdout) == (1, "1 m skipped: m sleeps\n")


@pytest.mark.parametrize("state", ["delivering", "in_turn", "batching", "gated", "batched", "skipped"])
def test_queue_knows_every_state(daemon: StandIn, state: str) -> None:
    found = (
        [row(1, "in_turn"), row(2, "delivering")] if state in ("in_turn", "delivering") else [row(3, state)]
    )
    daemon.answer("GET /v1/deliveries", {"deliveries": found, "total_queued": 0})
    [only] = json.loads(daemon.run("queue", "--state", state, "--json").stdout)["deliveries"]
    assert only["state"] == state
    stored = "delivering" if state == "in_turn" else state
    assert daemon.asked == [(f"GET /v1/deliveries?state={stored}&limit=100", None)]


# -- dead letters


def in_turns(daemon: StandIn, request: str, *bodies: Any) -> list[str]:
    """Answer the same request with one body after another; the requests' queries."""
    left = list(bodies)
    queries: list[str] = []

    class Answers(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            if key != request:
                return super().get(key, default)
            queries.append(daemon.asked[-1][0].partition("?")[2])
            return 200, {}, json.dumps(left.pop(0)).encode()

    daemon.answers = Answers(daemon.answers)
    return queries


def dead(id_: int, **more: Any) -> dict[str, Any]:
    result = {"outcome": "refused", "reason": "the mind answered 500"}
    return row(id_, "dead", attempts=10, ended_at=NEW_YEAR, result=result, **more)


def test_dead_list_tells_since_when_and_why(daemon: StandIn) -> None:
    daemon.answer("GET /v1/deliveries", {"deliveries": [dead(5, sender="eve"), dead(6)], "total_queued": 0})
    done = daemon.run("dead", "list", "--mind", "@m")
    assert lines(done) == [
        ["5", "m", "eve", SHOWN, "10", "the mind answered 500"],
        ["6", "m", "-", SHOWN, "10", "the mind answered 500"],
    ]
    assert daemon.asked == [("GET /v1/deliveries?state=dead&mind=m&limit=1000&after=0", None)]


def test_all_dead_letters_are_listed_page_by_page(daemon: StandIn) -> None:
    pages = [range(1, 1001), range(1001, 1003)]
    queries = in_turns(
        daemon, "GET /v1/deliveries", *({"deliveries": [dead(id_) for id_ in page]} for page in pages)
    )
    found = json.loads(daemon.run("dead", "list", "--json").stdout)["deliveries"]
    assert [one["id"] for one in found] == list(range(1, 1003))
    assert queries == ["state=dead&limit=1000&after=0", "state=dead&limit=1000&after=1000"]


@pytest.mark.parametrize(("verb", "said"), [("retry", "queued again"), ("drop", "dropped")])
def test_dead_letters_are_named_or_all_of_a_mind(daemon: StandIn, verb: str, said: str) -> None:
    daemon.answer("GET /v1/deliveries", {"deliveries": [dead(5), dead(6)]})
    for id_ in (5, 6):
        daemon.answer(f"POST /v1/deliveries/{id_}/{verb}", row(id_))
    for args in (("5", "6"), ("--all", "--mind", "m")):
        daemon.asked.clear()
        done = daemon.run("dead", verb, *args)
        assert (done.returncode, done.stdout) == (0, f"5 m {said}\n6 m {said}\n")
        assert [request for request, _ in daemon.asked if request.startswith("POST")] == [
            f"POST /v1/deliveries/5/{verb}",
            f"POST /v1/deliveries/6/{verb}",
        ]


@pytest.mark.parametrize("args", [(), ("5", "--all"), ("5", "--mind", "m"), ("--mind", "m"), ("x",)])
@pytest.mark.parametrize("verb", ["retry", "drop"])
def test_which_dead_letters_must_be_clear(daemon: StandIn, verb: str, args: tuple[str, ...]) -> None:
    assert daemon.run("dead", verb, *args).returncode == 2
    assert daemon.asked == []


# -- stop

STOPPING = {"id": "17", "unit": "hostguard-turn-m-17.scope", "mind": "m", "delivery": 17, "resident": True}
ENDED = {"id": "17", "mind": "m", "state": "ended", "result": {"outcome": "done", "reason": "it is done"}}


def test_stop_by_force_says_what_a_resident_mind_may_lose(daemon: StandIn) -> None:
    daemon.answer("POST /v1/turns/17/stop", STOPPING)
    done = daemon.run("stop", "17")
    assert (done.returncode, done.stdout) == (0, "stopping 17 (hostguard-turn-m-17.scope)\n")
    assert "may lose the conversation of this session: next time, hostguard stop --interrupt" in done.stderr
    daemon.answer("POST /v1/turns/17/stop", {**STOPPING, "resident": False})
    assert daemon.run("stop", "17").stderr == ""


def test_stop_interrupt_waits_for_the_end_of_the_turn(daemon: StandIn) -> None:
    daemon.answer("POST /v1/turns/17/stop", {**STOPPING, "message": 18})
    daemon.answer("GET /v1/turns/17", ENDED)
    done = daemon.run("stop", "17", "--interrupt", "--force-after", "5min")
    assert (done.returncode, "it is done" in done.stdout) == (0, True)
    assert done.stderr == "hostguard: m is asked to end turn 17; by force in 300 s\n"
    assert [asked for asked in daemon.asked if asked[0].startswith("POST")] == [
        ("POST /v1/turns/17/stop", {"interrupt_s": 300.0})
    ]


def test_stop_interrupt_uses_force_in_the_end(daemon: StandIn) -> None:
    daemon.answer("POST /v1/turns/17/stop", {**STOPPING, "message": 18})
    daemon.answer("GET /v1/turns/17", {"id": "17", "state": "running"})
    daemon.answer("GET /v1/deliveries/17", row(17, state="in_turn"))
    done = daemon.run("stop", "17", "--interrupt", "--force-after", "500ms")
    assert (done.returncode, done.stdout) == (0, "stopping 17 (hostguard-turn-m-17.scope)\n")
    bodies = [body for request, body in daemon.asked if request.startswith("POST")]
    assert bodies == [{"interrupt_s": 0.5}, None]


def test_force_after_without_interrupt_is_a_usage_error(daemon: StandIn) -> None:
    assert daemon.run("stop", "17", "--force-after", "1s").returncode == 2
    assert daemon.asked == []
