"""Schedules whose earlier message still waits, on a whole host: a paused mind, a busy one, and days of absence."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from guard import Guard, wait_for
from guarded import LONG_S
from resident_host import ResidentHost
from times import HOUR, journal, settings

from hostguard.telemetry.events import Event

FAR = (time.gmtime().tm_min + 30) % 60  # a minute that does not come during a test
DAYS = 48 * HOUR
BEAT = '[schedules.beat]\nmind = "m"\ncron = "* * * * *"\nmessage = "beat"\n'


def one(host: ResidentHost, name: str) -> Any:
    return {found["name"]: found for found in host.get("/v1/schedules")["schedules"]}[name]


def waiting(host: ResidentHost) -> list[Any]:
    return [row for row in host.rows("queued") if row["kind"] in ("schedule", "script")]


def away(host: ResidentHost, ms: int, *names: str) -> None:
    """The guard is down for that long, as these schedules see it."""
    host.guard.stop()
    for name in names:
        state = settings(f"fired.{name}")
        settings(f"fired.{name}", {**state, "seen": state["seen"] - ms})
    host.guard.restart()


def test_a_paused_mind_has_one_beat_and_room_for_everybody(host: ResidentHost) -> None:
    """Minutes of real time, then two days of absence, with rows_per_mind = 5."""
    mind = host.minds.add("m", work=0.0)
    host.start(BEAT, rows_per_mind=5)
    host.post("/v1/pause", mind="m")
    wait_for(lambda: waiting(host), 70)
    row = waiting(host)[0]["id"]
    wait_for(lambda: one(host, "beat")["skipped"] == 1, 70)
    for _ in range(2):
        away(host, DAYS, "beat")
        assert host.guard.pid
    wait_for(lambda: one(host, "beat")["skipped"] > 1000, LONG_S)
    assert [found["id"] for found in waiting(host)] == [row]
    assert one(host, "beat")["last_delivery"] == row
    listed = host.guard.cli("schedule", "list").stdout
    assert re.search(
        rf"^beat +m +\* \* \* \* \* .* {one(host, 'beat')['skipped']} +config +beat$", listed, re.M
    ), listed
    assert [line.partition(": ")[2] for line in journal(host, Event.SKIPPED)] == [
        f"schedule beat: its times are skipped while delivery {row} has not begun: hostguard why {row}"
    ]
    assert journal(host, Event.MISSED) == []

    sent = [host.send("m", f"person {n}") for n in range(5)]  # the beat takes none of their room
    full = host.guard.cli("send", "@m", "one too many", check=False)
    assert (full.returncode, full.stdout) == (1, "")
    assert "its 5 rows (limits.rows_per_mind)" in full.stderr

    skipped = one(host, "beat")["skipped"]
    host.post("/v1/resume", mind="m")
    host.done(row, *sent)
    texts = [text.rpartition("\n")[2] for text in mind.contents()]  # what waited long says so, a line before
    assert texts[0] == "[beat] beat"
    assert [text for text in texts if text != "[beat] beat"] == [f"person {n}" for n in range(5)]
    wait_for(lambda: one(host, "beat")["last_delivery"] != row, 70)
    assert one(host, "beat")["skipped"] == 0
    [_, again] = journal(host, Event.SKIPPED)
    assert re.search(
        rf"schedule beat: it fires again; ({skipped}|{skipped + 1}) of its times were skipped$", again
    )


def test_a_schedule_that_queues_is_bounded_and_takes_no_room(host: ResidentHost) -> None:
    """`all` makes up for 48 runs; the mind's room for schedules is 5, and a person's room is a person's."""
    host.minds.add("m", work=0.0)
    rest = (
        f'[schedules.all]\nmind = "m"\ncron = "{FAR} * * * *"\nmessage = "go"\ntimezone = "UTC"\n'
        'catch_up = "all"\ncatch_up_window = "30d"\noverlap = "queue"\n'
    )
    host.start(rest, rows_per_mind=5)
    wait_for(lambda: settings("fired.all"), LONG_S)
    host.post("/v1/pause", mind="m")
    away(host, DAYS, "all")
    wait_for(lambda: len(waiting(host)) == 5, LONG_S)
    sent = [host.send("m", f"person {n}") for n in range(5)]
    assert host.api.post("/v1/deliveries", json={"to": "@m", "content": "x"}).status_code == 429
    host.guard.cli("cancel", *(str(found["id"]) for found in waiting(host)))
    host.api.delete("/v1/schedules/all")
    host.guard.configure(host.minds.config(rows_per_mind=5))
    host.guard.reload()
    host.post("/v1/resume", mind="m")
    host.done(*sent)


def test_a_busy_exec_mind_and_a_script_whose_output_waits(guard: Guard, tmp_path: Path) -> None:
    """An added schedule with a script: while it runs, and while its output waits, it is not run again."""
    go = Path("/run/overlap-go")
    config = (
        '[limits]\nmind_concurrent_turns = 2\n[minds.m]\ncommand = ["/bin/sh", "-c", '
        f'"until [ -e {go} ]; do sleep 0.1; done"]\nuser = "root"\n'
    )
    guard.start(config)
    with guard.client() as api:

        def post(path: str, **body: Any) -> Any:
            answer = api.post(path, json=body)
            assert answer.is_success, answer.text
            return answer.json()

        def rows() -> list[Any]:
            found: list[Any] = api.get("/v1/deliveries?state=all").json()["deliveries"]
            return found

        def skipped() -> int:
            [found] = api.get("/v1/schedules").json()["schedules"]
            return int(found["skipped"])

        post("/v1/deliveries", to="@m", content="busy")  # the session main is taken
        guard.cli("schedule", "add", "look", "@m", "--cron", "* * * * *", "--script", "echo 1%")
        wait_for(lambda: [row["kind"] for row in rows()] == ["message", "script", "schedule"], 70)
        script, output = rows()[1:]
        assert (script["state"], output["state"]) == ("done", "queued")
        assert script["result"]["delivery"] == output["id"]
        wait_for(lambda: skipped() == 1, 70)
        assert len(rows()) == 3
        go.touch()
        try:
            wait_for(lambda: rows()[2]["state"] == "done", LONG_S)
            wait_for(lambda: len(rows()) > 3, 70)
            assert rows()[3]["kind"] == "script"
            guard.cli("schedule", "remove", "look")
            wait_for(lambda: all(row["state"] == "done" for row in rows()), LONG_S)
        finally:
            go.unlink()
    wait_for(lambda: not guard.scopes())


def test_skipped_times_survive_a_kill(host: ResidentHost) -> None:
    """The guard is killed between two runs: none is made up for, and none doubled."""
    host.minds.add("m", work=0.0)
    rest = (
        f'[schedules.all]\nmind = "m"\ncron = "{FAR} * * * *"\nmessage = "go"\ntimezone = "UTC"\n'
        'catch_up = "all"\ncatch_up_window = "30d"\n'
    )
    host.start(rest)
    wait_for(lambda: settings("fired.all"), LONG_S)
    host.post("/v1/pause", mind="m")
    away(host, HOUR, "all")
    wait_for(lambda: len(waiting(host)) == 1, LONG_S)
    away(host, 10 * HOUR, "all")
    wait_for(lambda: one(host, "all")["skipped"] == 10, LONG_S)
    host.kill()
    host.post("/v1/resume", mind="m")
    wait_for(lambda: not waiting(host), LONG_S)
    host.kill()
    assert len(host.rows()) == 1
    assert one(host, "all")["skipped"] == 10
