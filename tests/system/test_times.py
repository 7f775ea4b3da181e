"""Schedules, sleep and wake on a whole host: real minds, real units, real scopes, and guards that are killed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from guard import Guard, run, systemctl, wait_for
from guarded import LONG_S
from minds import OneMind
from resident_host import ResidentHost

from hostguard import paths
from hostguard.events import MESSAGE_IDS, Event

HOUR = 3_600_000


@pytest.fixture
def host(guard: Guard) -> Iterator[ResidentHost]:
    with ResidentHost(guard) as host:
        yield host


def now() -> int:
    return int(time.time() * 1000)


def schedule(host: ResidentHost, name: str, **fields: Any) -> Any:
    return host.post("/v1/schedules", name=name, **fields)


def schedules(host: ResidentHost) -> dict[str, Any]:
    return {one["name"]: one for one in host.get("/v1/schedules")["schedules"]}


def mind_state(host: ResidentHost, name: str = "m") -> Any:
    [found] = [one for one in host.get("/v1/minds")["minds"] if one["name"] == name]
    return found


def journal(host: ResidentHost, event: Event) -> list[str]:
    return [line["MESSAGE"] for line in host.guard.journal(f"MESSAGE_ID={MESSAGE_IDS[event]}")]


def active(mind: OneMind) -> bool:
    return subprocess.run(["systemctl", "is-active", "--quiet", mind.unit], check=False).returncode == 0


def settings(name: str, value: Any = None) -> Any:
    """Of the database: read one, or set it while the guard is down."""
    with closing(sqlite3.connect(paths.DATABASE, timeout=10)) as db, db:
        if value is not None:
            db.execute("REPLACE INTO settings (name, value) VALUES (?, ?)", (name, json.dumps(value)))
        found = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return json.loads(found[0]) if found else None


# -- schedules


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
    assert most == 2
    for mind in minds:
        assert mind.contents() == [f"[beat-{mind.name}] go"]
        [line] = mind.log("message")
        assert (line["channel"], line["sender"], line["session"]) == ("@volute", "volute", "main")
        assert at <= line["at"] * 1000 < at + 5000
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
        "import httpx, json, sys; t = httpx.HTTPTransport(uds='/run/hostguard/hostguard.sock');"
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
    ({"cron": "@daily", "mind": "nobody"}, "configured mind"),
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


# -- sleep and wake


def to_sleep(host: ResidentHost, mind: OneMind, until: int | None = None) -> None:
    told = len(mind.contents())
    host.post("/v1/minds/m/sleep", until=until)
    wait_for(lambda: mind_state(host)["state"] == "asleep", LONG_S)
    assert "You are about to sleep" in mind.contents()[told]


def test_a_mind_sleeps_and_wakes_with_its_unit_and_its_rows_in_order(host: ResidentHost) -> None:
    mind = host.minds.add("m", work=0.05, config="wake_on = { dm = false, mention = false }\n")
    host.start()
    to_sleep(host, mind)
    wait_for(lambda: not active(mind), LONG_S)
    rows = [host.send("m", str(i)) for i in range(50)]
    assert all(host.row(row)["state"] == "queued" for row in rows)
    assert host.get(f"/v1/deliveries/{rows[0]}/why")["reason"] == "asleep"
    host.kill()
    assert mind_state(host)["state"] == "asleep"
    assert not active(mind)
    assert host.turns() == []
    host.post("/v1/minds/m/wake")
    assert active(mind)
    host.done(*rows)
    wait_for(lambda: len(mind.contents()) == 52, LONG_S)
    assert mind.contents()[1:51] == [str(i) for i in range(50)]
    assert "woken by request. Messages that waited: 50" in mind.contents()[51]
    wait_for(lambda: mind_state(host)["state"] == "idle", LONG_S)
    assert [row["kind"] for row in host.rows()] == ["lifecycle", *["message"] * 50, "wake"]
    assert len(journal(host, Event.ASLEEP)) == len(journal(host, Event.AWAKE)) == 1
    host.kill()
    assert mind_state(host)["state"] == "idle"
    host.done(host.send("m", "awake"))


def test_a_message_wakes_a_mind_which_sleeps_again(host: ResidentHost) -> None:
    mind = host.minds.add("m", config="sleep_after = 1\n")
    host.start()
    until = now() + HOUR
    to_sleep(host, mind, until)
    wait_for(lambda: not active(mind), LONG_S)
    kept = host.send("m", "later", isDM=False, channel="#x")
    assert host.row(kept)["state"] == "queued"
    dropped = host.send("m", "not now", whileSleeping="skip")
    assert host.row(dropped)["state"] == "skipped"
    asked = host.send("m", "now")
    host.done(kept, asked)
    assert mind.contents()[1:] == ["later", "now"]
    wait_for(lambda: mind_state(host)["state"] == "asleep", LONG_S)
    assert mind_state(host)["asleep_until"] == until
    wait_for(lambda: not active(mind), LONG_S)
    assert len(mind.contents()) == 3  # neither told that it wakes nor that it sleeps
    host.done(host.send("m", "hey @M", isDM=False, channel="#x"))
    wait_for(lambda: mind_state(host)["state"] == "asleep", LONG_S)
    host.post("/v1/minds/m/wake")
    assert mind_state(host)["state"] != "asleep"
    assert settings("woken.mind.m") is None


def test_a_mind_wakes_at_the_time_that_was_set(host: ResidentHost) -> None:
    mind = host.one()
    until = now() + 3000
    to_sleep(host, mind, until)
    row = host.send("m", "x", whileSleeping="queue")
    host.guard.stop()
    assert settings("sleep.mind.m")["until"] == until
    time.sleep(max(0, (until - now()) / 1000) + 0.3)  # the guard is away at that time
    host.guard.restart()
    host.done(row)
    wait_for(lambda: len(mind.contents()) == 3, LONG_S)
    assert "at the time that was set" in mind.contents()[-1]


def test_falling_asleep_survives_a_kill_and_a_wake(host: ResidentHost) -> None:
    mind = host.one(work=1.0)
    busy = host.send("m", "x", session="other")
    host.in_turn(busy)
    host.post("/v1/minds/m/sleep")  # its message waits behind the turn
    host.post("/v1/minds/m/wake")
    assert [row["state"] for row in host.rows() if row["kind"] == "lifecycle"] == ["cancelled"]
    host.post("/v1/minds/m/sleep")
    host.kill()
    wait_for(lambda: mind_state(host)["state"] == "asleep", LONG_S)
    host.done(busy)
    assert len(mind.contents()) == 2
    wait_for(lambda: not active(mind), LONG_S)
    host.post("/v1/minds/m/wake")


def test_a_busy_mind_sleeps_after_the_rows_before_it(host: ResidentHost) -> None:
    host.minds.add("m", work=0.2, config="wake_on = { dm = false, mention = false }\n")
    host.start()
    rows = [host.send("m", str(i), session=f"s{i}") for i in range(6)]
    host.post("/v1/minds/m/sleep")
    later = [host.send("m", str(i), session=f"t{i}") for i in range(6)]
    host.done(*rows)
    wait_for(lambda: mind_state(host)["state"] == "asleep", LONG_S)
    assert [host.row(row)["state"] for row in later] == ["queued"] * 6  # not one slipped in
    host.post("/v1/minds/m/wake")
    host.done(*later)


def test_a_unit_that_does_not_start(host: ResidentHost) -> None:
    mind = host.one()
    to_sleep(host, mind)
    wait_for(lambda: not active(mind), LONG_S)
    good = mind.file.read_text()
    mind.file.write_text(good.replace("[Service]", "[Service]\nExecStartPre=/bin/false\nRestart=no"))
    systemctl("daemon-reload")
    host.post("/v1/minds/m/wake")
    row = host.send("m", "x")
    wait_for(lambda: host.get(f"/v1/deliveries/{row}/why")["reason"] == "mind_down", LONG_S)
    assert any(
        f"{mind.unit}: " in line["MESSAGE"] for line in host.guard.journal("_SYSTEMD_UNIT=hostguard.service")
    )
    assert host.row(row)["attempts"] == 0
    mind.file.write_text(good)
    systemctl("daemon-reload")
    systemctl("start", mind.unit)
    host.done(row)


def test_a_mind_is_woken_while_its_unit_still_stops(host: ResidentHost) -> None:
    mind = host.minds.add("m")
    host.start()
    slow = mind.file.read_text().replace("[Service]", "[Service]\nExecStop=/bin/sleep 2")
    mind.file.write_text(slow)
    systemctl("daemon-reload")
    to_sleep(host, mind)
    assert run("systemctl", "show", "--value", "--property=SubState", mind.unit).stdout == "stop\n"
    begun = now()
    host.post("/v1/minds/m/wake")
    assert now() - begun > 1000, "a wake is over when the unit is up again"
    assert active(mind)
    host.done(host.send("m", "x"))
    assert not [line for line in host.guard.journal("PRIORITY=3") if mind.unit in line["MESSAGE"]]
    mind.file.write_text(slow.replace("ExecStop=/bin/sleep 2", ""))
    systemctl("daemon-reload")


def test_an_exec_mind_sleeps_and_what_waited_runs_in_order(guard: Guard) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, command = Path(folder, "log"), Path(folder, "mind")
        log.touch(mode=0o666)
        log.chmod(0o666)
        Path(folder).chmod(0o755)
        command.write_text(f"""#!/bin/sh\necho "$HOSTGUARD_DELIVERY" >>{log}\n""")
        command.chmod(0o755)
        guard.start(f'[minds.m]\ncommand = ["{command}"]\nuser = "daemon"\nwake_on = {{ dm = false }}\n')
        guard.cli("sleep", "m", "--until", "+1h")
        wait_for(lambda: guard.json("minds")["minds"][0]["state"] == "asleep", LONG_S)
        with guard.client() as api:
            sent = [api.post("/v1/deliveries", json={"to": "m", "content": i}).json() for i in range(50)]
        rows = [answer["deliveries"][0]["id"] for answer in sent]
        assert log.read_text().split() == ["1"], "it was told, and nothing else"
        guard.cli("wake", "m")
        wait_for(lambda: len(log.read_text().split()) == 52, LONG_S)
        assert log.read_text().split() == ["1", *map(str, rows), str(rows[-1] + 1)]
        wait_for(lambda: not guard.scopes())
