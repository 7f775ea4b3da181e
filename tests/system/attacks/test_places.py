"""Whoever holds connections keeps nobody else out: not the minds, not the pages, not root, not other members."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from guard import Guard, of_a_busy_machine, run, systemctl, wait_for

from hostguard.core import paths

CROWD = Path(__file__).parents[1] / "crowd.py"
TOKEN = "the-token-of-ada"
EVENTS, WEB = 4200, 4280
SOCKET = str(paths.SOCKET)
CONFIG = f"""
[minds.ada]
url = "http://127.0.0.1:1"
user = "ada"
token = "sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}"
[minds.slow]
command = ["/bin/sleep", "300"]
user = "ada"
[events]
listen = "127.0.0.1:{EVENTS}"
[web]
listen = "127.0.0.1:{WEB}"
"""
USERS = ("ada", "eve", "member", "second")
SOON_S = 1.0
BODY = b'{"type": "done"}'
DONE = b"POST /api/minds/ada/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b" % (
    TOKEN.encode(), len(BODY), BODY,
)  # fmt: skip
LIMITS = b"GET /v1/limits HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
METRICS = LIMITS.replace(b"/v1/limits", b"/metrics")


@pytest.fixture(scope="module")
def guard(_installed: None) -> Iterator[Guard]:
    for user in USERS:
        run("useradd", "--create-home", user)
    for user in ("member", "second"):
        run("usermod", "--append", "--groups", "hostguard", user)
    guard = Guard()
    systemctl("start", "hostguard.socket")
    guard.start(CONFIG)
    pid = guard.pid
    yield guard
    assert guard.pid == pid
    guard.end_turns()
    guard.close()
    for user in USERS:
        run("userdel", "--force", "--remove", user)


@contextmanager
def crowd(at: str | int, count: int, user: str = "eve", **how: Any) -> Iterator[dict[str, int]]:
    """While it is there. Then: how many of its connections were closed, by the status that they got."""
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user != "root" else []
    given = json.dumps({"at": at, "count": count, **how})
    closed: dict[str, int] = {}
    command = [*become, sys.executable, "-I", "-S", "-c", CROWD.read_text(), given]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "ready\n"
        yield closed
        closed.update(json.loads(made.communicate()[0]))


@contextmanager
def as_user(name: str) -> Iterator[None]:
    """What this process does meanwhile counts as this user's, with the user's groups."""
    user = pwd.getpwnam(name)
    groups = os.getgroups()
    os.setgroups(os.getgrouplist(name, user.pw_gid))
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setgroups(groups)


def ask(at: str | int, request: bytes, user: str) -> tuple[int, str]:
    """(status, body) of one request of a user, the first time that it is sent."""
    began = time.monotonic()
    with as_user(user):
        sock = socket.socket(socket.AF_UNIX if isinstance(at, str) else socket.AF_INET)
        sock.settimeout(10)
        if isinstance(at, str):
            sock.setblocking(True)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 10, 0))
        sock.connect(at if isinstance(at, str) else ("127.0.0.1", at))
    with sock:
        sock.settimeout(10)
        found = b""
        with suppress(ConnectionError):  # it may be refused before it is sent; what came before is read
            sock.sendall(request)
        with suppress(ConnectionError):
            while part := sock.recv(65536):
                found += part
    took = time.monotonic() - began
    assert took < of_a_busy_machine(SOON_S)
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head[9:12] or 0), body.decode()


HEAD = "POST /api/minds/ada/events HTTP/1.1\r\nHost: x\r\n"
WRONG = f"{HEAD}Authorization: Bearer wrong\r\nContent-Length: 9\r\n\r\n"
# Each sort of connection, by number and what it does. The issue has the first two.
ON_LOOPBACK: dict[str, dict[str, Any]] = {
    "a hundred": {"count": 100},
    "more than there are": {"count": 400},
    "heads in bytes": {"count": 300, "sent": f"{HEAD}X: ", "slowly": "x"},
    "half closed": {"count": 300, "sent": "POST /api", "half": True},
    "wrong tokens": {"count": 300, "sent": WRONG},
}
BY_A_MEMBER: dict[str, dict[str, Any]] = {
    "idle": {"count": 650},
    "heads in bytes": {"count": 650, "sent": "GET /v1/status HTTP/1.1\r\nHost: x\r\nX: ", "slowly": "x"},
    "answered once": {"count": 650, "sent": "GET /v1/limits HTTP/1.1\r\nHost: x\r\n\r\n"},
    "streams": {"count": 650, "sent": "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n"},
    "bodies that never come": {"count": 650, "sent": "POST /v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"},
}  # fmt: skip


@pytest.mark.parametrize("sort", ON_LOOPBACK)
def test_no_user_keeps_the_done_of_a_mind_out(guard: Guard, sort: str) -> None:
    with crowd(EVENTS, **ON_LOOPBACK[sort]) as closed:
        for _ in range(8):
            assert ask(EVENTS, DONE, "ada") == (200, '{"ok":true}')
            time.sleep(0.02)
    if sort in ("more than there are", "heads in bytes"):
        assert closed["503"] > 0  # that is, they were told why


def test_no_user_keeps_others_out_of_the_pages(guard: Guard) -> None:
    unread = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with crowd(WEB, 300), crowd(WEB, 20, "second", sent=unread):
        for _ in range(4):
            status, body = ask(WEB, METRICS, "ada")
            assert status == 200
            assert "hostguard_" in body


@pytest.mark.parametrize("sort", BY_A_MEMBER)
def test_no_member_keeps_root_and_other_members_out(guard: Guard, sort: str) -> None:
    with crowd(SOCKET, user="member", **BY_A_MEMBER[sort]):
        for _ in range(5):
            assert ask(SOCKET, LIMITS, "root")[0] == ask(SOCKET, LIMITS, "second")[0] == 200
        if sort == "streams":  # its own requests are not broken off for another one of its own
            status, body = ask(SOCKET, LIMITS, "member")
            assert status == 503
            assert "all connections are taken" in body


def test_a_member_with_650_connections_cannot_keep_root_from_stopping_a_turn(guard: Guard) -> None:
    row = json.loads(guard.cli("send", "@slow", "x", "--json").stdout)["deliveries"][0]["id"]
    wait_for(lambda: guard.json("status")["turns"] == 1)
    with crowd(SOCKET, 650, "member"):
        assert guard.json("status")["turns"] == 1
        guard.reload()
        guard.cli("stop", str(row))
    wait_for(lambda: guard.json("status")["turns"] == 0)


def test_the_kernel_says_whose_connections_are(guard: Guard) -> None:
    said = [line["MESSAGE"] for line in guard.journal("_SYSTEMD_UNIT=hostguard.service")]
    assert not [line for line in said if "users are not known" in line]
    assert [
        line for line in said if f"port {EVENTS}" in line and f"uid {pwd.getpwnam('eve').pw_uid} has" in line
    ]
