"""Other processes, as this machine's /proc shows them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hostguard.linux import process as processes
from hostguard.linux.process import Process, home_of, listeners, members, process, storage, uid_of

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


@pytest.mark.parametrize(("bound", "url"), [
    ("127.0.0.1", "http://127.0.0.1:{}"), ("127.0.0.1", "http://localhost:{}"), ("0.0.0.0", "http://127.0.0.1:{}"),
])  # fmt: skip
def test_the_listener_at_a_url(bound, url):
    with socket.create_server((bound, 0)) as server:
        at = url.format(server.getsockname()[1])
        assert listeners(at, [os.getpid(), GONE]) == [os.getpid()]
        assert os.getpid() in listeners(at)
    assert listeners(at, [os.getpid()]) == []


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "http://a-name:80", "http:///"])
def test_a_url_elsewhere_has_no_listener_here(monkeypatch, url):
    monkeypatch.setattr(processes, "_listening", lambda: pytest.fail("not needed"))
    assert listeners(url) == []


def test_a_bound_address_that_is_not_the_urls_does_not_count():
    with socket.create_server(("127.0.0.2", 0)) as server:
        assert listeners(f"http://127.0.0.1:{server.getsockname()[1]}", [os.getpid()]) == []


def test_this_machine_has_tcp_sockets_in_proc():
    assert Path("/proc/net/tcp").exists()
