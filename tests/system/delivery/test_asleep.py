"""Sleep and wake on a whole host: real minds, real units, real scopes, and guards that are killed."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from guard import Guard, run, systemctl, wait_for
from guarded import LONG_S
from minds import OneMind
from resident_host import ResidentHost
from times import HOUR, journal, now, settings

from hostguard.telemetry.events import Event

SHARES_GUARD = True


def mind_state(host: ResidentHost) -> Any:
    [found] = [one for one in host.get("/v1/minds")["minds"] if one["name"] == "m"]
    return found


def active(mind: OneMind) -> bool:
    return subprocess.run(["systemctl", "is-active", "--quiet", mind.unit], check=False).returncode == 0


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
    until = now() + HOUR
    to_sleep(host, mind, until)
    row = host.send("m", "x", whileSleeping="queue")
    host.guard.stop()
    state = settings("sleep.mind.m")
    assert state["until"] == until
    settings("sleep.mind.m", {**state, "until": now() - 1})  # the guard is away at that time
    host.guard.restart()
    host.done(row)
    wait_for(lambda: len(mind.contents()) == 3, LONG_S)
    assert "at the time that was set" in mind.contents()[-1]


def test_falling_asleep_survives_a_kill_and_a_wake(host: ResidentHost) -> None:
    mind = host.one()
    busy = host.send("m", "x !work=60", session="other")
    turn = host.in_turn(busy)
    host.post("/v1/minds/m/sleep")  # its message waits behind the turn
    host.post("/v1/minds/m/wake")
    assert [row["state"] for row in host.rows() if row["kind"] == "lifecycle"] == ["cancelled"]
    host.post("/v1/minds/m/sleep")
    host.kill()
    host.post(f"/v1/turns/{turn['id']}/stop")
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
    slow = mind.file.read_text().replace("[Service]", "[Service]\nExecStop=/bin/sleep 5")
    mind.file.write_text(slow)
    systemctl("daemon-reload")
    to_sleep(host, mind)
    state = ("systemctl", "show", "--value", "--property=SubState", mind.unit)
    wait_for(lambda: run(*state).stdout == "stop\n")
    begun = now()
    host.post("/v1/minds/m/wake")
    assert now() - begun > 1000, "a wake is over when the unit is up again"
    assert active(mind)
    host.done(host.send("m", "x"))
    assert not [line for line in host.guard.journal("PRIORITY=3") if mind.unit in line["MESSAGE"]]
    mind.file.write_text(slow.replace("ExecStop=/bin/sleep 5", ""))
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
        told = str(rows[0] - 1)
        assert log.read_text().split() == [told], "it was told, and nothing else"
        guard.cli("wake", "m")
        wait_for(lambda: len(log.read_text().split()) == 52, LONG_S)
        assert log.read_text().split() == [told, *map(str, rows), str(rows[-1] + 1)]
        wait_for(lambda: not guard.scopes())
