"""Attacks on the guard's sockets at random: 10,000 requests. What they take, and how soon another mind is answered.

Each is one of some bodies, whole, half or chunked, on 1 to 200 connections, sent to one of some paths of the three
sockets by one who may use all of them, and now and then nobody reads the answers. Meanwhile a second mind reports
that it is done, ten times a second. tests/system/attacks/test_budget.py does the same in short.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.bench import common
from tests.rig import hostile

REQUESTS = 10_000
PORT, WEB = 4200, 4201
TOKENS = ("ada", "bob")
API = "Host: a"
TOKEN = "Host: 127.0.0.1\r\nAuthorization: Bearer "


def config() -> str:
    minds = [
        f'[minds.{name}]\nurl = "http://127.0.0.1:{port}"\nuser = "root"\n'
        f'token = "sha256:{hashlib.sha256(name.encode()).hexdigest()}"\n'
        for port, name in enumerate(TOKENS, 1)
    ]
    return "".join(minds) + f'[events]\nlisten = "127.0.0.1:{PORT}"\n[web]\nlisten = "127.0.0.1:{WEB}"\n'


HEADS: list[tuple[str | int, str]] = [
    (common.SOCKET, f"POST /v1/deliveries HTTP/1.1\r\n{API}"),
    (common.SOCKET, f"POST /v1/pause HTTP/1.1\r\n{API}"),
    (common.SOCKET, f"POST /v1/schedules HTTP/1.1\r\n{API}"),
    (common.SOCKET, f"GET /v1/status HTTP/1.1\r\n{API}"),
    (common.SOCKET, f"GET /v1/deliveries?state=all HTTP/1.1\r\n{API}"),
    (PORT, f"POST /api/minds/ada/message HTTP/1.1\r\n{TOKEN}ada"),
    (PORT, f"POST /api/minds/ada/events HTTP/1.1\r\n{TOKEN}ada"),
    (WEB, "GET / HTTP/1.1\r\nHost: 127.0.0.1"),
    (WEB, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1"),
]


def done_s() -> float:
    """How long the `done` of the other mind takes."""
    url, headers = f"http://127.0.0.1:{PORT}/api/minds/bob/events", {"Authorization": "Bearer bob"}
    began = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(url, b'{"type": "done"}', headers), timeout=60):
        return time.monotonic() - began


def main() -> None:
    chosen, statuses, took = random.Random(1), dict[str, int](), list[float]()
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.1):
            took.append(done_s())

    common.run("groupadd", "--force", "--system", "hostguard")
    with common.Daemon(config(), Path(tempfile.mkdtemp(dir=common.DISK)) / "state") as daemon:
        shutil.chown(common.SOCKET, group="hostguard")  # as its unit has it, which is not installed here
        Path(common.SOCKET).chmod(0o660)
        before = common.status_number(daemon.pid, "VmHWM")
        asking = threading.Thread(target=ask)
        asking.start()
        sent = 0
        while sent < REQUESTS:
            attack = hostile.drawn(chosen, HEADS, 50)
            sent += attack["connections"] * attack["requests"]
            become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--groups=hostguard"]
            program = ["/usr/bin/python3", hostile.__file__, json.dumps(attack)]
            for status, count in json.loads(common.run(*become, *program)).items():
                statuses[status] = statuses.get(status, 0) + count
        over.set()
        asking.join()
        peak = common.status_number(daemon.pid, "VmHWM")
    took.sort()
    print(f"{sent} requests, answered with {statuses}")
    print(f"peak of memory: {before / 1024:.0f} MiB before, {peak / 1024:.0f} MiB after; aim: under 128 MiB")
    print(f"`done` of another mind: {took[len(took) // 2]:.3f} s, at most {took[-1]:.3f} s; aim: under 1 s\n")


if __name__ == "__main__":
    main()
