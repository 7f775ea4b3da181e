"""The stub, as real processes: what it leaves of a command's output, and how an anchor stays."""

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from forking import Server

from hostguard.core import units
from hostguard.linux import cgroup
from hostguard.systemd.fork_client import ForkClient
from hostguard.systemd.fork_server import HOLDER
from hostguard.turns import exit_record
from hostguard.turns.drivers import exec_driver as command

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a stub becomes another user")


@pytest.fixture
def server():
    server = Server()
    yield server
    server.end()


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "1"
    path.touch()
    return path


NOWHERE = cgroup.account_files(Path("/nowhere"))


def until(happened, seconds=10):
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


def run(server, record, script, capture, stdin=b""):
    """The record of a shell script that has ended, and the seconds that took."""
    stub = server.stub()
    user = {
        "cwd": "/",
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": os.getgroups(),
        "account": NOWHERE,
    }
    env = {"PATH": command.PATH}
    began = time.monotonic()
    stub.release(
        {"argv": ["/bin/sh", "-c", script], "env": env, "capture": capture, **user}, stdin, record, None
    )
    until(lambda: not stub.alive())
    stub.close()
    return exit_record.parse_record(record.read_text(errors="replace")), time.monotonic() - began


CAPTURED = [
    ("both streams, in order", "echo one; echo two >&2; echo three", "one\ntwo\nthree\n"),
    ("nothing said", "true", ""),
    ("not the line that ends the account", "echo output", "output\n"),
    ("the first of too much, and the rest is read, so that the command ends", "yes | head -c 300000", "y\n" * 50),
    ("a child that keeps the pipe", "echo said; sleep 3 &", "said\n"),
    ("a child that writes on for ever", "timeout 3 yes &", "y\n" * 50),
]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "output"), [row[1:] for row in CAPTURED], ids=[row[0] for row in CAPTURED]
)
def test_the_first_of_what_a_script_says_is_kept(server, record, script, output):
    found, seconds = run(server, record, script, capture=100)
    assert found.exit == 0
    assert found.output == output
    assert seconds < 2, "what the command left behind is not waited for"


def test_a_script_reads_its_stdin_and_its_status_is_kept(server, record):
    found, _ = run(server, record, "cat; exit 7", capture=100, stdin=b"in")
    assert (found.exit, found.output) == (7, "in")


def test_what_it_read_and_wrote_is_accounted_for_though_the_stub_has_another_user_by_then(server, record):
    found, _ = run(server, record, "true", capture=100)
    assert found.account.keys() >= {"read_bytes", "write_bytes"}


def test_a_signal_to_all_processes_of_a_turn_leaves_who_records_its_end(server, record):
    """As `systemctl kill --signal=USR1` on its scope."""
    stub = server.stub()
    user = {"cwd": "/", "uid": 0, "gid": 0, "groups": [], "account": NOWHERE}
    script = "trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done"
    argv = {"argv": ["/bin/sh", "-c", script], "env": {"PATH": command.PATH}, "capture": 100}
    stub.release({**argv, **user}, b"", record, None)
    shell = until(lambda: psutil.Process(stub.pid).children())[0]
    until(lambda: shell.children())  # so the trap is set
    for pid in (stub.pid, shell.pid):
        os.kill(pid, signal.SIGUSR1)
    until(lambda: not stub.alive())
    stub.close()
    assert exit_record.parse_record(record.read_text()).exit == 7


@pytest.mark.parametrize("confined", [True, False])
def test_a_confined_command_and_its_children_gain_no_privileges(server, record, confined):
    stub = server.stub()
    script = "grep NoNewPrivs /proc/self/status"
    spec = {"argv": ["/bin/sh", "-c", script], "env": {"PATH": command.PATH}, "capture": 100, "cwd": "/"}
    user = {"uid": 65534, "gid": 65534, "groups": [], "confined": confined, "account": NOWHERE}
    stub.release({**spec, **user}, b"", record, None)
    until(lambda: not stub.alive())
    stub.close()
    assert exit_record.parse_record(record.read_text()).output.split() == ["NoNewPrivs:", "01"[confined]]


def test_a_command_that_cannot_start_says_why(server, record):
    stub = server.stub()
    spec = {"argv": ["/nowhere/x"], "env": {}, "capture": 100, "cwd": "/"}
    stub.release({**spec, "uid": 0, "gid": 0, "groups": [], "account": NOWHERE}, b"", record, None)
    until(lambda: not stub.alive())
    stub.close()
    assert exit_record.parse_record(record.read_text()).not_started == "/nowhere/x: No such file or directory"


