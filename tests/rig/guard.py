"""hostguard.service of the checkout, under a test, in a guest."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from hostguard.core import paths

ROOT = Path(__file__).parents[2]
INSTALLED = "HOSTGUARD_TESTS_INSTALLED" in os.environ  # see suite
CHECKOUT = Path("/checkout") if INSTALLED else ROOT  # with all its modules
DISK = Path("/disk")  # the machine's own disk, see `guest`
STATE = Path("/var/lib/hostguard")
UNIT = "hostguard.service"
SOCKET = "hostguard.socket"

COMMAND = """#!/bin/sh
# From the checkout, as the package would install it.
PYTHONPATH={root} PYTHONDONTWRITEBYTECODE=1 exec {python} -m {module} "$@"
"""


def install() -> None:
    """The commands on PATH and the shipped units, as the package has them; or see to the package. In a guest only."""
    assert b"container=hostguard" in Path("/proc/1/environ").read_bytes().split(b"\0"), "this is no guest"
    if INSTALLED:
        assert paths.__file__.startswith("/usr/lib/"), paths.__file__
        systemctl("disable", "--now", UNIT, SOCKET)  # as in a checkout: each test starts it by itself
        return
    for name, module in (("hostguard", "hostguard"), ("hostguardd", "hostguard.hostguardd")):
        script = Path("/usr/bin", name)
        script.write_text(COMMAND.format(root=ROOT, python=sys.executable, module=module))
        script.chmod(0o755)
    shutil.copytree(ROOT / "units", "/etc/systemd/system", dirs_exist_ok=True)
    for source, target in (("polkit", "polkit-1/rules.d"), ("pam-configs", "pam-configs")):
        shutil.copytree(ROOT / "packaging" / source, f"/usr/share/{target}", dirs_exist_ok=True)
    run("groupadd", "--force", "--system", "hostguard")
    systemctl("daemon-reload")


@contextmanager
def drop_in(settings: str, unit: str = UNIT) -> Iterator[None]:
    """Lines for the [Service] section of hostguard.service, or for its socket, for as long as a test takes."""
    file = Path(f"/run/systemd/system/{unit}.d/case-{secrets.token_hex(4)}.conf")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[{unit.rpartition('.')[2].title()}]\n{settings}\n")
    systemctl("daemon-reload")
    try:
        yield
    finally:
        file.unlink()
        systemctl("daemon-reload")


class Guard:
    """hostguard.service with a configuration and an empty state folder of its own, and its command line."""

    def __init__(self) -> None:
        self.began = time.time()
        self._mounted = False
        self.reused = False  # an earlier test has started it

    def start(self, config: str = "", state: Path | None = None) -> None:
        """Start and wait until it is ready. `state`: an empty folder, by default a fresh one on a real disk.

        One that an earlier test started, and that `is_as_new`, only takes the configuration.
        """
        self.configure(config)
        if self._mounted:
            assert state is None, "a test with a state of its own cannot share the guard"
            with self.client() as api:
                answer = api.post("/v1/reload")
            assert answer.is_success, answer.text
            return
        self.state = state or Path(tempfile.mkdtemp(prefix="state-", dir=DISK))
        STATE.mkdir(exist_ok=True)
        run("mount", "--bind", str(self.state), str(STATE))
        self._mounted = True
        systemctl("start", UNIT)

    def reuse(self) -> None:
        """A test begins. What it asks of the journal is its own."""
        self.began, self.reused = time.time(), self._mounted

    def is_as_new(self) -> bool:
        """Tidy up; whether it is as after a start then, but for final rows, events and the journal."""
        if not (self._mounted and self.pid):
            return False
        with self.client() as api:
            for limit in api.get("/v1/limits").json()["limits"]:
                if limit["source"] in ("kept", "runtime"):
                    default = {"name": limit["name"], "mind": limit["mind"], "value": "default"}
                    api.patch("/v1/limits", json=default)
            for mind in (None, *api.get("/v1/status").json()["paused_minds"]):
                api.post("/v1/resume", json={"mind": mind})
            for row in api.get("/v1/deliveries").json()["deliveries"]:
                api.post(f"/v1/deliveries/{row['id']}/cancel")
            pages = ("status", "deliveries", "deliveries?state=dead", "schedules")
            status, waiting, dead, schedules = (api.get(f"/v1/{page}").json() for page in pages)
        return bool(
            (status["state"], status["turns"], status["queued"]) == ("running", 0, 0)
            and not status["paused_minds"]
            and all(
                one["code"].startswith("mind_") for one in status["problems"]
            )  # of a mind that is gone now
            and all(mind["sleep"] == "awake" for mind in status["minds"])
            and not waiting["deliveries"] + dead["deliveries"]
            and all(one["source"] == "config" for one in schedules["schedules"])
            and not self.scopes()
        )

    def configure(self, config: str) -> None:
        """Write the configuration; `reload` applies it."""
        Path("/etc/hostguard").mkdir(exist_ok=True)
        Path("/etc/hostguard/hostguard.toml").write_text(config)

    def stop(self) -> None:
        """Stop the daemon, and have nobody who asks it start it again; turns stay."""
        systemctl("stop", UNIT, SOCKET)

    def restart(self) -> None:
        """Restart, or start again, and wait until it is ready."""
        systemctl("restart", UNIT)

    def reload(self) -> None:
        """Reload the configuration, and wait until that is done."""
        self.cli("reload")

    def kill(self, signal: str = "KILL") -> None:
        """Send a signal to the daemon's main process. systemd starts it again."""
        systemctl("kill", "--kill-whom=main", f"--signal={signal}", UNIT)

    def wait_ready(self) -> None:
        """Wait until the daemon, killed a moment ago, answers."""
        wait_for(lambda: self.cli("status", check=False).returncode == 0)

    @property
    def pid(self) -> int:
        """The daemon's main process, 0 while there is none."""
        return int(run("systemctl", "show", "--value", "--property=MainPID", UNIT).stdout)

    def cli(
        self, *args: str, check: bool = True, input: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`hostguard ARGS`, with nothing on its standard input by default."""
        done = subprocess.run(
            ["hostguard", *args], input=input or "", capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0 or not check, done
        return done

    def json(self, *args: str) -> Any:
        """What `hostguard ARGS --json` prints."""
        return json.loads(self.cli(*args, "--json").stdout)

    def client(self) -> httpx.Client:
        """An HTTP client of the API, to be closed."""
        limits = httpx.Limits(keepalive_expiry=2)  # less than the guard keeps a connection
        path = "/run/hostguard/hostguard.sock"
        transport = httpx.HTTPTransport(uds=path, limits=limits, verify=False)  # reads no certificates
        return httpx.Client(transport=transport, base_url="http://hostguard", timeout=60)

    def scopes(self) -> list[str]:
        """The turns' scopes that systemd has, in any state."""
        listed = run("systemctl", "list-units", "--all", "--plain", "--no-legend", "hostguard-turn-*").stdout
        return [line.split()[0] for line in listed.splitlines()]

    def end_turns(self) -> None:
        """Stop the scopes of all turns, also of frozen ones. One may end by itself meanwhile."""
        for verb in ("thaw", "stop"):
            subprocess.run(
                ["systemctl", verb, "hostguard-turn-*.scope"], capture_output=True, timeout=120, check=False
            )

    def journal(self, *matches: str) -> list[dict[str, Any]]:
        """The journal's entries since the test began that match, e.g. "MESSAGE_ID=..." or "_SYSTEMD_UNIT=..."."""
        run("journalctl", "--sync")
        found = run("journalctl", "--output=json", "--all", f"--since=@{self.began:.6f}", *matches).stdout
        return [json.loads(line) for line in found.splitlines()]

    def close(self) -> list[str]:
        """Take everything away; the scopes that were still there."""
        self.stop()
        left = self.scopes()
        systemctl("stop", "hostguard.slice")
        subprocess.run(["systemctl", "reset-failed"], check=True)
        if self._mounted:
            run("umount", str(STATE))
            self._mounted = False
        run("rm", "-rf", "/etc/hostguard", "/run/hostguard")
        return left


@contextmanager
def tidy_guard() -> Iterator[Guard]:
    """A guard, not started yet. Raises AssertionError if turns are left at the end."""
    guard = Guard()
    try:
        yield guard
    finally:
        left = guard.close()
    assert not left, f"the tests left turns behind: {left}"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    return done


def systemctl(*args: str) -> None:
    run("systemctl", *args)


def of_a_busy_machine(seconds: float) -> float:
    """What takes so long on a quiet machine may take this long now: tasks that share a core take turns."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_for(happened: Callable[[], object], seconds: float = 10) -> None:
    """Return once `happened` is true. Asking takes at most a quarter of the time, and less the longer that is."""
    asked = began = time.monotonic()
    while not happened():
        answered = time.monotonic()
        assert answered < began + of_a_busy_machine(seconds), "it did not happen"
        time.sleep(min(max(0.02, 3 * (answered - asked), (answered - began) / 20), 0.25))
        asked = time.monotonic()
