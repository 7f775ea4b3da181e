"""A guard with users of each role, and minds with secrets."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guard import Guard, run, systemctl, wait_for
from guarded import GuardedHost

TOKEN, ENDPOINT, WEB = "the-token-of-bob", "127.0.0.1:4200", "127.0.0.1:4201"
NEEDLE = "needle-in-a-message"
SECRET = "needle-in-an-environment"
OUTPUT = "needle-in-the-output"
CONFIG = f"""
[minds.ada]
command = ["/bin/sh", "-c", "cat >/dev/null; echo {OUTPUT}"]
user = "ada"
environment = {{ SECRET = "{SECRET}" }}
[minds.slow]
command = ["/bin/sleep", "300"]
user = "ada"
environment = {{ SECRET = "{SECRET}" }}
concurrent_turns = 99
[minds.held]
command = ["/bin/true"]
user = "ada"
[minds.bob]
url = "http://127.0.0.1:1"
user = "ada"
token = "sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}"
[events]
listen = "{ENDPOINT}"
[web]
listen = "{WEB}"
"""
CONFIG_FILE = Path("/etc/hostguard/hostguard.toml")
ROLES = ("root", "member", "other", "mind")


class Host(GuardedHost):
    """The guard with minds, and users of each role."""

    def as_user(self, role: str, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as the role's user. A mind's own user is no more than any other."""
        user = "other" if role == "mind" else role
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]
        return subprocess.run([*become, *argv], input=stdin, capture_output=True, text=True, timeout=120)

    def cli(self, role: str, *args: str, stdin: str = "") -> bool:
        """Whether `hostguard ARGS` is done for the role. If not, it must be for want of rights."""
        done = self.as_user(role, "hostguard", *args, stdin=stdin)
        assert done.returncode == 0 or re.search(r"may not|may schedule|ermission", done.stderr), done
        return done.returncode == 0

    def asked(self, path: str, body: Any, token: str | None = TOKEN, method: str = "POST") -> int:
        """The status of a request to the minds' endpoint."""
        raw = None if method == "GET" else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {token}"} if token is not None else {}
        request = urllib.request.Request(f"http://{ENDPOINT}{path}", raw, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status: int = answer.status
        except urllib.error.HTTPError as error:
            return error.code
        return status

    def api_by_token(self, *requests: tuple[str, str]) -> bool:
        """Whether the minds' endpoint serves any of what the socket does."""
        return any(self.asked(path, {}, method=method) < 300 for method, path in requests)

    def all_or_none(self, role: str, *commands: tuple[str, ...]) -> bool:
        """Whether the role may do these: all of them, or none."""
        outcomes = {self.cli(role, *args) for args in commands}
        assert len(outcomes) == 1, commands
        return outcomes.pop()

    def live(self) -> tuple[str, str]:
        """(row, scope) of a new turn, which is at work."""
        row = str(self.send("@slow", session="$new"))

        def at_work() -> list[str]:
            return [t["unit"] for t in self.turns() if (t["delivery"], t["state"]) == (int(row), "running")]

        wait_for(at_work)
        return row, at_work()[0]

    def waiting(self) -> str:
        """A row that waits."""
        return str(self.send("@held"))

    def dead(self) -> str:
        """A dead letter."""
        row = str(self.send("@ada"))
        self.done(int(row))
        self.sql("UPDATE deliveries SET state = 'dead' WHERE id = ?", int(row))
        return row


@pytest.fixture(scope="module")
def host(_installed: None) -> Iterator[Host]:
    for user in ("member", "other", "ada"):
        run("useradd", "--create-home", user)
    run("usermod", "--append", "--groups", "hostguard", "member")
    guard = Guard()
    systemctl("start", "hostguard.socket")  # as it is installed
    guard.start(CONFIG)
    CONFIG_FILE.chmod(0o600)
    made = Host(guard)
    made.send("@ada", NEEDLE)  # row 1
    made.done(1)
    guard.cli("pause", "held")
    yield made
    made.api.close()
    guard.close()
    for user in ("member", "other", "ada"):
        run("userdel", "--force", "--remove", user)
