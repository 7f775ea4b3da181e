"""`hostguard run` through a real daemon that is stopped and killed meanwhile. Runs in the guest, as root."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
UNIT = "hostguard-under-test.service"

CONFIG = """
[minds.a]
command = ["/bin/sleep", "0.1"]
user = "root"
[minds.b]
command = ["/bin/true"]
user = "root"
"""


class Host:
    """A daemon as a service of its own, and the command line to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "hostguard.toml").write_text(CONFIG)
        self.own_env = {
            "HOSTGUARD_CONFIG": str(folder / "hostguard.toml"),
            "HOSTGUARD_RUNTIME": str(folder / "run"),
            "HOSTGUARD_STATE": str(folder / "state"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.env = {**os.environ, **self.own_env}
        self.started: list[subprocess.Popen[str]] = []
        settings = [f"--setenv={name}={value}" for name, value in self.own_env.items()]
        properties = ["--property=Type=notify", "--property=Restart=always", "--property=RestartSec=50ms"]
        properties += ["--property=StartLimitIntervalSec=0", "--property=KillMode=process"]
        command = ["systemd-run", "--quiet", f"--unit={UNIT}", *settings, *properties]
        subprocess.run([*command, sys.executable, "-m", "hostguard.daemon"], check=True)

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "hostguard.cli", *args]

    def __call__(
        self, *args: str, prefix: tuple[str, ...] = (), **options: Any
    ) -> subprocess.CompletedProcess[str]:
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [*prefix, *self.argv(*args)], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=60,
            check=False, **options,
        )  # fmt: skip

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.argv(*args), cwd=ROOT, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def json(self, *args: str) -> Any:
        done = self(*args, "--json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def hold_slot(self, mind: str) -> subprocess.Popen[str]:
        """A turn of `mind` that has started."""
        process = self.start("run", "--mind", mind, "--", "sh", "-c", "echo up; exec sleep 60")
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    def wait_held(self, *args: str) -> subprocess.Popen[str]:
        """A `hostguard run` that has just been told that it is held."""
        process = self.start("run", "-v", *args)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "held" in line, line
        return process

    def kill_daemon(self) -> None:
        subprocess.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNIT], check=True)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)
        subprocess.run(["systemctl", "stop", UNIT, "hostguard.slice"], check=True)
        subprocess.run(["systemctl", "reset-failed", UNIT], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="hg") as folder:
        Path(folder).chmod(0o755)
        made = Host(Path(folder))
        yield made
        made.close()


def wait_for(happened: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_the_command_is_the_callers_own(host: Host) -> None:
    done = host(
        "run", "--mind", "a", "--", "sh", "-c", "tail -1 /proc/self/cgroup; cat; exit 7", input="typed"
    )
    assert done.returncode == 7, done
    assert done.stdout == "0::/hostguard.slice/hostguard-a.slice/hostguard-turn-a-1.scope\ntyped"
    process = host.hold_slot("a")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == -signal.SIGINT


def test_it_waits_in_one_line_with_messages(host: Host) -> None:
    holder = host.hold_slot("a")
    message = host.json("send", "@a", "hi")["deliveries"][0]
    waiter = host.wait_held("--mind", "a", "true")
    late = host.json("send", "@a", "hi")["deliveries"][0]
    holder.kill()
    assert waiter.wait(20) == 0
    wait_for(lambda: not host.json("queue")["deliveries"])
    rows = host.json("queue", "--state", "done")["deliveries"]
    assert [(row["id"], row["kind"]) for row in sorted(rows, key=lambda row: row["started_at"])] == [
        (1, "run"), (message["id"], "message"), (3, "run"), (late["id"], "message"),
    ]  # fmt: skip


def test_max_wait_ends_with_75(host: Host) -> None:
    host.hold_slot("a")
    done = host("run", "--mind", "a", "--max-wait", "500ms", "--", "touch", str(host.folder / "ran"))
    assert done.returncode == 75, done
    assert not (host.folder / "ran").exists()


def test_ctrl_c_while_it_waits_takes_it_out_of_the_line(host: Host) -> None:
    host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "--", "touch", str(host.folder / "ran"))
    waiter.send_signal(signal.SIGINT)
    assert waiter.wait(10) == 130
    wait_for(lambda: host.json("queue", "2")["state"] == "cancelled")
    assert not (host.folder / "ran").exists()


def test_a_cancelled_run_says_so(host: Host) -> None:
    host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "--", "touch", str(host.folder / "ran"))
    assert host("cancel", "2").returncode == 0
    assert waiter.wait(10) == 1
    assert not (host.folder / "ran").exists()


def test_another_user_runs_as_itself(host: Host) -> None:
    (host.folder / "run" / "hostguard.sock").chmod(0o666)  # in place of the group
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    done = host("run", "--mind", "a", "--", "sh", "-c", "id -u; tail -1 /proc/self/cgroup", prefix=user)
    assert done.stdout.startswith("65534\n0::/hostguard.slice/hostguard-a.slice/hostguard-turn-a-"), done


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_waiting_run_keeps_its_place_while_the_daemon_is_away(host: Host, how: str) -> None:
    holder = host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "--", "tail", "-1", "/proc/self/cgroup")
    if how == "kill":
        host.kill_daemon()
    else:
        subprocess.run(["systemctl", "restart", UNIT], check=True)
    wait_for(lambda: host("why", "2").returncode == 0)
    assert waiter.poll() is None
    holder.kill()
    out, err = waiter.communicate(timeout=30)
    assert (waiter.returncode, out.endswith("/hostguard-turn-a-2.scope\n")) == (0, True), err
    assert [row["id"] for row in host.json("queue", "--state", "all")["deliveries"]] == [1, 2]


def test_a_daemon_killed_at_any_moment_lets_nothing_run_outside_a_scope_or_twice(host: Host) -> None:
    log = host.folder / "log"
    script = f"tail -1 /proc/self/cgroup >>{log}"
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    codes = []
    for _ in range(12):
        run = host.start("run", "--mind", "b", "--", "sh", "-c", script)
        time.sleep(moments.uniform(0.2, 0.7))
        host.kill_daemon()
        codes.append(run.wait(60))
        wait_for(lambda: host("status").returncode == 0)
    lines = log.read_text().splitlines()
    assert all("/hostguard-turn-b-" in line for line in lines), (seed, lines)
    assert len(lines) == codes.count(0), (seed, codes, lines)
    assert codes.count(0) == len(codes), (seed, codes)
    assert len(set(lines)) == len(lines), (seed, lines)
