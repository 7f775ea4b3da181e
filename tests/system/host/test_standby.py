"""hostguard.service where it cannot start: it stays, says why to everybody, starts nothing, and goes on by itself."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from bus_relay import Bus
from guard import SOCKET, STATE, UNIT, Guard, drop_in, run, systemctl, wait_for
from guarded import LONG_S
from resident_host import ResidentHost

from hostguard.core import paths

LOOP_S = 12.0  # a loop would show: a restart every 5 s, or several a second with a connection in the backlog
VERBS = (
    ("status",), ("minds",), ("turns",), ("queue",), ("why", "1"), ("send", "@ada", "x"), ("cancel", "1"),
    ("stop", "1"), ("pause",), ("resume",), ("limit", "show"), ("limit", "set", "global_concurrent_turns=1"),
    ("sleep", "ada"), ("schedule", "list"), ("dead", "list"), ("events",), ("pressure",), ("metrics",), ("reload",),
    ("run", "--mind", "ada", "--", "true"), ("report", "-o", "-"), ("top", "--once"),
    ("metrics", "--textfile", "/run/hostguard.prom"),
)  # fmt: skip
# Each verb is tried with the first cause, and these with every cause: what answers is the same.
FEW = VERBS[:1] + VERBS[-4:]
ADA = """
[minds.ada]
command = ["/bin/sh", "-c", "while [ ! -e /run/go ]; do sleep 0.1; done"]
user = "root"
"""


def show(name: str, unit: str = UNIT) -> str:
    return run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()


def give_up() -> None:
    """A client that leaves before anybody accepts: its connection waits in the socket's backlog."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(paths.SOCKET))
        client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: h\r\n\r\n")


class Broken:
    """A way in which the start fails; `reason` is said, `repair` makes it good."""

    reason: str
    own_process = True  # goes on without a new one

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def damage(self) -> None:
        raise NotImplementedError

    def repair(self) -> None:
        raise NotImplementedError

    def clean_up(self) -> None:
        """Leave the host as it was."""


class WrongLine(Broken):
    reason = "limits.global_concurent_turns: unknown key"

    def damage(self) -> None:
        self.guard.configure(f"[limits]\nglobal_concurent_turns = 2\n{ADA}")

    def repair(self) -> None:
        self.guard.configure(ADA)


class NewerSchema(Broken):
    reason = "was written by a newer hostguard (schema 99"

    def _change(self, statement: str, version: int) -> int:
        """Run the statement and set the version; the one before."""
        with closing(sqlite3.connect(paths.DATABASE)) as db:
            before: int = db.execute("PRAGMA user_version").fetchone()[0]
            db.executescript(f"BEGIN; {statement}; PRAGMA user_version={version}; COMMIT;")
        return before

    def damage(self) -> None:
        self.before = self._change("CREATE TABLE of_later (x)", 99)

    def repair(self) -> None:
        self._change("DROP TABLE of_later", self.before)
        self.guard.cli("reload", check=False)  # else within 30 s


UNUSED = Path("/var/lib/hostguard.unused")  # it may have what the package's own guard left in it


class NoPlace(Broken):
    reason = "/var/lib/hostguard, which leads to /mnt/gone, cannot be the directory of the queue"
    own_process = False

    def damage(self) -> None:
        """The state is on a disk of its own, by a link, and the disk is not there."""
        run("umount", str(STATE))
        STATE.rename(UNUSED)
        STATE.symlink_to("/mnt/gone")

    def repair(self) -> None:
        Path("/mnt/gone").mkdir()
        run("mount", "--bind", str(self.guard.state), "/mnt/gone")
        self.guard.cli("reload", check=False)  # else within 2 minutes

    def clean_up(self) -> None:
        self.guard.stop()
        if Path("/mnt/gone").exists():
            run("umount", "/mnt/gone")
            Path("/mnt/gone").rmdir()
        STATE.unlink()
        UNUSED.rename(STATE)
        run("mount", "--bind", str(self.guard.state), str(STATE))


class Rival(Broken):
    reason = "another hostguardd runs on this host"

    def damage(self) -> None:
        self.lock = os.open(paths.LOCK, os.O_RDWR)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def repair(self) -> None:
        os.close(self.lock)


CAUSES = (WrongLine, NewerSchema, NoPlace, Rival)


@pytest.fixture
def go() -> Iterator[Callable[[], None]]:
    """Lets the turns of ada end."""
    Path("/run/go").unlink(missing_ok=True)
    yield Path("/run/go").touch
    Path("/run/go").touch()


