"""Finds the Volute of this host: its service, its home, and the ports of its minds. The rules are pure.

Source: mimsy/volute, setup.ts and registry.ts. A system installation is the service volute.service, with
VOLUTE_HOME in its environment. A local one is a service of its user's own manager, or no service at all.
Minds get the lowest free port from VOLUTE_BASE_PORT.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import hostguard
from hostguard.cli.errors import CliError
from hostguard.cli.volute.texts import FRONT_PORT
from hostguard.core.model import Volute

UNIT = "volute.service"
USER_UNIT = Path(".config/systemd/user") / UNIT
SHOWN = ("Id", "LoadState", "ActiveState", "User", "Environment", "ExecStart", "MainPID", "Delegate")
BASE_PORT, PORTS = 4100, 100
READ_S = 30.0  # the script ends by itself before
REGISTRY = Path(hostguard.__file__).with_name("front") / "registry_rows.py"
STARTS = re.compile(r"argv\[\]=[^;]*/volute up\b")
AS_SERVICE = (
    "make it a service of the system: in /etc/systemd/system/volute.service, User={user} and"
    ' Environment=VOLUTE_HOME={home} (README, "You run Volute"), or install Volute with volute setup --system'
)


@dataclass(frozen=True, slots=True)
class Service:
    """A loaded service, as systemd shows it."""

    name: str
    active: bool
    user: str
    environment: Mapping[str, str]
    command: str
    pid: int
    delegate: bool

    @property
    def home(self) -> str:
        """The home of a Volute that this service runs. Raises CliError."""
        if home := self.environment.get("VOLUTE_HOME"):
            return home
        try:
            return str(Path(pwd.getpwnam(self.user or "root").pw_dir, ".volute"))
        except KeyError:
            raise CliError(f"{self.name}: there is no user {self.user!r}") from None


@dataclass(frozen=True, slots=True)
class Registry:
    """What Volute's home says. `minds`: their ports by name. `daemon`: its port, None if it is not known."""

    minds: Mapping[str, int]
    daemon: int | None


def services(shown: str) -> list[Service]:
    """The services in the output of `systemctl show`."""
    found = {}
    for block in shown.strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("LoadState") == "loaded":
            found[values["Id"]] = Service(
                values["Id"], values["ActiveState"] == "active", values.get("User", ""),
                _environment(values.get("Environment", "")), values.get("ExecStart", ""),
                int(values.get("MainPID", 0)), values.get("Delegate") == "yes",
            )  # fmt: skip
    return [*found.values()]


def _environment(shown: str) -> dict[str, str]:
    try:
        words = shlex.split(shown)
    except ValueError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def chosen(found: Sequence[Service]) -> Service | None:
    """The service that runs Volute; None if there is none. Raises CliError if several may."""
    ours = [one for one in found if not one.name.startswith("hostguard")]
    if named := [one for one in ours if one.name == UNIT]:
        return named[0]
    running = [one for one in ours if STARTS.search(one.command)]
    if len(running) > 1:
        names = ", ".join(one.name for one in running)
        raise CliError(
            f"several services run Volute: {names}. The guard stands in front of one: disable the others"
        )
    return running[0] if running else None


def as_it_runs(service: Service) -> Service:
    """The service with the environment of its process, which may be from a file, if there is one to read."""
    if not service.pid:
        return service
    with suppress(OSError):
        raw = Path(f"/proc/{service.pid}/environ").read_bytes().decode(errors="replace")
        given = dict(word.split("=", 1) for word in raw.split("\0") if "=" in word)
        return replace(service, environment=given)
    return service


def ports(environment: Mapping[str, str], registry: Registry) -> tuple[int, int]:
    """The first and the last port of the minds, those to come among them. Raises CliError."""
    base = environment.get("VOLUTE_BASE_PORT", "")
    first = int(base) if base.isdecimal() and 0 < int(base) < 65536 else BASE_PORT
    every = [first, min(first + PORTS - 1, 65535), *registry.minds.values()]
    low, high = min(every), max(every)
    if low <= FRONT_PORT <= high:
        raise CliError(
            f"the ports of Volute's minds, {low} to {high}, include {FRONT_PORT}, where the guard listens:"
            " set another VOLUTE_BASE_PORT in Volute's unit, and give minds above it another port"
        )
    return low, high


def local_owner() -> str | None:
    """A user with a service of Volute in the user's own manager. Nothing is opened."""
    for entry in pwd.getpwall():
        if os.path.lexists(Path(entry.pw_dir, USER_UNIT)):
            return entry.pw_name
    return None


def not_found(owner: str | None) -> CliError:
    """Why no service was found that the guard can stand in front of."""
    if owner is None:
        fix = AS_SERVICE.format(user="USER", home="/home/USER/.volute")
        return CliError(f"no service of this host runs Volute. If it was started with volute up, {fix}")
    home = Path(pwd.getpwnam(owner).pw_dir)
    return CliError(
        f"Volute runs as a service of {owner}'s own service manager ({home / USER_UNIT}), and the guard"
        " cannot stand in front of that: its processes belong to that manager, and systemd gives none back to"
        f" a unit of it after a turn. Instead, {AS_SERVICE.format(user=owner, home=home / '.volute')}"
    )


def registry(home: str) -> Registry:
    """Read Volute's registry, as the user whose it is. Raises CliError."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(REGISTRY), home],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=READ_S, cwd="/", env={}, check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise CliError(f"the registry of Volute in {home} does not answer") from None
    if isinstance(answer, str):
        hint = "start Volute once" if os.geteuid() == 0 else "or use sudo"
        raise CliError(f"cannot read the registry of Volute, {home}/system/volute.db: {answer}; {hint}")
    rows, daemon = answer
    minds = {str(name): port for name, port in rows if isinstance(port, int) and 0 < port < 65536}
    port = (daemon.get("internalPort") or daemon.get("port")) if isinstance(daemon, dict) else None
    return Registry(minds, port if isinstance(port, int) else None)


def installation(service: Service, known: Registry) -> Volute:
    """The [volute] of the configuration. Raises CliError."""
    return Volute(service.home, service.name, ports(service.environment, known))