def test_an_anchor_has_a_user_of_its_own_outlives_the_guard_and_ends_by_sigterm(record):
    server = Server()
    stub = server.stub()
    stub.anchor(record)
    try:
        found = until(lambda: exit_record.parse_record(record.read_text()).anchor)
        assert found == stub.pid
        until(lambda: psutil.Process(stub.pid).uids().real == HOLDER)
        server.end()
        assert not Path(f"/proc/{server.process.pid}").exists()
        time.sleep(0.2)
        assert stub.alive()
        process = psutil.Process(stub.pid)
        assert (*process.uids(), *process.gids()) == (HOLDER,) * 6
        assert b"Groups:\t \n" in Path(f"/proc/{stub.pid}/status").read_bytes()
        os.kill(stub.pid, signal.SIGTERM)
        until(lambda: not stub.alive())
    finally:
        with suppress(ProcessLookupError):
            os.kill(stub.pid, signal.SIGKILL)
        stub.close()


MIND = 1999  # a user without a name


def test_a_stub_is_of_no_mind_while_its_command_runs(server, record):
    """It has no capability left either, and the command cannot end it."""
    stub = server.stub()
    script = "kill -9 $PPID; kill -STOP $PPID; kill -9 0; id -u; id -G; exit 7"
    spec = {"argv": ["/bin/sh", "-c", script], "env": {"PATH": command.PATH}, "capture": 100, "cwd": "/"}
    stub.release({**spec, "uid": MIND, "gid": 8, "groups": [9], "account": NOWHERE}, b"", record, None)
    until(lambda: not stub.alive())
    stub.close()
    found = exit_record.parse_record(record.read_text())
    assert found.signal == signal.SIGKILL, "of its own process group the command has ended what it may"
    assert found.output.count("not permitted") == 2


def test_no_mind_may_have_the_user_of_the_stubs():
    assert units.HOLDER == HOLDER


def test_a_command_has_the_user_the_folder_and_the_signals_of_its_mind(server, record):
    stub = server.stub()
    script = (
        "id -u; id -G; pwd; umask; cat /proc/self/oom_score_adj; grep -E '^Sig(Blk|Ign)' /proc/self/status"
    )
    spec = {"argv": ["/bin/sh", "-c", script], "env": {"PATH": command.PATH}, "capture": 200, "cwd": "/usr"}
    stub.release({**spec, "uid": MIND, "gid": 8, "groups": [9], "account": NOWHERE}, b"", record, None)
    until(lambda: not stub.alive())
    stub.close()
    said = exit_record.parse_record(record.read_text()).output.split()
    assert said == [str(MIND), "8", "9", "/usr", "0022", "0", "SigBlk:", "0" * 16, "SigIgn:", "0" * 16]


def test_a_stub_beside_a_caller_stays_as_long_as_that_lives():
    """Also without the guard, and whatever signal is sent to all of its scope."""
    server = Server()
    caller = subprocess.Popen(["sleep", "60"])
    stub = server.stub()
    watched = os.pidfd_open(caller.pid)
    stub.watch(watched)
    os.close(watched)
    try:
        until(lambda: psutil.Process(stub.pid).uids() == (HOLDER,) * 3)
        server.end()
        ignored = Path(f"/proc/{stub.pid}/status").read_text().partition("SigIgn:\t")[2].split()[0]
        assert int(ignored, 16) & 1 << signal.SIGTERM - 1
        assert stub.alive()
        caller.kill()
        until(lambda: not stub.alive())
    finally:
        caller.kill()
        caller.wait()
        with suppress(ProcessLookupError):
            os.kill(stub.pid, signal.SIGKILL)
        stub.close()


def test_a_stub_whose_guard_is_gone_runs_nothing(record):
    server = Server()
    stub = server.stub()
    server.end()
    stub.dismiss()
    until(lambda: not stub.alive())
    os.close(stub.pidfd)
    assert record.read_bytes() == b""


def test_a_client_that_closes_leaves_no_channel_open_though_its_stubs_are_still_to_come():
    class Systemd:
        async def start_service(self, unit, properties, stdin):
            self.stdin = os.dup(stdin)  # and nobody reads it

    async def work():
        systemd = Systemd()
        before = set(os.listdir("/proc/self/fd"))
        client = ForkClient(systemd)
        await client.start()
        client.close()
        os.close(systemd.stdin)
        assert set(os.listdir("/proc/self/fd")) <= before

    asyncio.run(work())