@pytest.mark.parametrize("cause", CAUSES)
def test_it_stays_says_why_and_goes_on_once_it_can(
    guard: Guard, cause: type[Broken], go: Callable[[], None], request: pytest.FixtureRequest
) -> None:
    guard.start(ADA)
    guard.cli("send", "@ada", "first")
    wait_for(guard.scopes)
    guard.cli("send", "@ada", "second")
    broken = cause(guard)
    systemctl("stop", UNIT)  # the socket is open
    broken.damage()
    request.addfinalizer(broken.clean_up)
    began = time.time()
    systemctl("start", UNIT)
    for _ in range(3):
        give_up()
    assert show("ActiveState") == "active"
    pid = guard.pid

    Path("/run/hostguard.prom").write_text("old")
    for verb in VERBS if cause is CAUSES[0] else FEW:
        asked = time.monotonic()
        done = guard.cli(*verb, check=False)
        assert done.returncode == 1, (verb, done)
        assert broken.reason in " ".join(done.stderr.split()), (verb, done)
        assert "Until this is corrected, nothing is accepted or started; 1 turn in progress" in done.stderr
        assert time.monotonic() - asked < LONG_S / 4, verb
    assert not Path("/run/hostguard.prom").exists(), "old numbers would look like new ones"
    status = json.loads(guard.cli("status", "--json", check=False).stdout)
    assert (status["state"], status["turns"], status["live"][0]["id"]) == ("standby", 1, "1")
    assert "!! daemon   is on standby" in guard.cli("status", check=False).stdout
    assert show("StatusText").startswith("on standby, 1 turn in progress: ")
    assert broken.reason in show("StatusText")
    assert subprocess.run(["systemctl", "reload", UNIT], capture_output=True, check=False).returncode != 0
    found = guard.cli("doctor", check=False).stdout
    assert broken.reason in " ".join(found.split()) or cause is NoPlace, found

    time.sleep(max(0.0, began + LOOP_S - time.time()))
    assert (guard.pid, show("NRestarts")) == (pid, "0"), "one start"
    lines = [entry["MESSAGE"] for entry in guard.journal(f"_PID={pid}") + guard.journal(f"UNIT={UNIT}")]
    assert len([line for line in lines if "on standby" in line]) == 1, lines
    assert len(lines) < 40, lines  # with those of the start before, the stop, and the reloads

    assert guard.scopes() == ["hostguard-turn-ada-1.scope"], "it goes on"
    broken.repair()
    wait_for(lambda: guard.cli("status", check=False).returncode == 0, LONG_S)
    assert (guard.pid == pid) == cause.own_process
    assert [turn["id"] for turn in guard.json("turns")["turns"]] == ["1"]
    assert show("StatusText").startswith("1 turns, 1 held")
    go()
    wait_for(lambda: [guard.json("queue", str(row))["state"] for row in (1, 2)] == ["done"] * 2, LONG_S)


def test_without_systemd_it_stays_too(guard: Guard, bus: Bus) -> None:
    guard.configure(ADA)
    bus.cut()
    guard.start(ADA)
    give_up()
    pid = guard.pid
    assert "systemd cannot be used: cannot reach the system bus" in guard.cli("minds", check=False).stderr
    time.sleep(7)  # it tried again, and would have been restarted
    bus.mend()
    wait_for(lambda: guard.cli("status", check=False).returncode == 0, LONG_S)
    assert (guard.pid, show("NRestarts")) == (pid, "0")


def test_a_turn_that_ends_meanwhile_is_accounted_for_by_its_record(
    guard: Guard, go: Callable[[], None]
) -> None:
    guard.start(ADA)
    guard.cli("send", "@ada", "first")
    wait_for(guard.scopes)
    guard.configure("[limits]\nx = 2\n")
    systemctl("restart", UNIT)
    assert "1 turn in progress" in guard.cli("status", check=False).stderr
    go()
    wait_for(lambda: "no turns in progress" in guard.cli("status", check=False).stderr)
    guard.configure(ADA)
    guard.wait_ready()
    row = guard.json("queue", "1")
    assert (row["state"], row["attempts"], row["result"]["exit"]) == ("done", 0, 0)


