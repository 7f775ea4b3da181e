"""`hostguard run` and `hostguard status` without the daemon, on real scopes. Runs in the guest, as root."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ODD = "Ü-x/ \\y"  # a name of which nothing may go into a unit name as it is

CONFIG = """
[limits]
global_concurrent_turns = 2
[turn]
tasks_max = 77
io_weight = 42
"""


class Host:
    """The command line in a runtime folder of its own, with minds a, b, c and an oddly named one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        minds = "".join(
            f'[minds.{json.dumps(name, ensure_ascii=False)}]\ncommand = ["/bin/true"]\nuser = "root"\n'
            for name in ("a", "b", "c", ODD)
        )
        (folder / "hostguard.toml").write_text(CONFIG + minds)
        self.env = {
            **os.environ,
            "HOSTGUARD_CONFIG": str(folder / "hostguard.toml"),
            "HOSTGUARD_RUNTIME": str(folder / "run"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.started: list[subprocess.Popen[str]] = []

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "hostguard.cli", *args]

    def __call__(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            self.argv(*args), cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=60, check=False,
            **options,
        )  # fmt: skip

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.argv(*args), cwd=ROOT, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def live(self) -> list[dict[str, Any]]:
        live: list[dict[str, Any]] = json.loads(self("status", "--json").stdout)["live"]
        return live

    def hold_slot(self, mind: str) -> subprocess.Popen[str]:
        """A turn of `mind` that has started."""
        process = self.start("run", "--mind", mind, "--", "sh", "-c", "echo up; exec sleep 60")
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    def wait_held(self, *args: str) -> subprocess.Popen[str]:
        """A `hostguard run` that has just found the slot taken."""
        process = self.start("run", "-v", *args)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "held" in line, line
        return process

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="hg") as folder:
        Path(folder).chmod(0o755)
        made = Host(Path(folder))
        yield made
        made.close()
    subprocess.run(["systemctl", "stop", "hostguard.slice"], check=True)


@contextmanager
def systemd_run(*args: str) -> Iterator[None]:
    """A unit made by hand, gone at the end."""
    command = ["systemd-run", "--quiet", "--collect", "--unit=by-hand", *args, "sleep", "60"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    unit = next((arg.partition("=")[2] for arg in args if arg.startswith("--unit=")), "by-hand")
    unit += ".scope" if "--scope" in args else ""
    wait_for(lambda: subprocess.run(["systemctl", "-q", "is-active", unit], check=False).returncode == 0)
    try:
        yield
    finally:
        subprocess.run(["systemctl", "stop", unit], check=True)
        process.communicate()


def wait_for(happened: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


# -- the command is the caller's own


def test_the_command_runs_in_its_scope_with_its_limits_and_its_exit_status(host: Host) -> None:
    script = (
        "unit=$(sed -n 's,^0::.*/,,p' /proc/self/cgroup); echo $unit;"
        " systemctl show -P TasksMax -P IOWeight -P CollectMode -P Slice -P Description $unit; exit 7"
    )
    done = host("run", "--mind", "a", "--description", "the\ntest", "--", "sh", "-c", script)
    unit, *shown = done.stdout.splitlines()
    assert unit.startswith("hostguard-turn-a-x")
    assert sorted(shown) == sorted(["77", "42", "inactive-or-failed", "hostguard-a.slice", "a: the\\ntest"])
    assert (done.returncode, done.stderr) == (7, "")


def test_a_turn_of_an_oddly_named_mind_is_found_again(host: Host) -> None:
    with_odd = host.hold_slot(ODD)
    assert [turn["mind"] for turn in host.live()] == [ODD]
    assert host("run", "--mind", ODD, "--max-wait", "0", "true").returncode == 75
    with_odd.kill()


def test_standard_input_and_output_are_the_commands(host: Host) -> None:
    done = host("run", "--mind", "a", "cat", input="one\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")


def test_the_terminal_is_the_commands(host: Host) -> None:
    ours, theirs = os.openpty()
    script = "test -t 0 && test -t 1 && test -t 2 && stty size && read line && echo got $line"
    process = subprocess.Popen(
        host.argv("run", "--mind", "a", "--", "sh", "-c", script),
        cwd=ROOT, env=host.env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, b"typed\n")
    assert process.wait(30) == 0
    assert b"got typed" in os.read(ours, 4096)
    os.close(ours)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signals_reach_the_command_itself(host: Host, number: signal.Signals) -> None:
    process = host.hold_slot("a")
    process.send_signal(number)
    assert process.wait(10) == -number


def test_the_command_inherits_no_ignored_signals(host: Host) -> None:
    done = host("run", "--mind", "a", "grep", "SigIgn", "/proc/self/status")
    assert done.stdout.split()[1] == "0" * 16


def test_a_command_that_cannot_be_executed_leaves_no_turn(host: Host) -> None:
    script = host.folder / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = host("run", "--mind", "a", str(script))
    assert (done.returncode, "cannot be executed" in done.stderr) == (127, True)
    wait_for(lambda: host.live() == [], 3)


# -- the gate holds


def test_many_runs_keep_each_cap(host: Host) -> None:
    log = host.folder / "log"
    script = f"echo + $0 >>{log}; sleep 0.3; echo - $0 >>{log}"
    runs = [
        host.start("run", "--mind", mind, "--", "sh", "-c", script, mind)
        for mind in ("a", "b", "c", "a", "b", "a")
    ]
    assert [run.wait(60) for run in runs] == [0] * 6
    live: Counter[str] = Counter()
    most = 0
    for line in log.read_text().splitlines():
        sign, mind = line.split()
        live[mind] += 1 if sign == "+" else -1
        assert live[mind] in (0, 1)
        most = max(most, live.total())
    assert most == 2
    assert live.total() == 0


def test_max_wait_ends_with_75_and_runs_nothing(host: Host) -> None:
    host.hold_slot("a")
    started = time.monotonic()
    done = host("run", "--mind", "a", "--max-wait", "300ms", "--", "touch", str(host.folder / "ran"))
    assert done.returncode == 75
    assert "mind_busy: hostguard-turn-a-x" in done.stderr
    assert time.monotonic() - started < 5
    assert not (host.folder / "ran").exists()


def test_a_killed_holder_frees_the_slot_at_once(host: Host) -> None:
    holder = host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "--", "date", "+%s.%N")
    time.sleep(0.3)  # its first looks are over
    killed = time.time()
    holder.kill()
    out, _ = waiter.communicate(timeout=10)
    assert 0 < float(out) - killed < 1.0  # the sweep that backs up the signal comes after 2 s


def test_stopping_the_scope_frees_the_slot(host: Host) -> None:
    holder = host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "true")
    subprocess.run(["systemctl", "stop", host.live()[0]["unit"]], check=True)
    assert waiter.wait(10) == 0
    assert holder.wait(10) == -signal.SIGTERM


