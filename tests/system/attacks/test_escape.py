"""A mind's user with code of its own leaves its turn's scope. The user lingers, and may use cron, at and ssh."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guard import Guard, run, systemctl, wait_for
from guarded import GuardedHost
from user_manager import as_user

from hostguard.core.units import HOLDER
from hostguard.linux import cgroup

EVE = "eve"
HOME = Path("/home", EVE)
# Runs what its message says, in a shell whose parent is the process that keeps the slot.
TURN = """import json, os, sys
os.environ["XDG_RUNTIME_DIR"] = f"/run/user/{os.getuid()}"
os.execv("/bin/sh", ["sh", "-c", json.load(sys.stdin)["content"]])
"""
# The same as a resident mind's server: in a process of its own for each message.
SERVER = """import http.server, json, subprocess
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        subprocess.Popen(["/bin/sh", "-c", message["content"]])
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 4111), Handler).serve_forever()
"""
CONFIG = f"""
[minds.eve]
command = ["/usr/bin/python3", "{HOME}/turn.py"]
user = "{EVE}"
[minds.server]
url = "http://127.0.0.1:4111"
unit = "eves-server.service"
user = "{EVE}"
idle_end = "2s"
"""
MANAGER = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"


class Attacked(GuardedHost):
    """The guard with a mind whose turns do what their message says."""

    uid = 0

    def attach(self, *pids: str) -> str:
        """A command that has systemd move processes to the user's own manager."""
        unit = f"user@{self.uid}.service"
        return f'busctl call {MANAGER} AttachProcessesToUnit ssau {unit} "" {len(pids)} {" ".join(pids)}'

    def turn(self, script: str) -> int:
        """Start a turn that runs the script, and wait until it wrote the file `up`; its row."""
        row = self.send("@eve", f"{script}; touch {HOME}/up; {WAIT}")
        wait_for((HOME / "up").exists, 30)
        return row

    def stub(self) -> int:
        """The process that keeps the slot of the only turn."""
        [turn] = self.turns()
        folder = cgroup.ROOT / f"hostguard.slice/hostguard-{turn['mind']}.slice" / turn["unit"]
        [pid] = [pid for pid in cgroup.pids(folder) if Path(f"/proc/{pid}").stat().st_uid in (0, HOLDER)]
        return pid

    def held(self) -> int:
        """A message that has to wait for a slot of the mind's; its row."""
        row = self.send("@eve", "true", session="another")
        assert self.row(row)["hold"]["reason"] == "mind_busy"
        return row


WAIT = f"read _ <{HOME}/go"  # until the test says so
SERVICES = ("systemd-logind", "systemd-user-sessions", "cron", "atd", "ssh")
SSH = f"ssh -i {HOME}/key -o BatchMode=yes -o StrictHostKeyChecking=no -o LogLevel=ERROR 127.0.0.1"
JOB = HOME / "job"


def go() -> None:
    """Let a process that waits end."""
    subprocess.run(["timeout", "10", "sh", "-c", f"echo >{HOME}/go"], check=True)


@pytest.fixture(scope="module")
def host(_installed: None) -> Iterator[Attacked]:
    run("useradd", "--create-home", "--groups=hostguard", "--shell=/bin/sh", EVE)
    (HOME / "turn.py").write_text(TURN)
    (HOME / "server.py").write_text(SERVER)
    JOB.write_text(f"echo $$ >{HOME}/said; touch {HOME}/up; {WAIT}\n")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{HOME}/key")
    run("install", "-D", "-m", "600", f"{HOME}/key.pub", f"{HOME}/.ssh/authorized_keys")
    run("chown", "-R", f"{EVE}:", str(HOME))
    systemctl("start", *SERVICES)
    run("loginctl", "enable-linger", EVE)
    guard = Guard()
    systemctl("start", "hostguard.socket")  # as it is installed
    made = Attacked(guard)
    made.uid = pwd.getpwnam(EVE).pw_uid
    wait_for(Path(f"/run/user/{made.uid}/systemd/private").exists, 30)
    guard.start(CONFIG)
    yield made
    made.api.close()
    guard.close()
    run("loginctl", "disable-linger", EVE)
    subprocess.run(["loginctl", "terminate-user", EVE], check=False)
    run("userdel", "--remove", "--force", EVE)
    systemctl("stop", *SERVICES)


@pytest.fixture(autouse=True)
def _clean(host: Attacked) -> Iterator[None]:
    (HOME / "go").unlink(missing_ok=True)
    as_user(EVE, "mkfifo", str(HOME / "go"))
    for name in ("up", "said"):
        (HOME / name).unlink(missing_ok=True)
    yield
    host.guard.end_turns()
    subprocess.run(["pkill", "-KILL", "-u", EVE, "sh|sleep"], check=False)
    wait_for(lambda: not host.turns(), 30)


