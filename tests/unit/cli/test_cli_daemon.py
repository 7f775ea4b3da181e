"""The `hostguard` command without a daemon, and with one that does strange things."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from standin import ROOT, StandIn, row

from hostguard.cli import client
from hostguard.core import paths


def test_a_missing_daemon_is_told_with_the_mend(away: StandIn) -> None:
    done = away.run("cancel", "1", "2")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "hostguard: hostguard is not running: systemctl start hostguard\n"


def test_status_without_systemd_says_so_and_that_the_daemon_is_away(away: StandIn) -> None:
    away.extra["DBUS_SYSTEM_BUS_ADDRESS"] = f"unix:path={away.folder}/none"
    done = away.run("status")
    assert (done.returncode, done.stdout) == (3, "")
    assert "needs a host with systemd" in done.stderr
    assert "systemctl start hostguard" in done.stderr


def test_a_stale_socket_is_a_missing_daemon(away: StandIn) -> None:
    socketserver.UnixStreamServer(str(away.folder / "hostguard.sock"), BaseHTTPRequestHandler).server_close()
    done = away.run("minds")
    assert (done.returncode, done.stderr.count("systemctl start hostguard")) == (3, 1)


@pytest.mark.parametrize("accepts", [True, False])
def test_where_many_connect_it_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    monkeypatch.setattr(paths, "SOCKET", tmp_path / "sock")
    monkeypatch.setattr(client, "CONNECT_S", 30.0 if accepts else 0.2)
    with ExitStack() as stack:
        listening, first, waits, mine = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(4))
        listening.bind(str(paths.SOCKET))
        listening.listen(0)
        first.connect(str(paths.SOCKET))
        waits.setblocking(False)
        assert waits.connect_ex(str(paths.SOCKET)) == errno.EAGAIN
        if not accepts:
            with pytest.raises(TimeoutError, match="too many connect at the same time"):
                client._connect(mine)
            return
        with ThreadPoolExecutor() as pool:
            connecting = pool.submit(client._connect, mine)
            assert not wait([connecting], timeout=0.1).done
            stack.enter_context(listening.accept()[0])
            connecting.result(timeout=30)


@pytest.mark.skipif(os.geteuid() != 0, reason="root hands the file to another user")
@pytest.mark.parametrize("barred", ["folder", "socket"])
def test_a_user_without_access_is_told_of_the_group(daemon: StandIn, barred: str) -> None:
    path = daemon.folder if barred == "folder" else daemon.folder / "hostguard.sock"
    path.chmod(0o700)
    os.chown(path, 65534, 65534)
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", sys.executable, "-m", "hostguard", "queue"],
        cwd=ROOT, env=daemon.env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "group hostguard" in done.stderr
    assert "Traceback" not in done.stderr


def test_refusals_reach_the_person_in_the_daemons_words(daemon: StandIn) -> None:
    daemon.answer(
        "GET /v1/minds", {"code": "unavailable", "detail": "the \x1b[31mcard stalls"}, 503, Retry_After="7"
    )
    done = daemon.run("minds")
    assert (done.returncode, done.stderr) == (
        1,
        "hostguard: the \\x1b[31mcard stalls; try again in 7 s\n",
    )


def test_something_else_on_the_socket_is_no_traceback(daemon: StandIn) -> None:
    daemon.answer("GET /v1/minds", b"<html>")
    done = daemon.run("minds")
    assert done.returncode == 1
    assert re.fullmatch(r"hostguard: the answer on .*/hostguard.sock is not from hostguard\n", done.stderr)


def test_an_unknown_verb_is_a_usage_error(away: StandIn) -> None:
    done = away.run("frobnicate")
    assert done.returncode == 2
    assert "frobnicate" in done.stderr


def test_hostile_names_are_escaped_in_tables_and_in_json(daemon: StandIn) -> None:
    held = {"reason": "mind_busy", "blocker": "x\x07", "since": 1}
    daemon.answer(
        "GET /v1/deliveries", {"deliveries": [row(mind="a\x1b]0;x\x07", hold=held)], "total_queued": 1}
    )
    for args, said in ((("queue",), r"mind busy, behind x\x07"), (("queue", "--json"), "mind_busy")):
        done = daemon.run(*args)
        assert done.returncode == 0
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)
        assert said in done.stdout
    assert daemon.asked[0] == ("GET /v1/deliveries?limit=100", None)


def test_a_closed_pipe_is_quiet(daemon: StandIn) -> None:
    daemon.answer("GET /v1/deliveries", {"deliveries": [row(i) for i in range(3000)], "total_queued": 3000})
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "hostguard", "queue"],
            cwd=ROOT, env=daemon.env, stdout=closed, stderr=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"")


def test_ctrl_c_is_quiet(daemon: StandIn) -> None:
    started = threading.Event()
    daemon.answers["GET /v1/minds"] = (200, {}, b"")

    class Slow(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            started.set()
            time.sleep(1)
            return super().get(key, default)

    daemon.answers = Slow(daemon.answers)
    process = subprocess.Popen(
        [sys.executable, "-m", "hostguard", "minds"],
        cwd=ROOT, env=daemon.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert started.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


def test_completion_offers_live_names(daemon: StandIn) -> None:
    daemon.answer("GET /v1/minds", {"minds": [{"name": "alpha"}, {"name": "beta"}]})
    env = {
        **daemon.env,
        "_HOSTGUARD_COMPLETE": "bash_complete",
        "COMP_WORDS": "hostguard send @a",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "hostguard"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "plain,@alpha\n"


class Raw(socketserver.StreamRequestHandler):
    """Says something before it has read all, and leaves."""

    said = b""

    def handle(self) -> None:
        self.request.recv(1000)
        self.wfile.write(self.said)


@pytest.mark.parametrize(
    ("said", "exit_code", "told"),
    [
        (b"", 3, "lost the connection to hostguard"),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\n{", 3, "lost the connection to hostguard"),
        (
            b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{",
            3,
            "lost the connection to hostguard",
        ),
        (b"SSH-2.0-OpenSSH\r\n", 3, "lost the connection to hostguard"),
        (b'HTTP/1.1 413 X\r\ncontent-length: 25\r\n\r\n{"detail": "it is large"}', 1, "it is large"),
    ],
)
def test_an_answer_that_breaks_off_is_told(away: StandIn, said: bytes, exit_code: int, told: str) -> None:
    handler = type("Handler", (Raw,), {"said": said})
    with socketserver.ThreadingUnixStreamServer(str(away.folder / "hostguard.sock"), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            done = away.run("send", "@m", input="x" * 1_000_000)
        finally:
            server.shutdown()
            thread.join()
    assert (done.returncode, done.stdout, told in done.stderr) == (exit_code, "", True), done
    assert "Traceback" not in done.stderr


def test_an_argument_that_is_not_utf8_is_refused_before_the_daemon_is_asked(daemon: StandIn) -> None:
    for args in (
        ("wake", b"\xff"),
        ("queue", "--mind", b"\xff"),
        ("logs", b"\xff"),
        ("dead", "list", b"--mind=\xff"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "hostguard", *args],
            cwd=ROOT, env=daemon.env, capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, b"is not UTF-8" in done.stderr) == (2, True), done
    assert daemon.asked == []
