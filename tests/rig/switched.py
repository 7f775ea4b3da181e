"""A guest as a host that is switched off and on: its power is cut, it is shut down in any way, it boots again.

    with Switched(tree, folder) as host:
        host.boot(CONFIG)
        host.sh("systemctl poweroff")
        host.wait_off()
        host.boot()

The guard's state, /etc/hostguard and the folder /keep outlive a boot; all else is as the tree has it. After a cut
the disk has all that was written: the kernel goes on. Real cuts are in tests/vm.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
LONG_S = 120  # nothing takes this long, but on a machine that is very busy
SWITCHED_OFF, REBOOTED, KILLED = 0, 133, 125  # how a guest ends
ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root",
    "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
INSTALL = "cd /src && PYTHONPATH=/src:/src/tests/rig python3 -c 'import guard; guard.install()'"


class Switched:
    """A context manager. `off` between boots; `folder`, on a disk, has all that outlives one."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self._folder = folder
        self._guest = [str(ROOT / "tests/rig/guest"), "-r", str(tree), "-B", f"{ROOT}:/src"]
        for name, place in (("state", "/var/lib/hostguard"), ("etc", "/etc/hostguard"), ("keep", "/keep")):
            (folder / name).mkdir(parents=True, exist_ok=True)
            self._guest += ["-b", f"{folder / name}:{place}"]
        (folder / "keep").chmod(0o777)
        self._pid_file = folder / "pid"
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Switched:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.cut()

    @property
    def keep(self) -> Path:
        """/keep, from outside."""
        return self._folder / "keep"

    @property
    def state(self) -> Path:
        """/var/lib/hostguard, from outside."""
        return self._folder / "state"

    @property
    def etc(self) -> Path:
        """/etc/hostguard, from outside."""
        return self._folder / "etc"

    # -- on and off

    def boot(self, config: str | None = None, start: bool = True) -> None:
        """Boot, install the checkout's units, and start the guard. `config`: of the guard, from now on."""
        assert self._process is None
        if config is not None:
            (self._folder / "etc/hostguard.toml").write_text(config)
        self._pid_file.unlink(missing_ok=True)
        with open(self._folder / "guest.log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._guest, "-i", str(self._pid_file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_for(lambda: self._pid_file.exists() and self._pid_file.read_text().strip())
        self._init = int(self._pid_file.read_text())
        self.sh(INSTALL)
        if start:
            self.start_guard()

    def start_guard(self) -> None:
        """Start the guard, and wait until it is ready."""
        self.sh("systemctl start hostguard.socket hostguard || { journalctl --lines=50 >&2; exit 1; }")

    def wait_off(self, seconds: float = LONG_S) -> int:
        """Wait until the host is down; SWITCHED_OFF or REBOOTED."""
        assert self._process is not None
        status = self._process.wait(seconds)
        self._process = None
        return status

    def cut(self) -> None:
        """End the guest's PID 1, and so all of it, at once."""
        assert self._process is not None
        if self._init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)
        else:
            self._process.terminate()
        self.wait_off()

    # -- in it

    def ask(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script as root, beside PID 1."""
        inside = [
            "nsenter",
            "-t",
            str(self._init),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-C",
            "--",
            "bash",
            "-c",
            script,
        ]
        return subprocess.run(
            inside,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
            env=ENV,
        )

    def sh(self, script: str) -> str:
        """Run a shell script, which is to end well; what it printed."""
        done = self.ask(script)
        assert done.returncode == 0, (script, done)
        return done.stdout.strip()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the guard's API. Raises httpx.TransportError if it is not there, AssertionError if it refuses."""
        socket = f"/proc/{self._init}/root/run/hostguard/hostguard.sock"
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=socket, verify=False), base_url="http://hostguard", timeout=60
        ) as api:
            answer = api.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def send(self, to: str, content: Any = "", **fields: Any) -> int:
        """Send a message; its row."""
        sent = self.call("POST", "/v1/deliveries", {"to": to, "content": content, **fields})
        row: int = sent["deliveries"][0]["id"]
        return row

    def row(self, id_: int, wait_s: float = 0) -> Any:
        """The row now, or once it is final, after `wait_s` at most."""
        return self.call("GET", f"/v1/deliveries/{id_}?wait_s={wait_s:g}")

    def journal(self) -> str:
        """What the guard said since this boot."""
        return self.sh("journalctl --sync; journalctl --unit=hostguard --output=cat --no-pager")

    def logged(self) -> list[list[str]]:
        """The words of each line of /keep/log."""
        log = self.keep / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def wait_for(self, happened: Callable[[], object], seconds: float = LONG_S) -> None:
        """Wait until something has happened. Raises AssertionError."""
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end, f"it did not happen: {(self._folder / 'guest.log').read_text()}"
            time.sleep(0.02)


def mind(name: str, *command: str) -> str:
    """A mind's part of the configuration; its turns run as root."""
    return f'[minds.{name}]\ncommand = {json.dumps(command)}\nuser = "root"\n'
