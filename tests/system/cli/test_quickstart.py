"""packaging/quickstart on a machine that runs systemd: it works, and leaves no change behind."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from card import BASE
from guard import CHECKOUT, Guard, run, wait_for

COMMAND = [str(CHECKOUT / "packaging/quickstart"), "--size", "512K", "--stop", "0"]


def traces() -> list[str]:
    """Everything of hostguard's on this guest."""
    units = run(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "hostguard*"
    ).stdout.splitlines()
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if line.startswith("/dev/loop")]
    return [*units, *mounts, *map(str, BASE.glob("card-*")), *map(str, Path("/run").glob("hostguard-quick*"))]


def test_it_shows_the_incident_and_is_gone() -> None:
    before = traces()
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    assert "Delay of a bystander" in done.stdout
    assert "While the card was stopped" not in done.stdout
    assert traces() == before


def test_it_shows_what_the_guard_makes_of_a_card_that_stops() -> None:
    command = [*COMMAND, "--stop", "8", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    told = json.loads(done.stdout[done.stdout.index("{") :])["stopped"]
    stop = told["stop"]
    assert len(told["turns"]) == 15
    assert all(turn["exit"] == 0 for turn in told["turns"])
    assert stop["going"] - stop["at"] >= 8
    assert (0 < stop["told"] < 8, stop["cap"], stop["started"]) == (True, 1, 0)
    assert stop["answers"]["count"] > 10
    assert stop["back"] > 20, "calm_window"


def test_it_leaves_a_running_guard_alone(guard: Guard) -> None:
    guard.start()
    pid = guard.pid
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "left alone" in done.stdout) == (0, True), done
    assert guard.pid == pid
    assert guard.json("queue", "--state", "all")["deliveries"] == []


@pytest.mark.parametrize("sign", ["hostguard runs as", "start"], ids=["early", "in the middle"])
def test_it_is_gone_after_a_signal(sign: str) -> None:
    before = traces()
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert any(sign in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert traces() == before


def test_the_next_one_sweeps_up_after_a_killed_one() -> None:
    before = traces()
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert any("start" in line for line in process.stdout)
        process.kill()
        process.stdout.read()  # ends when its helpers have gone, too
    assert traces() != before
    wait_for(
        lambda: subprocess.run([*COMMAND, "--help"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )
    assert traces() == before
