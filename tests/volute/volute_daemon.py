"""A real Volute as volute.service, as `volute setup` installs it on a system, with real minds."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fakemodel import FakeModel, line
from guard import run, systemctl, wait_for
from guarded import LONG_S
from ran import Ran
from real_minds import VOLUTE, lay_out, of_model

HOME = Path("/var/lib/volute")
MINDS = Path("/minds")
UNIT = "volute.service"
FILE = Path("/etc/systemd/system", UNIT)
DATABASE = HOME / "system/volute.db"
PORT = 1618
FIRST_PORT = 4100  # of the minds
PATHS = f"{VOLUTE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class DaemonMind:
    """A mind that Volute's daemon runs."""

    name: str
    template: str
    port: int

    @property
    def folder(self) -> Path:
        return MINDS / self.name

    def up(self) -> bool:
        """Whether its server answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10):
                return True
        except OSError:
            return False


class VoluteDaemon:
    """A context manager: Volute with minds (name=template), all up. `isolated`, the default: each is a user of its own.

    `ran` and `model` say what the minds do; `begin` empties them. Nothing of Volute is changed, but SIGUSR2 stands
    for the end of a minute; see preload.mjs.
    """

    def __init__(self, isolated: bool = True, **templates: str) -> None:
        self.isolated = isolated
        self.model, self.ran = FakeModel(), Ran()
        self.minds = {
            name: DaemonMind(name, template, FIRST_PORT + index)
            for index, (name, template) in enumerate(templates.items())
        }

    def __enter__(self) -> VoluteDaemon:
        self.model.__enter__()
        (HOME / "system").mkdir(parents=True)
        MINDS.mkdir()
        setup = {"type": "system", "mindsDir": str(MINDS), "service": True}
        setup["isolation"] = "user" if self.isolated else "none"
        config = {
            "setupCompleted": True,
            "setup": setup,
            "ai": {"providers": {"anthropic": {"apiKey": "none"}}},
        }
        (HOME / "system/config.json").write_text(json.dumps(config))
        FILE.write_text(self._unit())
        systemctl("daemon-reload")
        systemctl("start", UNIT)
        wait_for(self.up, LONG_S)
        for mind in self.minds.values():
            self._register(mind)
        for name in self.minds:
            self._start(name)
        self.wait_up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        systemctl("stop", UNIT)
        FILE.unlink()
        systemctl("daemon-reload")
        shutil.rmtree(HOME)
        shutil.rmtree(MINDS)
        self.model.__exit__(kind, error, trace)

    def begin(self) -> None:
        """A test begins: `ran` and `model` are empty."""
        self.model.calls.clear()
        self.ran = Ran()

    # -- the daemon

    def up(self) -> bool:
        """Whether the daemon answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/health", timeout=10):
                return (HOME / "system/daemon.json").exists()
        except OSError:
            return False

    def wait_up(self, *names: str) -> None:
        """Wait until the daemon and these minds, or all, answer."""
        wait_for(self.up, LONG_S)
        for name in names or self.minds:
            wait_for(self.minds[name].up, LONG_S)

    @property
    def pid(self) -> int:
        """The daemon's main process."""
        return int(run("systemctl", "show", "--value", "--property=MainPID", UNIT).stdout)

    def token(self) -> str:
        """The daemon's own token, which may do anything; new at each start."""
        token: str = json.loads((HOME / "system/daemon.json").read_text())["token"]
        return token

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Ask the daemon's API, /api/v1/PATH; what it answers. Raises urllib.error.HTTPError."""
        headers = {"Authorization": f"Bearer {self.token()}", "Content-Type": "application/json"}
        url, sent = f"http://127.0.0.1:{PORT}/api/v1/{path}", json.dumps(body).encode()
        request = urllib.request.Request(url, None if body is None else sent, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def cli(self, *args: str) -> str:
        """`volute ARGS` as the daemon's admin; what it prints."""
        environment = {
            **os.environ, "PATH": PATHS, "VOLUTE_HOME": str(HOME), "VOLUTE_DAEMON_TOKEN": self.token(),
        }  # fmt: skip
        command = [f"{VOLUTE}/bin/volute", *args]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done
        return done.stdout

    def history(self, mind: str, *types: str) -> list[dict[str, Any]]:
        """The daemon's record of a mind's events, of these types or all, in order."""
        with closing(sqlite3.connect(DATABASE, timeout=10)) as db:
            db.row_factory = sqlite3.Row
            rows = db.execute("SELECT * FROM mind_history WHERE mind = ? ORDER BY id", (mind,)).fetchall()
        return [{**row} for row in rows if not types or row["type"] in types]

    # -- messages

    def chat(self, to: str, text: str = "hello", *, work: float = 0, bash: str = "") -> None:
        """`volute chat send TO`, say @ada or #system, with a line that steers the model."""
        self.cli("chat", "send", to, f"{text}\n{line(work=work, bash=bash)}")

    def schedule(self, mind: str, name: str, *, work: float = 0, bash: str = "") -> None:
        """A schedule of the mind that is due: it fires when `minute` says so, and goes."""
        message = f"work\n{line(work=work, bash=bash)}"
        body = {"id": name, "fireAt": "2026-01-01T00:00:00Z", "message": message}
        self.api("POST", f"minds/{mind}/schedules", body)

    def minute(self) -> None:
        """Have the daemon do what it does each minute: fire all schedules that are due."""
        systemctl("kill", "--kill-whom=main", "--signal=USR2", UNIT)

    # -- laying out

    def _start(self, name: str) -> None:
        """Volute gives a mind 30 s to start, which is not enough on a very busy machine: then once more."""
        try:
            self.api("POST", f"minds/{name}/start")
        except urllib.error.HTTPError as error:
            assert error.code == 500
            self.api("POST", f"minds/{name}/start")

    def _register(self, mind: DaemonMind) -> None:
        lay_out(mind.folder, mind.name, mind.template)
        if self.isolated:
            user = f"mind-{mind.name}"
            run("groupadd", "--force", "volute")
            run(
                "useradd", "-r", "-M", "-G", "volute", "-s", "/usr/sbin/nologin", "-d", str(mind.folder), user
            )
            run("chown", "-R", f"{user}:{user}", str(mind.folder))
        with closing(sqlite3.connect(DATABASE, timeout=10)) as db, db:
            db.execute(
                "INSERT INTO minds (name, port, stage, template) VALUES (?, ?, 'sprouted', ?)",
                (mind.name, mind.port, mind.template),
            )

    def _unit(self) -> str:
        environment = {"PATH": PATHS, "VOLUTE_HOME": HOME, "VOLUTE_MINDS_DIR": MINDS, **of_model(self.model)}
        if self.isolated:
            environment["VOLUTE_ISOLATION"] = "user"
        return "\n".join(
            [
                "[Unit]", "Description=Volute Mind Manager", "After=network.target", "",
                "[Service]", "Type=exec", f"ExecStart={VOLUTE}/bin/volute up --foreground",
                *(f'Environment="{key}={value}"' for key, value in environment.items()),
                "Restart=on-failure", "RestartSec=5",
                "ProtectSystem=true", f"ReadWritePaths={HOME} {MINDS}", "PrivateTmp=yes",
                f"ProtectHome={'yes' if self.isolated else 'no'}",  # root's claude needs its home
                "RestrictSUIDSGID=yes", "", "[Install]", "WantedBy=multi-user.target", "",
            ]
        )  # fmt: skip
