"""A host with the guard and real Volute minds: hostguard runs each as hostguard-mind@NAME.service."""

from __future__ import annotations

import hashlib
import json
import shutil
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fakemodel import MIND, FakeModel, line
from guard import Guard, run, systemctl, wait_for
from guarded import LONG_S, GuardedHost
from minds import free_port
from posted import Event, Posted
from ran import Ran

VOLUTE = Path("/opt/volute")  # see tree
ENVIRONMENTS = Path("/etc/hostguard/minds")
PRELOAD = Path(__file__).with_name("preload.mjs")
PI_MODEL = "anthropic:claude-sonnet-4-20250514"


@dataclass(frozen=True)
class RealMind:
    """One mind, in the home of the user of the same name."""

    name: str
    template: str  # claude or pi
    port: int
    token: str
    config: str  # more lines for [minds.NAME]

    @property
    def unit(self) -> str:
        return f"hostguard-mind@{self.name}.service"

    @property
    def cgroup(self) -> str:
        """Where its processes are outside of turns."""
        return f"/hostguard.slice/hostguard-{self.name}.slice/{self.unit}"

    @property
    def folder(self) -> Path:
        return Path("/home", self.name)

    def up(self) -> bool:
        """Whether the mind's server answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def post(self, **body: Any) -> None:
        """A message past the guard, straight to the mind, as Volute's daemon would send it."""
        post_to(self.port, **body)


def post_to(port: int, **body: Any) -> None:
    """POST a message to a mind as Volute's daemon does."""
    message = json.dumps({"channel": "@volute", "sender": "volute", **body}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/message", message, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer) == {"ok": True}


class RealMinds:
    """A context manager: real minds, the model and what they post. `start` may be called again, by each test.

    Each mind is a service of its user, and stays up until the end.
    """

    def __init__(self) -> None:
        self.minds: dict[str, RealMind] = {}
        self.guard_port = free_port()
        self._own = ExitStack()
        self.model = self._own.enter_context(FakeModel())
        self.posted = self._own.enter_context(Posted(free_port(), self.guard_port))

    def __enter__(self) -> RealMinds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        systemctl("stop", *(mind.unit for mind in self.minds.values()))
        self._own.close()

    def add(self, name: str, template: str, config: str = "", **volute: str) -> RealMind:
        """A mind of a template, not started yet. `volute`: settings of its config.json, say transparencyPreset."""
        mind = RealMind(name, template, free_port(), f"token-of-{name}", config)
        lay_out(mind.folder, name, template, **volute)
        run("useradd", "--system", "--no-create-home", f"--home-dir={mind.folder}", name)
        run("chown", "-R", f"{name}:", str(mind.folder))
        self.minds[name] = mind
        return mind

    def start(self) -> None:
        """Start those that are down, and wait until all answer."""
        ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
        for mind in self.minds.values():
            file = ENVIRONMENTS / f"{mind.name}.env"
            file.write_text("".join(f"{key}={value}\n" for key, value in self._environment(mind).items()))
            file.chmod(0o600)
        systemctl("start", *(mind.unit for mind in self.minds.values()))
        for mind in self.minds.values():
            wait_for(mind.up, 30)

    def config(self, rest: str = "", **limits: int) -> str:
        """The guard's configuration with these minds; `rest` follows."""
        caps = "".join(f"{name} = {value}\n" for name, value in limits.items())
        tables = [f'[limits]\n{caps}[events]\nlisten = "127.0.0.1:{self.guard_port}"\n']
        for mind in self.minds.values():
            digest = hashlib.sha256(mind.token.encode()).hexdigest()
            tables.append(
                f'[minds.{mind.name}]\nurl = "http://127.0.0.1:{mind.port}"\nunit = "{mind.unit}"\n'
                f'token = "sha256:{digest}"\n{mind.config}\n'
            )
        return "\n".join([*tables, rest, ""])

    def _environment(self, mind: RealMind) -> dict[str, str]:
        environment = {
            "COMMAND": f"node_modules/.bin/tsx src/server.ts --port {mind.port}",
            "PATH": f"{mind.folder}/home/.local/bin:{VOLUTE}/bin:/usr/local/bin:/usr/bin:/bin",
            "VOLUTE_MIND": mind.name,
            "VOLUTE_MIND_DIR": str(mind.folder),
            "VOLUTE_MIND_PORT": str(mind.port),
            "VOLUTE_DAEMON_PORT": str(self.posted.port),
            "VOLUTE_DAEMON_TOKEN": mind.token,
        }
        return environment | of_model(self.model)


class RealHost(GuardedHost):
    """The guard with real minds, for one test: `model`, `posted` and `ran` begin empty."""

    def __init__(self, guard: Guard, minds: RealMinds) -> None:
        super().__init__(guard)
        self.minds, self.model, self.posted = minds, minds.model, minds.posted
        self.model.calls.clear()
        self.posted.clear()
        self.ran = Ran()

    def start(self, rest: str = "", **limits: int) -> None:
        """Start the guard and the minds, or reload it. `limits` and `rest`: of its configuration."""
        self.guard.start(self.minds.config(rest, **limits))
        self.minds.start()

    def end(self) -> None:
        """Wait until nothing runs."""
        wait_for(lambda: not self.turns() and not self.guard.scopes(), LONG_S)

    def say(self, to: str, text: str = "work", *, work: float = 0, bash: str = "", **fields: Any) -> int:
        """Send a message through the guard that steers the model; its row. See `fakemodel`, `Ran.command`."""
        return self.send(to, f"{text}\n{line(work=work, bash=bash)}", **fields)

    def events(self, mind: str, *types: str, session: str | None = None) -> list[Event]:
        """What the mind has posted so far, of these types or all, in order of arrival."""
        return self.posted.events(mind, *types, session=session)

    def wait_events(self, mind: str, kind: str, number: int = 1, session: str | None = None) -> None:
        """Wait until the mind has posted so many events of this type."""
        wait_for(lambda: len(self.events(mind, kind, session=session)) >= number, LONG_S)

    def wait_calls(self, number: int = 1) -> None:
        """Wait until so many model calls that have a line to obey, or follow a tool, have begun."""
        wait_for(lambda: len(self.model.calls) >= number, LONG_S)


def of_model(model: FakeModel) -> dict[str, str]:
    """The variables that lead minds of either template to the fake model, and nowhere else."""
    return {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # claude may work as root
        "NODE_OPTIONS": f"--import={PRELOAD}",
    }


def lay_out(folder: Path, name: str, template: str, **volute: str) -> None:
    """A fresh mind of a template in `folder`, as Volute's own code makes it."""
    shutil.copytree(VOLUTE / "minds" / template, folder, symlinks=True)
    (folder / ".mind").mkdir()  # else the daemon makes it as root
    package = folder / "package.json"
    package.write_text(json.dumps({**json.loads(package.read_text()), "name": name}))
    with (folder / "home/SOUL.md").open("a") as soul:
        soul.write(f"\n{MIND.format(name)}\n")
    file = folder / "home/.config/config.json"
    settings = {**json.loads(file.read_text()), **volute}
    if template == "pi":
        settings["model"] = PI_MODEL
    file.write_text(json.dumps(settings))
