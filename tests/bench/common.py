"""What the benches share: this checkout's daemon installed in the guest, a lean client, rounds, tables."""

from __future__ import annotations

import compileall
import json
import os
import re
import selectors
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.rig.card import Card

ROOT = Path(__file__).parents[2]
MODULES = Path("/usr/lib/python3/dist-packages/hostguard")
DROP_IN = Path("/run/systemd/system/hostguard.service.d/bench.conf")
CONFIG = Path("/etc/hostguard/hostguard.toml")
SOCKET = "/run/hostguard/hostguard.sock"
DISK = Path("/disk")  # the machine's own disk, see tests/rig/guest


def run(*command: str | Path) -> str:
    """Run a command; its output. Raises CalledProcessError."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def mind(name: str, *command: str) -> str:
    """A mind's part of the configuration."""
    return f'[minds.{name}]\ncommand = {json.dumps(command)}\nuser = "root"\n'


class Daemon:
    """hostguard.service, installed from this checkout, with its queue in `state`. As a context it runs.

    `start_s`: from its fork to READY=1, by systemd's clock.
    """

    def __init__(self, config: str, state: Path) -> None:
        if os.environ.get("HOSTGUARD_BENCH") != "guest":
            sys.exit("This installs hostguard where it runs: start it with tests/bench/run, in a guest.")
        if not MODULES.exists():
            shutil.copytree(ROOT / "hostguard", MODULES, ignore=shutil.ignore_patterns("__pycache__"))
            compileall.compile_dir(MODULES, quiet=1)
            program = Path("/usr/bin/hostguardd")
            program.write_text("#!/usr/bin/python3\nfrom hostguard.hostguardd import main\nmain()\n")
            program.chmod(0o755)
            for unit in ("hostguard.service", "hostguard.slice", "hostguard-shutdown.service"):
                shutil.copy(ROOT / "units" / unit, "/etc/systemd/system")
        # Its sandbox takes the state folder of the package for the only one.
        place = f"Environment=HOSTGUARD_STATE={state}\nReadWritePaths={state.parent}\n"
        for path, text in (
            (CONFIG, config),
            (DROP_IN, f"[Unit]\nStartLimitIntervalSec=0\n[Service]\n{place}"),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run("systemctl", "daemon-reload")

    def _start(self) -> float:
        try:
            run("systemctl", "start", "hostguard")
        except subprocess.CalledProcessError:
            sys.exit(run("journalctl", "--unit=hostguard", "--no-pager", "--lines=20"))
        began, ready = (
            self._show("ExecMainStartTimestampMonotonic"),
            self._show("ActiveEnterTimestampMonotonic"),
        )
        return (int(ready) - int(began)) / 1e6

    def __enter__(self) -> Daemon:
        self.start_s = self._start()
        return self

    def __exit__(self, *_: object) -> None:
        run("systemctl", "stop", "hostguard")
        # Apart: a bench that is itself the minds' server has its child adopted while the guard runs.
        run("systemctl", "stop", "hostguard.slice")

    def _show(self, what: str) -> str:
        return run("systemctl", "show", "--value", f"--property={what}", "hostguard").strip()

    @property
    def pid(self) -> int:
        return int(self._show("MainPID"))


def request(method: str, path: str, body: Any = None) -> bytes:
    """The bytes of an HTTP request."""
    content = b"" if body is None else json.dumps(body).encode()
    return b"%b %b HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%b" % (
        method.encode(), path.encode(), len(content), content,
    )  # fmt: skip


class RunClient:
    """One keep-alive connection to the daemon."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(SOCKET)
        self._got = b""

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def receive(self) -> bytes | None:
        """Read what is there; the answer's body, or None if there is more to come."""
        self._got += self.socket.recv(1 << 20)
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if not end or length is None or len(body) < int(length[1]):
            return None
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            raise RuntimeError(self._got)
        self._got = b""
        return body

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        self.send(request(method, path, body))
        while (answer := self.receive()) is None:
            pass
        return json.loads(answer)


def call_at_once(callers: Sequence[RunClient], raw: bytes, go_on: Callable[[int], bool]) -> int:
    """Each caller sends `raw` again and again while go_on(sent so far); how many were answered."""
    answered = sent = 0
    with selectors.DefaultSelector() as selector:
        for caller in callers:
            if go_on(sent):
                selector.register(caller.socket, selectors.EVENT_READ, caller)
                caller.send(raw)
                sent += 1
        while answered < sent:
            for key, _ in selector.select():
                caller = key.data
                if caller.receive() is None:
                    continue
                answered += 1
                if go_on(sent):
                    caller.send(raw)
                    sent += 1
    return answered


def for_seconds(seconds: float) -> Callable[[int], bool]:
    """Go on for so long."""
    end = time.monotonic() + seconds
    return lambda _: time.monotonic() < end


def status_number(pid: int, field: str) -> int:
    """A number from /proc/PID/status; memory is in KiB there."""
    found = re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None, field
    return int(found[1])


def sync(folder: Path) -> None:
    """Let everything written to this file system reach its device."""
    run("sync", "--file-system", folder)


def card_bytes(card: Card) -> int:
    """Bytes written to the card so far."""
    sectors = Path("/sys/block", Path(card.device).name, "stat").read_text().split()[6]
    return int(sectors) * 512


def bare_database(path: Path) -> sqlite3.Connection:
    """A queue as plain as can be, with the settings that hostguard's commits have."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, mind TEXT, at INTEGER, body BLOB)")
    return db


def bare_insert(db: sqlite3.Connection, body: bytes) -> None:
    """One row in one transaction."""
    db.execute("INSERT INTO rows (mind, at, body) VALUES ('bench', ?, ?)", (int(time.time() * 1000), body))


def rounds(count: int, contenders: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Call each contender once a round; their results."""
    results: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            results[name].append(contenders[name]())
    return results


def show(title: str, results: Mapping[str, Sequence[float]], *against: str, aim: str = "") -> None:
    """Print a table: medians, spread, and the ratios to the lines named."""
    medians = {name: statistics.median(values) for name, values in results.items()}
    wide = max(len(title), *map(len, results))
    print(
        f"{title:{wide}} {'median':>9} {'[rounds]':>19}" + "".join(f"  {'/ ' + name:>16}" for name in against)
    )
    for name, values in results.items():
        spread = f"[{_digits(min(values))} .. {_digits(max(values))}]"
        ratios = [f"{medians[name] / medians[other]:.2f}x" if medians[other] else "-" for other in against]
        columns = "".join(
            f"  {ratio:>{max(16, len(other) + 2)}}" for ratio, other in zip(ratios, against, strict=True)
        )
        print(f"{name:{wide}} {_digits(medians[name]):>9} {spread:>19}{columns}")
    if aim:
        print(f"aim: {aim}")
    print(flush=True)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:.3g}"
