"""hostguardd as systemd sees it: socket activation, the status line, the watchdog, reload, a group's rights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from guard import Guard, drop_in, run, systemctl, wait_for

UNIT = "hostguard.service"
SLEEPER = (
    '[limits]\nglobal_concurrent_turns = 1\n[minds.ada]\ncommand = ["/bin/sleep", "30"]\nuser = "root"\n'
)


def show(name: str) -> str:
    return run("systemctl", "show", "--value", f"--property={name}", UNIT).stdout.strip()


def test_socket_activation_starts_the_daemon_and_loses_no_request(guard: Guard) -> None:
    guard.start(SLEEPER)
    guard.stop()
    assert guard.pid == 0
    systemctl("start", "hostguard.socket")
    socket = Path("/run/hostguard/hostguard.sock").stat()
    assert (socket.st_mode & 0o777, socket.st_uid) == (0o660, 0)
    assert socket.st_gid == int(run("getent", "group", "hostguard").stdout.split(":")[2])
    with guard.client() as client:
        assert client.get("/v1/status").json()["pid"] == guard.pid
        systemctl("restart", UNIT)
        assert client.get("/v1/status").json()["pid"] == guard.pid  # the socket outlives the daemon
    systemctl("stop", UNIT, "hostguard.socket")


def test_the_status_line_follows(guard: Guard) -> None:
    guard.start(SLEEPER)
    assert show("StatusText") == "0/1 turns, 0 held, cap 1"
    for _ in range(3):
        guard.cli("send", "@ada", "hello")
    wait_for(lambda: show("StatusText") == "1/1 turns, 2 held, cap 1")
    guard.cli("pause")
    wait_for(lambda: show("StatusText") == "1/1 turns, 2 held, cap 1; paused")
    for row in (2, 3):
        guard.cli("cancel", str(row))
    guard.cli("stop", "1")
    wait_for(lambda: show("StatusText") == "0/1 turns, 0 held, cap 1; paused")


def test_a_daemon_that_hangs_is_killed_by_the_watchdog_and_its_turn_goes_on(guard: Guard) -> None:
    with drop_in("WatchdogSec=2"):
        guard.start(SLEEPER)
        time.sleep(3)  # longer than the limit: it does say that it lives
        first = guard.pid
        guard.cli("send", "@ada", "hello")
        wait_for(guard.scopes)
        os.kill(first, signal.SIGSTOP)
        wait_for(lambda: guard.pid not in (0, first), 30)
        guard.wait_ready()
        assert show("NRestarts") == "1"
        assert [turn["id"] for turn in guard.json("turns")["turns"]] == ["1"]
        guard.cli("stop", "1")
        wait_for(lambda: not guard.scopes())


def test_reload_by_systemctl_and_by_signal_refuses_a_bad_file(guard: Guard) -> None:
    guard.start(SLEEPER)
    guard.configure(SLEEPER.replace("= 1\n", "= 5\n", 1))
    systemctl("reload", UNIT)
    wait_for(lambda: show("StatusText") == "0/5 turns, 0 held, cap 5")
    guard.configure("[limits]\nglobal_concurrent_turns = -1\n")
    assert subprocess.run(["systemctl", "reload", UNIT], capture_output=True, check=False).returncode != 0
    assert "last reload failed" in show("StatusText")
    os.kill(guard.pid, signal.SIGHUP)
    wait_for(
        lambda: (
            len(
                [
                    e
                    for e in guard.journal(f"_SYSTEMD_UNIT={UNIT}")
                    if "configuration is rejected" in e["MESSAGE"]
                ]
            )
            == 2
        )
    )
    assert guard.json("status")["cap"] == 5
    assert guard.cli("reload", check=False).returncode == 1


def test_only_root_and_the_group_reach_the_socket(guard: Guard) -> None:
    guard.start(SLEEPER)
    asked = [
        "setpriv",
        "--reuid=nobody",
        "--regid=nogroup",
        "--clear-groups",
        "hostguard",
        "status",
        "--json",
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "group hostguard" in done.stderr
    assert Path("/var/lib/hostguard/queue.db").stat().st_mode & 0o077 == 0
    assert Path("/run/hostguard/turns").stat().st_mode & 0o077 == 0


def test_ended_turns_and_limits_survive_a_restart(guard: Guard) -> None:
    guard.start('[minds.ada]\ncommand = ["/bin/sh", "-c", "exit 7"]\nuser = "root"\n')
    guard.cli("send", "@ada", "x", "--wait", check=False)
    guard.cli("limit", "set", "global_concurrent_turns=3")
    guard.cli("limit", "set", "--runtime", "mind_concurrent_turns=2")
    guard.restart()
    assert guard.json("turns", "1")["result"]["exit"] == 7
    limits = {
        limit["name"]: (limit["value"], limit["source"]) for limit in guard.json("limit", "show")["limits"]
    }
    assert limits == {"global_concurrent_turns": (3, "kept"), "mind_concurrent_turns": (2, "runtime")}
    assert json.loads(guard.cli("queue", "1", "--json").stdout)["state"] == "done"