def outside(pid: int) -> bool:
    """True if the process is in the user's own manager."""
    return "/user@" in Path(f"/proc/{pid}/cgroup").read_text()


def test_what_keeps_a_slot_can_be_neither_moved_stopped_nor_killed(host: Attacked) -> None:
    tries = (host.attach("$PPID"), host.attach("$PPID", "$$"), "kill -STOP $PPID", "kill -KILL $PPID")
    row = host.turn(
        "; ".join(f"{attack} && echo {number} >>{HOME}/said" for number, attack in enumerate(tries))
    )
    assert not (HOME / "said").exists()
    pid = host.stub()
    status = Path(f"/proc/{pid}/status").read_text().split("\n")
    has = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert has["Uid"].split() == has["Gid"].split() == [str(HOLDER)] * 4
    assert (has["CapEff"], has["State"]) == ("0" * 16, "S (sleeping)")
    waiting = host.held()
    go()
    [ended] = host.done(row)
    assert (ended["result"]["outcome"], ended["result"]["exit"]) == ("exited", 0)
    host.done(waiting)


def test_a_turn_that_leaves_keeps_its_slot_until_its_command_ends(host: Attacked) -> None:
    row = host.turn(f"{host.attach('$$')}; echo $$ >{HOME}/said")
    assert outside(int((HOME / "said").read_text()))
    stub, waiting = host.stub(), host.held()
    assert as_user(EVE, "kill", "-KILL", str(stub)).returncode != 0  # nor can it be from there
    go()
    host.done(row, waiting)


def test_a_double_fork_stays(host: Attacked) -> None:
    row = host.send("@eve", f"setsid sh -c '(echo up >{HOME}/up; {WAIT}) & exit' >/dev/null 2>&1 & exit 0")
    wait_for((HOME / "up").exists, 30)
    wait_for(lambda: [turn["state"] for turn in host.turns()] == ["lingering"])
    waiting = host.held()
    go()
    host.done(row, waiting)


def test_a_run_that_leaves_keeps_its_slot_until_its_command_ends(host: Attacked) -> None:
    """The caller's own process is the turn; it cannot move the one that waits for its end, nor end it."""
    script = f"{host.attach('$$')}; echo $$ >{HOME}/said; touch {HOME}/up; {WAIT}"
    become = ["setpriv", f"--reuid={EVE}", f"--regid={EVE}", "--init-groups"]
    with subprocess.Popen(
        [*become, "hostguard", "run", "--mind", "eve", "--", "sh", "-c", script]
    ) as process:
        try:
            wait_for((HOME / "up").exists, 30)
            assert outside(process.pid)
            stub, waiting = host.stub(), host.held()
            for attack in (host.attach(str(stub)), f"kill -KILL {stub}", f"kill -STOP {stub}"):
                assert as_user(EVE, "sh", "-c", attack).returncode != 0
            host.guard.kill()  # the next guard knows it, too
            host.guard.restart()
            assert host.row(waiting)["hold"]["reason"] == "mind_busy"
            go()
            assert process.wait(10) == 0
        finally:
            process.kill()
    host.done(waiting)


# -- what a turn leaves outside


def left_outside(host: Attacked, script: str) -> Any:
    """Run a turn that leaves a process outside; the slot that is kept for it, once the turn has ended."""
    row = host.send("@eve", script)
    host.done(row)
    wait_for((HOME / "up").exists, 30)
    wait_for(lambda: [turn["state"] for turn in host.turns()] == ["outside"], 40)
    return host.turns()[0]


