"""Resident minds for a test: rig's mind.py, each as a service of its own, or as a plain child of the test."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

MIND = Path(__file__).with_name("mind.py")
UNITS = Path("/run/systemd/system")
ARGUMENTS = Path("/run/arguments-of-minds")
# The same for each mind, so that systemd need not read all units again for each test.
UNIT = f"""[Unit]
StartLimitIntervalSec=0
[Service]
Slice=hostguard-%i.slice
Delegate=yes
EnvironmentFile={ARGUMENTS}/%i
ExecStart={sys.executable} -S {MIND} $ARGS
Restart=on-failure
RestartSec=100ms
"""


def reload_if_needed(*units: Path) -> None:
    """Have systemd read all units again, which is costly, unless it has these as they are in their files."""
    properties = "--property=FragmentPath,NeedDaemonReload"
    for unit in units:
        command = ["systemctl", "show", properties, unit.name]
        shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        if {*shown} != {f"FragmentPath={unit}", "NeedDaemonReload=no"}:
            subprocess.run(["systemctl", "daemon-reload"], check=True)
            return


# Below those that the kernel gives to connections.
_PORTS = iter(random.sample(range(20_000, 32_000), 12_000))


def free_port() -> int:
    """A loopback TCP port that is free at this moment; never the same one twice."""
    for port in _PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


@dataclass
class OneMind:
    """One mind of a test."""

    name: str
    port: int
    token: str
    log_path: Path
    preset: str
    work: float
    service: bool
    config: str
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def unit(self) -> str:
        return f"hostguard-mind@{self.name}.service"

    @property
    def file(self) -> Path:
        """Its unit's, which has its own name: so it goes before the shipped template."""
        return UNITS / self.unit

    def log(self, *whats: str) -> list[dict[str, Any]]:
        """What the mind wrote, of these kinds or all, in order."""
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        return [line for line in lines if not whats or line["what"] in whats]

    def taken(self) -> list[dict[str, Any]]:
        """The messages that the mind works on: each once, however often it came."""
        return [line for line in self.log("message") if line["taken"]]

    def contents(self, session: str | None = None) -> list[Any]:
        """The contents of what the mind has taken."""
        return [line["content"] for line in self.taken() if session in (None, line["session"])]

    def control(self, **what: Any) -> None:
        """Change what the mind does next: see mind.py."""
        url = f"http://127.0.0.1:{self.port}/control"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(what).encode()), timeout=10):
            pass

    def up(self) -> bool:
        """Whether the mind's server answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False


class Minds:
    """A context manager: the minds of a test. `config` is for the guard; `events_port` where it listens.

    `folder`, which is made under `place`, has their files: for a guard in its sandbox, not under /tmp.
    """

    def __init__(self, place: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="minds-", dir=place))
        self.events_port = free_port()
        self.minds: dict[str, OneMind] = {}

    def __enter__(self) -> Minds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mind in self.minds.values():
            self.stop(mind)
        for mind in self.minds.values():
            mind.file.unlink(missing_ok=True)

    def __getitem__(self, name: str) -> OneMind:
        return self.minds[name]

    def add(
        self, name: str, preset: str = "normal", *, work: float = 0.1, service: bool = True, config: str = ""
    ) -> OneMind:
        """A mind, not started yet. `work`: seconds per message; `config`: more lines for [minds.NAME]."""
        log_path = self.folder / f"{name}.log"
        log_path.touch()
        mind = OneMind(name, free_port(), f"token-of-{name}", log_path, preset, work, service, config)
        self.minds[name] = mind
        return mind

    def config(self, rest: str = "", **limits: int) -> str:
        """The guard's configuration with these minds; `rest` follows."""
        tables = [f"[limits]\n{''.join(f'{name} = {value}{chr(10)}' for name, value in limits.items())}"]
        tables.append(f'[events]\nlisten = "127.0.0.1:{self.events_port}"\n')
        for mind in self.minds.values():
            digest = hashlib.sha256(mind.token.encode()).hexdigest()
            unit = f'unit = "{mind.unit}"\n' if mind.service else ""
            tables.append(
                f'[minds.{mind.name}]\nurl = "http://127.0.0.1:{mind.port}"\ntoken = "sha256:{digest}"\n'
                f"{unit}{mind.config}\n"
            )
        return "\n".join([*tables, rest, ""])

    def start(self, *names: str) -> None:
        """Start these minds, or all, and wait until they answer."""
        chosen = [self.minds[name] for name in names or self.minds]
        services = [mind for mind in chosen if mind.service]
        if services:
            UNITS.mkdir(parents=True, exist_ok=True)
            ARGUMENTS.mkdir(exist_ok=True)
            for mind in services:
                (ARGUMENTS / mind.name).write_text(f'ARGS="{" ".join(self._args(mind))}"\n')
                if not mind.file.exists():
                    mind.file.write_text(UNIT)
            reload_if_needed(*(mind.file for mind in services))
            subprocess.run(["systemctl", "start", *(mind.unit for mind in services)], check=True)
        for mind in chosen:
            if not mind.service:
                mind.process = subprocess.Popen([sys.executable, "-S", str(MIND), *self._args(mind)])
        for mind in chosen:
            self.wait_up(mind)

    def wait_up(self, mind: OneMind, seconds: float = 30) -> None:
        """Wait until the mind answers."""
        end = time.monotonic() + seconds
        while not mind.up():
            assert time.monotonic() < end, f"{mind.name} does not answer"
            time.sleep(0.02)

    def stop(self, mind: OneMind) -> None:
        """Stop the mind; that it runs is not needed."""
        if mind.service and mind.file.exists():
            subprocess.run(["systemctl", "stop", mind.unit], check=True)
        elif mind.process is not None:
            mind.process.kill()
            mind.process.wait()
            mind.process = None

    def _args(self, mind: OneMind) -> list[str]:
        return [
            f"--name={mind.name}", f"--port={mind.port}", f"--preset={mind.preset}", f"--log={mind.log_path}",
            f"--daemon-port={self.events_port}", f"--token={mind.token}", f"--work={mind.work}",
        ]  # fmt: skip
