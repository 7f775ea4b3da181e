"""Other processes, as this machine's /proc shows them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hostguard.linux.process import Process, executed, home_of, members, process, storage, uid_of

GONE = 2**22 + 1  # above the kernel's PID_MAX_LIMIT


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as found:
        yield found
        found.communicate(b"\n", timeout=10)


def test_a_process_is_found_with_its_parent(child):
    found = process(child.pid)
    assert found is not None
    assert (found.pid, found.parent, found.waits) == (child.pid, os.getpid(), False)
    assert found.cpu_s >= 0
    assert found == Process(child.pid, found.started, 1, 99.0, True), "its pid and start identify it"
    assert found != Process(child.pid, found.started + 1, found.parent, found.cpu_s, found.waits)


def test_a_process_that_ended_is_none_though_nobody_reaped_it(child):
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process(child.pid) is None
    child.stdin = None
    assert process(GONE) is None


def test_a_fork_runs_what_its_parent_runs_until_it_executes_a_program(child):
    assert executed(process(child.pid))
    reading, writing = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.read(reading, 1)
        os._exit(0)
    try:
        assert not executed(process(fork))
    finally:
        os.write(writing, b".")
        os.waitpid(fork, 0)
        os.close(reading)
        os.close(writing)


def test_its_user_and_cgroup(child):
    assert uid_of(child.pid) == os.geteuid()
    assert uid_of(GONE) == -1
    assert home_of(child.pid) == home_of(os.getpid())
    assert home_of(GONE) is None


def test_bytes_of_storage(tmp_path):
    (tmp_path / "5").mkdir()
    (tmp_path / "5/io").write_text(
        "rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n"
    )
    assert storage(5, tmp_path) == (4096, 8192)
    (tmp_path / "5/io").write_text("rchar: 1\n")
    assert storage(5, tmp_path) is None
    assert storage(6, tmp_path) is None


def test_members_of_a_cgroup(tmp_path):
    (tmp_path / "cgroup.procs").write_text("12\n345\n")
    assert members(tmp_path) == [12, 345]
    assert members(tmp_path / "gone") == []
