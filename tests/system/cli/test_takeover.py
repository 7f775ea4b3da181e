"""`hostguard run` while a daemon starts or stops, played by a stand-in on the real socket and lock."""

from __future__ import annotations

import fcntl
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from bare import Host, bare_host
from guard import run

UNIT = "hostguard-turn-a-1.scope"


@pytest.fixture
def host() -> Iterator[Host]:
    with bare_host() as made:
        yield made


@contextmanager
def daemon(host: Host, on_run: Callable[[int, str], bytes]) -> Iterator[None]:
    """Holds the gate lock and answers each POST /v1/run, of a pid for a mind; b"" hangs up without a word."""

    class Daemon(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            peer = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self.reply(on_run(struct.unpack("3i", peer)[0], json.loads(body)["mind"]))

        def reply(self, body: bytes) -> None:
            if body:
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    (host.folder / "run").mkdir(exist_ok=True)
    with (host.folder / "run" / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = str(host.folder / "run" / "hostguard.sock")
        with socketserver.ThreadingUnixStreamServer(path, Daemon) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


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

    def on_run(pid: int, mind: str) -> bytes:
        asked.append((pid, mind))
        return b'{"event": "expired"}\n'

    with daemon(host, on_run):
        assert waiter.wait(20) == 75
    assert asked == [(waiter.pid, "a")]
    assert not (host.folder / "ran").exists()


def test_a_run_that_was_moved_but_not_told_goes_on(host: Host) -> None:
    asked = []

    def on_run(pid: int, mind: str) -> bytes:
        asked.append(mind)
        if len(asked) > 1:  # systemd moves it a moment later; it may ask again before
            return b""
        start = ["StartTransientUnit", "ssa(sv)a(sa(sv))", UNIT, "fail"]
        properties = ["2", "PIDs", "au", "1", str(pid), "Slice", "s", "hostguard-a.slice", "0"]
        manager = [
            "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager",
        ]
        run("busctl", "call", *manager, *start, *properties)
        return b""

    with daemon(host, on_run):
        done = host("run", "--mind", "a", "--", "tail", "-1", "/proc/self/cgroup")
    assert done.stdout == f"0::/hostguard.slice/hostguard-a.slice/{UNIT}\n", done