def test_a_run_that_waits_outlasts_it(guard: Guard, go: Callable[[], None]) -> None:
    guard.start(ADA)
    guard.cli("send", "@ada", "first")
    wait_for(guard.scopes)
    command = ["hostguard", "run", "--mind", "ada", "--", "echo", "ran"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        wait_for(lambda: guard.json("status")["held"] == 1)
        guard.configure("[limits]\nx = 2\n")
        systemctl("restart", UNIT)
        time.sleep(3)
        assert waiting.poll() is None
        guard.configure(ADA)
        guard.wait_ready()
        go()
        out, err = waiting.communicate(timeout=LONG_S)
    assert (waiting.returncode, out) == (0, "ran\n"), err


def test_the_done_of_a_resident_mind_waits_in_the_socket(host: ResidentHost) -> None:
    mind = host.one("normal", work=3, config="idle_end = 60")
    row = host.send("m", "x")
    host.in_turn(row)
    good = host.minds.config()
    host.guard.configure(f"{good}\n[limits]\nx = 2\n")
    systemctl("restart", UNIT)
    assert "limits" in host.guard.cli("status", check=False).stderr
    wait_for(lambda: mind.log("end"), LONG_S)
    time.sleep(3)  # it has said so, and waits for the answer or gave up
    assert len(host.guard.scopes()) == 1
    host.guard.configure(good)
    host.guard.wait_ready()
    host.done(row)
    assert host.ended(row)[0] == "done"
    assert len(mind.taken()) == 1


def test_a_reload_ends_standby_and_a_stop_too(guard: Guard) -> None:
    guard.start(ADA)
    guard.configure("[limits]\nx = 2\n")
    systemctl("restart", UNIT)
    guard.configure(ADA)
    systemctl("reload", UNIT)
    guard.wait_ready()
    guard.configure("[limits]\nx = 2\n")
    systemctl("restart", UNIT)
    began = time.monotonic()
    systemctl("stop", UNIT)
    assert time.monotonic() - began < 10
    assert (show("Result"), show("ExecMainStatus")) == ("success", "0")


@contextmanager
def process_that_fails() -> Iterator[None]:
    """As a broken upgrade: the daemon's process ends at once, whatever it is told."""
    with drop_in("ExecStart=\nExecStart=/bin/sh -c 'exit 1'"):
        yield


def test_a_process_that_cannot_start_is_not_started_by_the_backlog(guard: Guard) -> None:
    guard.start(ADA)
    with process_that_fails():
        subprocess.run(["systemctl", "restart", UNIT], capture_output=True, check=False)
        began = time.time()
        give_up()
        time.sleep(LOOP_S)
        starts = [
            entry for entry in guard.journal(f"UNIT={UNIT}")
            if float(entry["__REALTIME_TIMESTAMP"]) / 1e6 > began and entry["MESSAGE"].startswith("Starting ")
        ]  # fmt: skip
        # 8 by the backlog, and one every 5 s by Restart=.
        assert len(starts) < 8 + LOOP_S / 5 + 3, len(starts)
        asked = time.monotonic()
        done = guard.cli("status", check=False)
        assert done.returncode == 3
        assert time.monotonic() - asked < 20
    systemctl("restart", UNIT)
    guard.wait_ready()
    assert show("ActiveState", SOCKET) == "active"


def test_run_does_without_a_daemon_that_is_stopped_but_not_on_standby(guard: Guard) -> None:
    guard.start(ADA)
    guard.configure(f"{ADA}[limits]\nx = 2\n")
    systemctl("restart", UNIT)
    refused = guard.cli("run", "--mind", "ada", "--", "true", check=False)
    assert (refused.returncode, "nothing is accepted or started" in refused.stderr) == (1, True)
    guard.configure(f'{ADA}[minds.bob]\ncommand = ["/bin/true"]\nuser = "ghost"\n')
    guard.stop()
    assert guard.cli("run", "--mind", "ada", "--", "true").returncode == 0
    refused = guard.cli("run", "--mind", "bob", "--", "true", check=False)
    assert (refused.returncode, 'there is no user "ghost"' in refused.stderr) == (1, True)


# -- one bad part does not stop the rest at a start

PARTS = """
[minds.ok]
command = ["/bin/true"]
user = "root"
[minds.userless]
command = ["/bin/true"]
user = "ghost"
[minds.gone]
command = ["/opt/gone/turn"]
user = "root"
[schedules.fine]
mind = "ok"
cron = "0 3 * * *"
message = "x"
[schedules.lost]
mind = "ok"
cron = "* * * * *"
timezone = "Europe/Atlantis"
message = "x"
"""
ZONES = Path("/usr/share/zoneinfo")


@pytest.fixture
def lost_and_found() -> Iterator[None]:
    yield
    subprocess.run(["userdel", "--remove", "ghost"], capture_output=True, check=False)
    shutil.rmtree("/opt/gone", ignore_errors=True)
    (ZONES / "Europe/Atlantis").unlink(missing_ok=True)


def broken_parts(guard: Guard) -> dict[str, str]:
    found = {problem["code"]: problem["text"] for problem in guard.json("status")["problems"]}
    return {code: text for code, text in found.items() if code.endswith("_broken")}


@pytest.mark.usefixtures("lost_and_found")
def test_what_the_host_lacks_is_held_and_the_rest_works(guard: Guard) -> None:
    guard.start(PARTS)
    zone = "this host knows no time zone Europe/Atlantis (older names are in the package tzdata-legacy)"
    minds = 'userless: there is no user "ghost" on this host; gone: there is no program "/opt/gone/turn"'
    assert broken_parts(guard) == {
        "mind_broken": f"{minds}; held until that is there",
        "schedule_broken": f"schedule lost: {zone}; held until that is fixed",
    }
    first, second, *_ = guard.cli("status").stdout.splitlines()
    assert first.startswith('!! broken   userless: there is no user "ghost" on this host')
    assert second.startswith("!! broken   schedule lost: this host knows no time zone")

    assert guard.cli("send", "@ok", "x", "--wait").returncode == 0
    userless = guard.json("send", "@userless", "x")["deliveries"][0]["id"]
    gone = guard.json("send", "@gone", "x")["deliveries"][0]["id"]
    why = guard.json("why", str(userless))
    assert (why["reason"], 'there is no user "ghost"' in why["text"]) == ("mind_broken", True)
    assert guard.json("why", str(gone))["reason"] == "mind_broken"
    states = {mind["name"]: mind["state"] for mind in guard.json("minds")["minds"]}
    assert states == {"ok": "idle", "userless": "broken", "gone": "broken"}
    assert 'hostguard_mind_broken{mind="gone"} 1.0' in guard.cli("metrics").stdout
    assert 'hostguard_holds_total{reason="mind_broken"} 2.0' in guard.cli("metrics").stdout
    schedules = {one["name"]: one for one in guard.json("schedule", "list")["schedules"]}
    assert (schedules["lost"]["held"], schedules["lost"]["next_at"]) == (zone, None)
    assert (schedules["fine"]["held"], schedules["fine"]["next_at"] is None) == (None, False)

    refused = guard.cli("reload", check=False)
    assert (refused.returncode, 'there is no user "ghost"' in refused.stderr) == (1, True)
    checked = guard.cli("config", "check", check=False)
    assert (checked.returncode, 'there is no user "ghost"' in checked.stderr) == (1, True)
    assert 'there is no user "ghost"' in " ".join(guard.cli("doctor", check=False).stdout.split())
    assert guard.json("queue", str(gone))["state"] == "queued"
    assert guard.json("queue", str(gone))["attempts"] == 0

    run("useradd", "--create-home", "ghost")
    Path("/opt/gone").mkdir(parents=True)
    Path("/opt/gone/turn").write_text("#!/bin/sh\n")
    Path("/opt/gone/turn").chmod(0o755)
    shutil.copy(ZONES / "UTC", ZONES / "Europe/Atlantis")
    wait_for(lambda: guard.json("queue", str(userless))["state"] == "done", LONG_S)
    wait_for(lambda: guard.json("queue", str(gone))["state"] == "done", LONG_S)
    wait_for(lambda: guard.json("schedule", "list")["schedules"][1]["next_at"], LONG_S)
    guard.reload()
    assert broken_parts(guard) == {}
    assert 'hostguard_mind_broken{mind="gone"} 0.0' in guard.cli("metrics").stdout


@pytest.mark.usefixtures("lost_and_found")
def test_a_user_that_goes_away_holds_its_mind_at_the_next_start(guard: Guard) -> None:
    run("useradd", "--create-home", "ghost")
    guard.start(PARTS.replace('"Europe/Atlantis"', '"UTC"'))
    row = guard.json("send", "@userless", "x")["deliveries"][0]["id"]
    wait_for(lambda: guard.json("queue", str(row))["state"] == "done", LONG_S)
    run("userdel", "--remove", "ghost")
    guard.cli("pause", "userless")
    row = guard.json("send", "@userless", "x")["deliveries"][0]["id"]
    guard.restart()
    guard.cli("resume", "userless")
    assert guard.json("why", str(row))["reason"] == "mind_broken"
    run("useradd", "--create-home", "ghost")
    guard.reload()
    wait_for(lambda: guard.json("queue", str(row))["state"] == "done", LONG_S)
