"""A guard under attack: its peak of memory, how soon another mind's `done` is answered, and what attackers send."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guard import CHECKOUT, Guard, of_a_busy_machine, run, systemctl
from guarded import GuardedHost
from hostile import MIB
from minds import free_port

from hostguard.core import paths

UNIX, PORT, WEB = str(paths.SOCKET), free_port(), free_port()
TOKENS = {"ada": "token-of-ada", "bob": "token-of-bob"}
PEAK_MAX = 128 << 20
DONE_S = 1.0
_MIND = '[minds.{name}]\nurl = "http://127.0.0.1:{port}"\nuser = "{name}"\ntoken = "sha256:{token}"\n'
CONFIG = "".join(
    _MIND.format(name=name, port=port, token=hashlib.sha256(token.encode()).hexdigest())
    for port, (name, token) in enumerate(TOKENS.items(), 1)
) + (
    '[minds.eve]\ncommand = ["/bin/true"]\nuser = "eve"\n[channels."#all"]\nminds = ["ada", "bob", "eve"]\n'
    f'[events]\nlisten = "127.0.0.1:{PORT}"\n[web]\nlisten = "127.0.0.1:{WEB}"\n'
)
USERS = ("member", "other", "eve", *TOKENS)
_ATTACKER = (CHECKOUT / "tests/rig/hostile.py").read_text()

SEND = "POST /v1/deliveries HTTP/1.1\r\nHost: a"


def post(token: str, path: str) -> str:
    """The head of a request of a mind to the minds' endpoint."""
    return f"POST /api/minds/{path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKENS[token]}"


def get(path: str) -> str:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1"


class BudgetHost(GuardedHost):
    """The guard with minds, a member and somebody else. Nothing is delivered."""

    def attack(self, user: str, **spec: Any) -> dict[str, int]:
        """How often the user's clients had which status; `spec`: see tests/rig/hostile.py."""
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]
        done = subprocess.run(
            [*become, "/usr/bin/python3", "-", json.dumps(spec)],
            input=_ATTACKER, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, int] = json.loads(done.stdout)
        return found

    def peak(self) -> int:
        """The guard's peak of memory, in bytes."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.guard.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10

    def done_s(self) -> float:
        """How long bob's `done` takes."""
        headers = {"Authorization": f"Bearer {TOKENS['bob']}"}
        url = f"http://127.0.0.1:{PORT}/api/minds/bob/events"
        request = urllib.request.Request(url, b'{"type": "done"}', headers)
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        return time.monotonic() - began

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Whatever happens meanwhile, memory stays bounded and bob is answered in time."""
        over, took = threading.Event(), [self.done_s(), self.done_s()]

        def ask() -> None:
            while not over.wait(0.1):
                took.append(self.done_s())

        pid = self.guard.pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins again
        asking = threading.Thread(target=ask)
        asking.start()
        try:
            yield
        finally:
            over.set()
            asking.join()
        print(f"peak {self.peak() / MIB:.0f} MiB, slowest done {max(took):.3f} s")
        took.sort()
        assert self.guard.pid == pid
        assert self.peak() < PEAK_MAX
        assert took[-2] < of_a_busy_machine(DONE_S)  # one may be the fault of whatever else the machine does


@contextmanager
def budget_host() -> Iterator[BudgetHost]:
    """A paused guard, as it is installed."""
    for user in USERS:
        run("useradd", "--create-home", user)
    run("usermod", "--append", "--groups", "hostguard", "member")
    guard = Guard()
    systemctl("start", "hostguard.socket")
    guard.start(CONFIG)
    guard.cli("pause")
    made = BudgetHost(guard)
    try:
        yield made
    finally:
        made.api.close()
        guard.close()
        for user in USERS:
            run("userdel", "--force", "--remove", user)