WAYS = {
    "systemd-run": (f"systemd-run --user --quiet sh {JOB}", "user@"),
    "attached": (f"sh -c '@ATTACH@; . {JOB}' & while [ ! -e {HOME}/up ]; do sleep 0.01; done", "user@"),
    "at": (f"echo 'exec sh {JOB}' | at now", "atd.service"),
    "ssh": (f"{SSH} 'setsid -f sh {JOB} </dev/null >/dev/null 2>&1'", "session-"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_left_outside_is_reported_and_keeps_the_slot_until_it_ends(host: Attacked, way: str) -> None:
    script, place = WAYS[way]
    slot = left_outside(host, script.replace("@ATTACH@", host.attach("$$")))
    pid = (HOME / "said").read_text().strip()
    assert f" ({pid}) in {place}" in slot["description"]
    [event] = [event for event in host.all_events() if event.get("turn") == slot["id"]]
    assert pid in event["pids"].split()
    waiting = host.held()
    go()
    host.done(waiting)


def test_an_operator_sees_it_and_the_next_guard_knows_it(host: Attacked) -> None:
    slot = left_outside(host, WAYS["systemd-run"][0])
    waiting = host.held()
    why = host.guard.cli("why", str(waiting)).stdout
    assert f"what a turn left outside of its scope, {slot['id']}, keeps it" in why
    said = f"eve: {slot['description']} keep a slot until they end: hostguard stop {slot['id']} frees it"
    assert said in host.guard.cli("status", check=False).stdout
    assert "in_turn, 1 outside" in host.guard.cli("minds").stdout
    assert host.guard.journal(f"HOSTGUARD_TURN={slot['id']}", "MESSAGE_ID=6b0e4d2f0a5c4b7c9d1f3a8e52c70426")
    host.kill()
    assert [turn["id"] for turn in host.turns()] == [slot["id"]]
    assert host.row(waiting)["state"] == "queued"
    go()
    host.done(waiting)


def test_whoever_lets_it_be_has_the_slot(host: Attacked) -> None:
    slot = left_outside(host, WAYS["systemd-run"][0])
    pid = int((HOME / "said").read_text())
    waiting = host.held()
    host.guard.cli("stop", slot["id"])
    host.done(waiting)
    assert outside(pid)
    host.done(host.send("@eve", "true"))  # nor does it count at the end of the next turn
    assert host.turns() == []
    go()


def test_a_job_that_starts_after_the_turn_is_found(host: Attacked) -> None:
    host.done(host.send("@eve", f"echo '@reboot exec sh {JOB}' | crontab -"))
    assert host.turns() == []
    Path("/run/crond.reboot").unlink(missing_ok=True)
    systemctl("restart", "cron")
    wait_for((HOME / "up").exists, 30)
    wait_for(lambda: [turn["state"] for turn in host.turns()] == ["outside"], 40)
    assert "in cron.service" in host.turns()[0]["description"]
    run("crontab", "-r", "-u", EVE)
    go()
    wait_for(lambda: not host.turns())


def test_a_resident_minds_session_that_leaves_keeps_the_slot_of_its_turn(host: Attacked) -> None:
    """What returns to the server's own unit does not."""
    run("systemd-run", "--quiet", f"--uid={EVE}", "--unit=eves-server", "python3", f"{HOME}/server.py")
    try:
        row = host.send("@server", f"sleep 61 & sleep 0.5; {host.attach('$$')}; . {JOB}")
        wait_for((HOME / "up").exists, 30)
        pid, stub = int((HOME / "said").read_text()), host.stub()
        assert outside(pid)
        for attack in (host.attach(str(stub)), f"kill -KILL {stub}", f"kill -STOP {stub}"):
            assert as_user(EVE, "sh", "-c", attack).returncode != 0
        host.done(row)
        wait_for(lambda: [turn["state"] for turn in host.turns()] == ["outside"], 30)
        assert host.turns()[0]["description"].endswith(f": sh ({pid}) in user@{host.uid}.service")
        go()
        wait_for(lambda: not host.turns())
    finally:
        systemctl("stop", "eves-server")


def test_what_others_start_as_the_minds_user_is_no_turns(host: Attacked) -> None:
    """An administrator's service, its user manager, what began before, and a person who is logged in."""
    before = subprocess.Popen(
        ["systemd-run", "--quiet", "--wait", f"--uid={EVE}", "--unit=before", "sleep", "60"]
    )
    row = host.turn("true")
    run("systemd-run", "--quiet", f"--uid={EVE}", "--unit=meanwhile", "sleep", "60")
    systemctl("restart", f"user@{host.uid}.service")
    waiting = host.held()
    go()
    host.done(row, waiting)
    assert host.turns() == []
    systemctl("stop", "before", "meanwhile")
    before.wait(10)


def test_what_a_person_runs_who_is_logged_in_is_no_turns(host: Attacked) -> None:
    row = host.turn("true")
    script = f"echo $$ >{HOME}/said; exec sleep 60"
    with subprocess.Popen(["su", "--login", EVE, "--command", script]) as person:
        try:
            wait_for(lambda: (HOME / "said").exists() and (HOME / "said").read_text(), 30)
            pid = int((HOME / "said").read_text())
            assert "/session-" in Path(f"/proc/{pid}/cgroup").read_text()
            go()
            host.done(row)
            wait_for(lambda: not host.turns())
            assert not [event for event in host.all_events() if str(pid) in event.get("pids", "").split()]
        finally:
            person.kill()
