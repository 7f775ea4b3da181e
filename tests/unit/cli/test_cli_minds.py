"""The verbs about minds, their sleep, routes and schedules: what they ask, and show."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from standin import NEW_YEAR, SHOWN, StandIn, lines, row


def mind(name: str = "m", **more: Any) -> dict[str, Any]:
    return {
        "name": name, "state": "idle", "sessions": [], "sleep": "awake", "asleep_until": None, "cap": 1,
        "live": 0, "queued": 0, "batching": 0, "gated": 0, "held": 0, "oldest_wait_ms": None,
        "command": [], "user": "u", "url": None, "unit": None, **more,
    }  # fmt: skip


# -- minds


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({}, ["m", "idle", "0/1", "0", "0", "u"]),
        ({"state": "asleep", "sleep": "asleep"}, ["m", "asleep", "0/1", "0", "0", "u"]),
        (
            {"state": "asleep", "sleep": "asleep", "asleep_until": NEW_YEAR, "queued": 2, "held": 1,
             "oldest_wait_ms": 63_000},
            ["m", f"asleep until {SHOWN}", "0/1", "2", "1", "1m 3s", "u"],
        ),
        ({"state": "paused", "sleep": "asleep"}, ["m", "paused, asleep", "0/1", "0", "0", "u"]),
        ({"batching": 3}, ["m", "idle", "0/1", "0", "0", "3 batching", "u"]),
        ({"batching": 3, "gated": 4}, ["m", "idle", "0/1", "0", "0", "3 batching, 4 gated", "u"]),
        ({"state": "down", "url": "http://h:1"}, ["m", "down", "0/1", "0", "0", "u", "http://h:1"]),
        ({"command": ["/bin/a", "b c"]}, ["m", "idle", "0/1", "0", "0", "u", "/bin/a 'b c'"]),
    ],
)  # fmt: skip
def test_minds_and_status_show_what_each_does(
    daemon: StandIn, told: dict[str, Any], shown: list[str]
) -> None:
    daemon.answer("GET /v1/minds", {"minds": [mind(**told)]})
    assert lines(daemon.run("minds")) == [shown]


# -- sleep and wake


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"sleep": "asleep", "state": "asleep"}, "m is asleep\n"),
        ({"sleep": "asleep", "state": "paused", "asleep_until": NEW_YEAR}, f"m is asleep until {SHOWN}\n"),
        (
            {"sleep": "falls_asleep", "state": "in_turn"},
            "m will sleep, after a notice and when its turn is over\n",
        ),
        ({"sleep": "awake", "state": "in_turn"}, "m is awake: in_turn\n"),
    ],
)
def test_sleep_says_what_becomes_of_the_mind(daemon: StandIn, answer: dict[str, Any], said: str) -> None:
    daemon.answer("POST /v1/minds/m/sleep", mind(**answer))
    done = daemon.run("sleep", "@m")
    assert (done.returncode, done.stdout) == (0, said)
    assert daemon.asked == [("POST /v1/minds/m/sleep", {"until": None})]


def test_sleep_until_a_time(daemon: StandIn) -> None:
    daemon.answer("POST /v1/minds/m/sleep", mind(sleep="asleep", state="asleep"))
    assert daemon.run("sleep", "m", "--until", "+8h").returncode == 0
    assert abs(daemon.asked[0][1]["until"] - (time.time() + 8 * 3600) * 1000) < 30_000
    done = daemon.run("sleep", "m", "--until", "soon")
    assert (done.returncode, "+10m" in done.stderr) == (2, True)


def test_wake(daemon: StandIn) -> None:
    daemon.answer("POST /v1/minds/m/wake", mind())
    assert daemon.run("wake", "@m").stdout == "m is awake: idle\n"
    assert json.loads(daemon.run("wake", "m", "--json").stdout) == mind()
    assert {request for request, _ in daemon.asked} == {"POST /v1/minds/m/wake"}


@pytest.mark.parametrize(
    "args", [("sleep", "x"), ("wake", "x"), ("mind", "token", "x"), ("route", "test", "x")]
)
def test_an_unknown_mind_has_an_exit_code_of_its_own(daemon: StandIn, args: tuple[str, ...]) -> None:
    path = {"mind": "token", "route": "route"}.get(args[0], args[0])
    daemon.answer(f"POST /v1/minds/x/{path}", {"code": "unknown_mind", "detail": "there is no mind x"}, 404)
    done = daemon.run(*args)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "hostguard: there is no mind x\n")


# -- tokens


def test_a_token_stands_alone_on_stdout(daemon: StandIn) -> None:
    daemon.answer("POST /v1/minds/m/token", {"mind": "m", "token": "se-cret_"})
    done = daemon.run("mind", "token", "@m")
    assert (done.returncode, done.stdout, done.stderr) == (0, "se-cret_\n", "")
    assert json.loads(daemon.run("mind", "token", "m", "--json").stdout)["token"] == "se-cret_"


# -- routes


ROUTED = {
    "mind": "m", "action": "deliver", "session": "s", "path": None, "rule": 2, "mode": "batch",
    "batch": {"debounce_s": 5.0, "max_wait_s": 90.5, "triggers": ["now", "urgent"]},
    "text": "rule 2 matches: session s",
}  # fmt: skip


def test_route_test_tells_the_rule_and_what_becomes_of_it(daemon: StandIn) -> None:
    daemon.answer("POST /v1/minds/m/route", ROUTED)
    done = daemon.run(
        "route", "test", "@m", "--channel", "#c", "--sender", "eve", "--dm", "--participants", "2",
        "--content", "hi", "--session", "s",
    )  # fmt: skip
    assert done.stdout == (
        "Action: deliver\nRule: 2\nSession: s\nMode: batch\nDebounce: 5 s\nLongest wait: 90.5 s\n"
        "Triggers: now, urgent\nrule 2 matches: session s\n"
    )
    given = {
        "channel": "#c",
        "sender": "eve",
        "isDM": True,
        "participantCount": 2,
        "content": "hi",
        "session": "s",
    }
    assert daemon.asked == [("POST /v1/minds/m/route", given)]


def test_route_test_leaves_out_what_is_not_given(daemon: StandIn) -> None:
    gated = dict.fromkeys(ROUTED) | {"action": "gated", "text": "no rule matches"}
    daemon.answer("POST /v1/minds/m/route", gated)
    assert daemon.run("route", "test", "m").stdout == "Action: gated\nno rule matches\n"
    assert daemon.asked == [("POST /v1/minds/m/route", {"content": ""})]


# -- schedules


def schedule(name: str = "s", **more: Any) -> dict[str, Any]:
    return {
        "name": name, "mind": "m", "cron": "0 3 * * *", "at": None, "message": "x", "script": None,
        "session": "main", "timezone": "", "catch_up": "once", "catch_up_window": 86_400,
        "while_sleeping": "", "overlap": "skip", "enabled": True, "source": "kept", "next_at": NEW_YEAR,
        "last_at": None, "last_delivery": None, "skipped": 0, **more,
    }  # fmt: skip


def test_schedule_list(daemon: StandIn) -> None:
    found = [
        schedule(),
        schedule(
            "t", cron=None, at=NEW_YEAR, message=None, script="a | b", source="config", last_at=NEW_YEAR
        ),
        schedule("off", enabled=False),
        schedule("late", last_at=NEW_YEAR, last_delivery=7, skipped=2879),
    ]
    daemon.answer("GET /v1/schedules", {"schedules": found})
    assert lines(daemon.run("schedule", "list")) == [
        ["s", "m", "0 3 * * *", SHOWN, "kept", "x"],
        ["t", "m", SHOWN, SHOWN, SHOWN, "config", "a | b"],
        ["off", "m", "0 3 * * *", "disabled", "kept", "x"],
        ["late", "m", "0 3 * * *", SHOWN, SHOWN, "2879", "kept", "x"],
    ]


def test_schedule_add_sends_what_is_given_and_tells_the_next_time(daemon: StandIn) -> None:
    daemon.answer("POST /v1/schedules", schedule(), 201)
    done = daemon.run(
        "schedule", "add", "s", "@m", "--cron", "0 3 * * *", "--script", "a | b", "--session", "$new",
        "--timezone", "Europe/Berlin", "--catch-up", "all", "--catch-up-window", "2h",
        "--while-sleeping", "queue", "--overlap", "queue",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"s saved; next run {SHOWN}\n"), done
    assert daemon.asked == [
        (
            "POST /v1/schedules",
            {
                "name": "s", "mind": "m", "cron": "0 3 * * *", "script": "a | b", "session": "$new",
                "timezone": "Europe/Berlin", "catch_up": "all", "catch_up_window": 7200,
                "while_sleeping": "queue", "overlap": "queue",
            },
        )
    ]  # fmt: skip


def test_schedule_add_once(daemon: StandIn) -> None:
    daemon.answer("POST /v1/schedules", schedule(next_at=None), 201)
    done = daemon.run("schedule", "add", "s", "m", "--at", "+2h", "--message", "x")
    assert done.stdout == "s saved\n"
    body = daemon.asked[0][1]
    assert abs(body.pop("at") - (time.time() + 7200) * 1000) < 30_000
    assert body == {"name": "s", "mind": "m", "message": "x"}


def test_schedule_remove_and_run_now(daemon: StandIn) -> None:
    daemon.answer("DELETE /v1/schedules/a.b", {})
    daemon.answer("POST /v1/schedules/a.b/run", {"deliveries": [row(7, session="$new")]}, 201)
    assert daemon.run("schedule", "remove", "a.b").stdout == "a.b removed\n"
    assert daemon.run("schedule", "run-now", "a.b").stdout == "7 m/$new queued\n"
    daemon.answer("DELETE /v1/schedules/a.b", {"code": "unknown_schedule", "detail": "no such"}, 404)
    assert daemon.run("schedule", "remove", "a.b").returncode == 4


def test_names_of_schedules_are_completed(daemon: StandIn) -> None:
    daemon.answer("GET /v1/schedules", {"schedules": [schedule("tidy"), schedule("mail")]})
    daemon.extra |= {"_HOSTGUARD_COMPLETE": "bash_complete", "COMP_WORDS": "hostguard schedule remove t"}
    daemon.extra["COMP_CWORD"] = "3"
    assert daemon.run().stdout == "plain,tidy\n"
