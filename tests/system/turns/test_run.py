"""`hostguard run` through the daemon, which is stopped and killed meanwhile."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bus_relay import Bus
from guard import UNIT, Guard, drop_in, systemctl, wait_for
from guarded import GuardedHost
from searches import sized

SHARES_GUARD = True
CONFIG = """
[minds.a]
command = ["/bin/sleep", "0.1"]
user = "root"
[minds.b]
command = ["/bin/true"]
user = "root"
"""

Runs = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def host(guard: Guard) -> Guard:
    guard.start(CONFIG)
    return guard


@pytest.fixture
def first(host: Guard) -> int:
    """The id of the first delivery."""
    made = GuardedHost(host)
    made.api.close()
    return made.first_row


@pytest.fixture
def start(host: Guard, first: int) -> Iterator[Runs]:
    """Starts `hostguard run ARGS`; with `says`, waits for its first line, on stderr if it is held."""
    started = []

    def begin(*args: str, says: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["hostguard", "run", *args], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        stream = process.stderr if says == "held" else process.stdout
        assert stream is not None
        assert not says or says in stream.readline()
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)
    wait_for(lambda: not host.scopes())


@pytest.fixture
def holder(start: Runs) -> subprocess.Popen[str]:
    """Delivery `first`, a turn of mind a, which has started."""
    return start("--mind", "a", "--", "sh", "-c", "echo up; exec sleep 60", says="up")


def test_the_command_is_the_callers_own(host: Guard, first: int) -> None:
    script = "tail -1 /proc/self/cgroup; cat; exit 7"
    done = host.cli("run", "--mind", "a", "--", "sh", "-c", script, input="typed", check=False)
    assert done.returncode == 7, done
    assert done.stdout == f"0::/hostguard.slice/hostguard-a.slice/hostguard-turn-a-{first}.scope\ntyped"


def test_signals_reach_the_command_itself(holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGINT)
    assert holder.wait(10) == -signal.SIGINT


def test_it_waits_in_one_line_with_messages(
    host: Guard, first: int, start: Runs, holder: subprocess.Popen[str]
) -> None:
    host.cli("send", "@a", "early")
    waiter = start("-v", "--mind", "a", "true", says="held")
    host.cli("send", "@a", "late")
    holder.kill()
    assert waiter.wait(20) == 0
    wait_for(lambda: not host.json("queue")["deliveries"])
    rows = [row for row in host.json("queue", "--state", "done")["deliveries"] if row["id"] >= first]
    assert [(row["id"], row["kind"]) for row in sorted(rows, key=lambda row: row["started_at"])] == [
        (first, "run"), (first + 1, "message"), (first + 2, "run"), (first + 3, "message"),
    ]  # fmt: skip


def test_a_client_killed_at_its_start_is_no_dead_letter(guard: Guard, bus: Bus) -> None:
    """systemd is asked for its scope when the process is gone already: a turn that never began, and no failure."""
    guard.start(CONFIG)
    bus.hold_asks()
    with subprocess.Popen(["hostguard", "run", "--mind", "a", "--", "true"]) as client:
        wait_for(lambda: [turn["state"] for turn in guard.json("turns")["turns"]] == ["starting"], 30)
        client.kill()
    bus.go()
    wait_for(lambda: guard.json("queue", "1")["ended_at"], 30)
    row = guard.json("queue", "1")
    assert (row["state"], row["attempts"]) == ("cancelled", 0)
    assert row["result"]["reason"] == "its `hostguard run` ended before it began"
    assert guard.cli("dead", "list").stdout == "no dead letters\n"
    assert not [line for line in guard.journal("HOSTGUARD_DELIVERY=1") if "retry" in line["MESSAGE"]]
    wait_for(lambda: not guard.scopes())


@pytest.mark.usefixtures("holder")
def test_max_wait_ends_with_75(host: Guard, tmp_path: Path) -> None:
    args = ("run", "--mind", "a", "--max-wait", "500ms", "--", "touch", str(tmp_path / "ran"))
    done = host.cli(*args, check=False)
    assert done.returncode == 75, done
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("holder")
def test_ctrl_c_while_it_waits_takes_it_out_of_the_line(
    host: Guard, first: int, start: Runs, tmp_path: Path
) -> None:
    waiter = start("-v", "--mind", "a", "--", "touch", str(tmp_path / "ran"), says="held")
    waiter.send_signal(signal.SIGINT)
    assert waiter.wait(10) == 130
    wait_for(lambda: host.json("queue", str(first + 1))["state"] == "cancelled")
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("holder")
def test_a_cancelled_run_says_so(host: Guard, first: int, start: Runs, tmp_path: Path) -> None:
    waiter = start("-v", "--mind", "a", "--", "touch", str(tmp_path / "ran"), says="held")
    host.cli("cancel", str(first + 1))
    assert waiter.wait(10) == 1
    assert not (tmp_path / "ran").exists()


def test_another_user_runs_as_itself(host: Guard, first: int) -> None:
    Path("/run/hostguard/hostguard.sock").chmod(0o666)  # in place of the group
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
         "hostguard", "run", "--mind", "a", "--", "sh", "-c", "id -u; tail -1 /proc/self/cgroup"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == f"65534\n0::/hostguard.slice/hostguard-a.slice/hostguard-turn-a-{first}.scope\n", (
        done
    )


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_waiting_run_keeps_its_place_while_the_daemon_is_away(
    host: Guard, first: int, start: Runs, holder: subprocess.Popen[str], how: str
) -> None:
    waiter = start("-v", "--mind", "a", "--", "tail", "-1", "/proc/self/cgroup", says="held")
    if how == "kill":
        host.kill()
    else:
        host.restart()
    host.wait_ready()
    assert waiter.poll() is None
    holder.kill()
    out, err = waiter.communicate(timeout=30)
    assert (waiter.returncode, out.endswith(f"/hostguard-turn-a-{first + 1}.scope\n")) == (0, True), err
    rows = [row["id"] for row in host.json("queue", "--state", "all")["deliveries"]]
    assert [row for row in rows if row >= first] == [first, first + 1]


def test_a_daemon_killed_at_any_moment_lets_nothing_run_outside_a_scope_or_twice(
    host: Guard, start: Runs, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    codes = []
    with drop_in("RestartSec=1"):  # of 5
        for _ in range(sized(6)):
            run = start("--mind", "b", "--", "sh", "-c", f"tail -1 /proc/self/cgroup >>{log}")
            time.sleep(moments.uniform(0.2, 0.6))  # the command line alone takes about 0.3 s
            host.kill()
            codes.append(run.wait(60))
            systemctl("reset-failed", UNIT)  # its limit on restarts
            host.wait_ready()
    lines = log.read_text().splitlines()
    assert all("/hostguard-turn-b-" in line for line in lines), (seed, lines)
    assert codes == [0] * len(codes), (seed, codes, lines)
    assert len(set(lines)) == len(lines) == len(codes), (seed, lines)