def test_children_that_outlive_the_command_keep_the_slot(host: Host) -> None:
    script = "setsid sleep 60 >/dev/null 2>&1 & exit 0"
    assert host("run", "--mind", "a", "--", "sh", "-c", script).returncode == 0
    assert host("run", "--mind", "a", "--max-wait", "300ms", "true").returncode == 75
    subprocess.run(["systemctl", "stop", "hostguard-turn-a-*.scope"], check=True)
    assert host("run", "--mind", "a", "--max-wait", "300ms", "true").returncode == 0


@pytest.mark.parametrize("kind", [["--scope"], []], ids=["scope", "service"])
def test_a_unit_made_by_hand_in_the_minds_slice_counts(host: Host, kind: list[str]) -> None:
    with systemd_run("--slice=hostguard-a.slice", *kind):
        assert host("run", "--mind", "a", "--max-wait", "0", "true").returncode == 75
        assert [(turn["mind"], turn["state"], turn["pids"]) for turn in host.live()] == [("a", "foreign", 1)]
    assert host("run", "--mind", "a", "--max-wait", "0", "true").returncode == 0


def test_a_resident_minds_service_is_no_turn(host: Host) -> None:
    with systemd_run("--slice=hostguard-a.slice", "--unit=hostguard-mind@a.service"):
        assert host.live() == []
        assert host("run", "--mind", "a", "--max-wait", "0", "true").returncode == 0


def test_the_global_cap_holds_and_names_the_oldest(host: Host) -> None:
    host.hold_slot("a")
    host.hold_slot("b")
    done = host("run", "--mind", "c", "--max-wait", "0", "true")
    assert (done.returncode, "global_cap: hostguard-turn-a-x" in done.stderr) == (75, True)


def test_an_unknown_mind_is_refused(host: Host) -> None:
    done = host("run", "--mind", "nobody", "true")
    assert (done.returncode, "[minds.nobody]" in done.stderr) == (4, True)


def test_only_root_runs_turns_without_the_daemon(host: Host) -> None:
    done = unprivileged(host, "run", "--mind", "a", "true")
    assert (done.returncode, "only root" in done.stderr) == (3, True)


# -- beside a daemon


def test_a_lock_that_nobody_answers_for_is_named(host: Host) -> None:
    (host.folder / "run").mkdir()
    with (host.folder / "run" / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = host("run", "--mind", "a", "true")
    assert (done.returncode, "gate.lock is held" in done.stderr) == (1, True)


def test_a_waiting_run_moves_over_to_a_daemon_that_comes_up(host: Host) -> None:
    host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "--", "touch", str(host.folder / "ran"))
    asked = []

    class Daemon(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.path, json.loads(body)["mind"]))
            self.reply(b'{"event": "expired"}\n')

        def reply(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with (host.folder / "run" / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socketserver.ThreadingUnixStreamServer(
            str(host.folder / "run" / "hostguard.sock"), Daemon
        ) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            assert waiter.wait(20) == 75
            server.shutdown()
    assert asked == [("/v1/run", "a")]
    assert not (host.folder / "ran").exists()


def test_the_runtime_folder_may_go_and_come_back(host: Host) -> None:
    holder = host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "true")
    shutil.rmtree(host.folder / "run")
    holder.kill()
    assert waiter.wait(10) == 0


# -- status


def test_status_shows_live_turns_and_says_that_the_daemon_is_away(host: Host) -> None:
    assert "Live turns: 0" in host("status").stdout
    holder = host.hold_slot("a")
    for done in (host("status"), unprivileged(host, "status")):
        assert done.returncode == 3
        assert "hostguard-turn-a-x" in done.stdout
        assert "not running" in done.stderr
    (turn,) = host.live()
    assert turn["mind"] == "a"
    assert turn["state"] == "running"
    assert turn["pids"] == 1
    assert abs(turn["started_at"] / 1000 - time.time()) < 30
    holder.kill()
    wait_for(lambda: host.live() == [], 3)


def unprivileged(host: Host, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *host.argv(*args)],
        cwd=ROOT, env=host.env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
