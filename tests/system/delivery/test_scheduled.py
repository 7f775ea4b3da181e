"""Schedules on a whole host: real minds, real units, real scopes, and guards that are killed."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from guard import run, wait_for
from guarded import LONG_S
from resident_host import ResidentHost
from times import HOUR, journal, now, settings

from hostguard.telemetry.events import Event

SHARES_GUARD = True


def schedule(host: ResidentHost, name: str, **fields: Any) -> Any:
    return host.post("/v1/schedules", name=name, **fields)


def schedules(host: ResidentHost) -> dict[str, Any]:
    return {one["name"]: one for one in host.get("/v1/schedules")["schedules"]}


def test_aligned_schedules_go_through_the_gate(host: ResidentHost) -> None:
    minds = [host.minds.add(name, work=0.4) for name in ("a", "b", "c")]
    host.start(global_concurrent_turns=2)
    at = now() + 1500
    for mind in minds:
        schedule(host, f"beat-{mind.name}", mind=mind.name, at=at, message="go")
    most = 0
    while not all(mind.log("done") for mind in minds):
        most = max(most, len(host.turns()))
        assert now() < at + LONG_S * 1000
        time.sleep(0.03)
    assert most == 2
    for mind in minds:
        assert mind.contents() == [f"[beat-{mind.name}] go"]
        [line] = mind.log("message")
        assert (line["channel"], line["sender"], line["session"]) == ("@volute", "volute", "main")
        assert at <= line["at"] * 1000
    assert schedules(host) == {}  # they were for once


def test_a_script_says_what_it_found(host: ResidentHost) -> None:
    mind = host.minds.add("m", config='user = "daemon"\ndirectory = "/usr"\n')
    host.start()
    at = now() + 300
    schedule(host, "who", mind="m", at=at, script='echo "$(id -un) in $(pwd)"', session="probe")
    schedule(host, "blank", mind="m", at=at, script="echo; echo ' '")
    schedule(host, "broken", mind="m", at=at, script="echo no such thing; exit 3")
    wait_for(lambda: len(mind.log("done")) >= 2, LONG_S)
    wait_for(lambda: all(row["state"] == "done" for row in host.rows()), LONG_S)
    assert sorted(mind.contents()) == [
        "[broken] [script error] exit status 3: no such thing",
        "[who] daemon in /usr",
    ]
    assert mind.contents("probe") == ["[who] daemon in /usr"]
    assert sorted(row["kind"] for row in host.rows()) == ["schedule"] * 2 + ["script"] * 3


def test_who_may_schedule_a_script(host: ResidentHost) -> None:
    host.minds.add("m", config='user = "daemon"\n')
    host.start()
    body = {"name": "x", "mind": "m", "cron": "@daily", "script": "true"}
    code = (
        "import httpx, json, sys; t = httpx.HTTPTransport(uds='/run/hostguard/hostguard.sock', verify=False);"
        " print(httpx.Client(transport=t).post('http://g/v1/schedules', json=json.loads(sys.argv[1])).status_code)"
    )

    def ask(user: str, body: dict[str, str]) -> int:
        words = [
            "setpriv",
            f"--reuid={user}",
            "--regid=hostguard",
            "--clear-groups",
            sys.executable,
            "-c",
            code,
        ]
        return int(run(*words, json.dumps(body)).stdout)

    assert ask("nobody", body) == 403
    assert schedules(host) == {}
    assert ask("daemon", body) == 201
    assert ask("nobody", {**body, "name": "y", "message": "hi", "script": ""}) == 201


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({}, "cron or at"),
    ({"cron": "* * * *"}, "five fields"),
    ({"cron": "@daily", "at": 1}, "cron or at"),
    ({"at": 1}, "past"),
    ({"at": -1}, "ms since the epoch"),
    ({"at": True}, "at"),
    ({"at": 10**18}, "ms since the epoch"),
    ({"cron": "@daily", "timezone": "Mars/Base"}, "timezone"),
    ({"cron": "@daily", "script": "x"}, "message or script"),
    ({"cron": "@daily", "message": 7}, "message"),
    ({"cron": "@daily", "session": "$other"}, "session"),
    ({"cron": "@daily", "catch_up": "twice"}, "catch_up"),
    ({"cron": "@daily", "catch_up_window": -1}, "catch_up_window"),
    ({"cron": "@daily", "while_sleeping": "dream"}, "while_sleeping"),
    ({"cron": "@daily", "colour": "red"}, "colour"),
    ({"cron": "@daily", "name": "a b"}, "letters"),
    ({"cron": "@daily", "name": None}, "name"),
]


def test_a_schedule_is_checked(host: ResidentHost) -> None:
    host.one()
    for fields, said in FAULTS:
        answer = host.api.post("/v1/schedules", json={"name": "x", "mind": "m", "message": "hi", **fields})
        assert answer.status_code == 400, (fields, answer.text)
        assert said in answer.json()["detail"], (fields, answer.text)
    assert schedules(host) == {}


def test_schedules_are_kept_listed_and_removed(host: ResidentHost) -> None:
    mind = host.minds.add("m")
    rest = '[schedules.tidy]\nmind = "m"\ncron = "0 3 * * *"\nmessage = "tidy up"\nsession = "$new"\ntimezone = "UTC"\n'
    host.start(rest)
    kept = schedule(
        host, "late", mind="m", cron="59 23 31 12 *", message="happy new year", timezone="Asia/Tokyo"
    )
    assert (kept["source"], kept["last_at"], kept["next_at"] % 86_400_000) == (
        "kept",
        None,
        (14 * 60 + 59) * 60_000,
    )
    assert (
        schedule(
            host, "late", mind="m", cron="59 23 31 12 *", message="happy new year", timezone="Asia/Tokyo"
        )
        == kept
    )
    other = host.api.post(
        "/v1/schedules", json={"name": "late", "mind": "m", "cron": "@daily", "message": "x"}
    )
    assert other.status_code == 409
    host.kill()
    found = schedules(host)
    assert found["late"] == kept
    assert (found["tidy"]["source"], found["tidy"]["next_at"] % 86_400_000) == ("config", 3 * HOUR)
    listed = host.guard.cli("schedule", "list").stdout
    assert "late" in listed
    assert "tidy" in listed
    rows = [host.post("/v1/schedules/tidy/run")["deliveries"][0] for _ in range(2)]
    host.done(*(row["id"] for row in rows))
    sessions = [line["session"] for line in mind.log("message")]
    assert len(set(sessions)) == 2
    assert all(len(name) == 12 and name.startswith("new-") for name in sessions)
    assert host.api.delete("/v1/schedules/tidy").status_code == 409
    assert host.api.delete("/v1/schedules/late").status_code == 200
    assert host.api.delete("/v1/schedules/late").status_code == 404
    assert list(schedules(host)) == ["tidy"]


def test_times_missed_while_the_guard_was_away(host: ResidentHost) -> None:
    mind = host.minds.add("m")
    minute = (time.gmtime().tm_min + 30) % 60  # far from now
    tables = [
        f'[schedules.{policy}]\nmind = "m"\ncron = "{minute} * * * *"\nmessage = "go"\ntimezone = "UTC"\n'
        f'catch_up = "{policy}"\ncatch_up_window = "3h"\n'
        for policy in ("skip", "once", "all")
    ]
    host.start("".join(tables))
    wait_for(lambda: all(settings(f"fired.{policy}") for policy in ("skip", "once", "all")))
    host.guard.stop()
    for policy in ("skip", "once", "all"):
        state = settings(f"fired.{policy}")
        settings(f"fired.{policy}", {**state, "seen": state["seen"] - 5 * HOUR})
    host.guard.restart()
    wait_for(lambda: len(host.rows("done")) == 4, LONG_S)
    host.guard.restart()
    assert sorted(mind.contents()) == ["[all] go"] * 3 + ["[once] go"]
    missed = journal(host, Event.MISSED)
    assert sorted(line.split()[2] for line in missed) == ["all", "once", "skip"]
    assert all(line.count("+00:00") == 5 for line in missed)


def test_forty_five_overdue_schedules_at_start(host: ResidentHost) -> None:
    mind = host.minds.add("m", work=0.0)
    minute = (time.gmtime().tm_min + 30) % 60
    table = '[schedules.s{}]\nmind = "m"\ncron = "{} * * * *"\nmessage = "go"\nsession = "$new"\n'
    host.start("".join(table.format(i, minute) for i in range(45)), mind_concurrent_turns=2)
    wait_for(lambda: all(settings(f"fired.s{i}") for i in range(45)))
    host.guard.stop()
    for i in range(45):
        state = settings(f"fired.s{i}")
        settings(f"fired.s{i}", {**state, "seen": state["seen"] - 5 * HOUR})
    host.guard.restart()
    begun = time.monotonic()
    host.get("/v1/status")
    assert time.monotonic() - begun < 2
    most = 0
    while len(host.rows("done")) < 45:
        most = max(most, len(host.turns()))
        assert time.monotonic() - begun < LONG_S
        time.sleep(0.1)
    assert most <= 2
    assert sorted(mind.contents()) == sorted(f"[s{i}] go" for i in range(45))


def test_a_guard_that_is_killed_fires_each_time_once(host: ResidentHost) -> None:
    # A `done` that was told while the guard was away may be lost: idleness ends that turn.
    mind = host.one(work=0.0, config="idle_end = 3\n")
    names = []
    for round_ in range(4):
        at = now() + 600
        for i in range(8):
            names.append(f"r{round_}-{i}")
            schedule(host, names[-1], mind="m", at=at + i * 20, message="go")
        time.sleep(max(0, (at + round_ * 45 - now()) / 1000))
        host.kill()
    wait_for(lambda: len(host.rows("done")) == len(names), LONG_S)
    assert sorted(row["key"].split(":")[1] for row in host.rows()) == sorted(names)
    assert len({line["key"] for line in mind.log("message")}) == len(names)
    assert schedules(host) == {}
