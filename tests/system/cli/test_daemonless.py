"""`hostguard run` and `hostguard status` without the daemon, on real scopes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bare import ODD, ROOT, Host, bare_host
from guard import run, systemctl, wait_for
from screen import rest


@pytest.fixture
def host() -> Iterator[Host]:
    with bare_host() as made:
        yield made


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
        systemctl("stop", unit)
        process.communicate()


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
    assert b"got typed" in rest(ours)
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
    wait_for(lambda: host.live() == [])


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
    assert "mind busy, behind turn x" in done.stderr
    assert time.monotonic() - started < 5
    assert not (host.folder / "ran").exists()


def test_a_killed_holder_frees_the_slot_at_once(host: Host) -> None:
    holder = host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "--", "date", "+%s.%N")
    time.sleep(0.3)  # its first looks are over
    killed = time.time()
    holder.kill()
    out, _ = waiter.communicate(timeout=10)
    assert 0 < float(out) - killed < 1.9  # the sweep that backs up the signal comes after 2 s


def test_stopping_the_scope_frees_the_slot(host: Host) -> None:
    holder = host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "true")
    systemctl("stop", host.live()[0]["unit"])
    assert waiter.wait(10) == 0
    assert holder.wait(10) == -signal.SIGTERM


def test_children_that_outlive_the_command_keep_the_slot(host: Host) -> None:
    script = "setsid sleep 60 >/dev/null 2>&1 & exit 0"
    assert host("run", "--mind", "a", "--", "sh", "-c", script).returncode == 0
    assert host("run", "--mind", "a", "--max-wait", "300ms", "true").returncode == 75
    systemctl("stop", "hostguard-turn-a-*.scope")
    assert host("run", "--mind", "a", "--max-wait", "300ms", "true").returncode == 0


@pytest.mark.parametrize("kind", [["--scope"], []], ids=["scope", "service"])
def test_a_unit_made_by_hand_in_the_minds_slice_counts(host: Host, kind: list[str]) -> None:
    with systemd_run("--slice=hostguard-a.slice", *kind):
        assert host("run", "--mind", "a", "--max-wait", "0", "true").returncode == 75
        assert [(turn["mind"], turn["state"], turn["pids"]) for turn in host.live()] == [("a", "foreign", 1)]
    assert host("run", "--mind", "a", "--max-wait", "0", "true").returncode == 0


MIND = "hostguard-mind@a.service"


@pytest.fixture
def resident() -> Iterator[None]:
    """The mind a's own service, as it is shipped, and its user."""
    settings = Path("/etc/hostguard/minds/a.env")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('COMMAND=/bin/sh -c "cd && id -un >who && exec sleep 60"\n')
    run("useradd", "--create-home", "a")
    systemctl("start", MIND)
    yield
    systemctl("stop", MIND)
    run("userdel", "--remove", "a")
    settings.unlink()


@pytest.mark.usefixtures("resident")
def test_a_resident_minds_service_is_no_turn(host: Host) -> None:
    wait_for(lambda: Path("/home/a/who").exists() and Path("/home/a/who").read_text() == "a\n")
    names = ("MainPID", "ControlGroup", "Delegate", "After")
    shown = {name: run("systemctl", "show", "--value", "-p", name, MIND).stdout.strip() for name in names}
    assert shown["ControlGroup"] == f"/hostguard.slice/hostguard-a.slice/{MIND}"
    assert shown["Delegate"] == "yes"
    assert "hostguard.service" in shown["After"].split()
    status = Path(f"/proc/{shown['MainPID']}/status").read_text()
    assert re.search(r"^CapBnd:\t0+$.*^NoNewPrivs:\t1$", status, re.MULTILINE | re.DOTALL), status
    assert host.live() == []
    assert host("run", "--mind", "a", "--max-wait", "0", "true").returncode == 0


def test_the_global_cap_holds_and_names_the_oldest(host: Host) -> None:
    host.hold_slot("a")
    host.hold_slot("b")
    [oldest] = [turn["id"] for turn in host.live() if turn["mind"] == "a"]
    done = host("run", "--mind", "c", "--max-wait", "0", "true")
    assert (done.returncode, f"no slot free, behind turn {oldest}\n" in done.stderr) == (75, True)


def test_an_unknown_mind_is_refused(host: Host) -> None:
    done = host("run", "--mind", "nobody", "true")
    assert (done.returncode, "[minds.nobody]" in done.stderr) == (4, True)


def test_only_root_runs_turns_without_the_daemon(host: Host) -> None:
    done = host.unprivileged("run", "--mind", "a", "true")
    assert (done.returncode, "only root" in done.stderr) == (3, True)


def test_the_runtime_folder_may_go_and_come_back(host: Host) -> None:
    holder = host.hold_slot("a")
    waiter = host.wait_held("--mind", "a", "true")
    shutil.rmtree(host.folder / "run")
    holder.kill()
    assert waiter.wait(10) == 0


# -- status


def test_status_shows_live_turns_and_says_that_the_daemon_is_away(host: Host) -> None:
    assert "running  no turns" in host("status").stdout
    holder = host.hold_slot("a")
    for done in (host("status"), host.unprivileged("status")):
        assert done.returncode == 3
        assert "hostguard-turn-a-x" in done.stdout
        assert "not running" in done.stderr
    (turn,) = host.live()
    assert turn["mind"] == "a"
    assert turn["state"] == "running"
    assert turn["pids"] == 1
    assert abs(turn["started_at"] / 1000 - time.time()) < 30
    holder.kill()
    wait_for(lambda: host.live() == [])
