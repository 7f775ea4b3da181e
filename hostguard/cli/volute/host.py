"""This host, as `hostguard volute` reads and changes it: systemd, nft, the files, and the guard."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hostguard.cli import client
from hostguard.cli.errors import CliError, NotRunning
from hostguard.cli.volute import find
from hostguard.cli.volute.state import Connections, Mind, Seen
from hostguard.cli.volute.texts import FRONT_PORT, LOADER, SOCKET, STRAIGHT, TABLE, drop_in, redirects
from hostguard.config import dropins
from hostguard.config import load as config
from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.core.model import Volute

GUARD = "hostguard.service"
UNITS = Path("/etc/systemd/system")
RULES = Path("/etc/hostguard/volute.nft")  # units/hostguard-volute.service loads it
SECTION = dropins.place("volute")
NFT = "/usr/sbin/nft"
NFT_MISSING = "nft is missing: apt-get install nftables"


def need_root(verb: str) -> None:
    """Raises CliError unless this process may change the host."""
    if paths.USER:
        raise CliError("only the guard of the whole host can stand in front of Volute: leave out --user")
    if os.geteuid() != 0:
        raise CliError(f"this needs root: sudo hostguard volute {verb}")


def run(argv: Sequence[str], text: str | None = None) -> str:
    """The output of a command. Raises CliError with what it said."""
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CliError(NFT_MISSING if argv[0] == NFT else f"there is no {argv[0]}") from None
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise CliError(f"this failed: {' '.join(argv)}\n{said}")
    return done.stdout


def service() -> find.Service | None:
    """The service that runs Volute."""
    names = ["systemctl", "show", f"--property={','.join(find.SHOWN)}", find.UNIT, "*.service"]
    found = find.chosen(find.services(run(names)))
    return found and find.as_it_runs(found)


def drop_in_file(unit: str) -> Path:
    """Ours for a unit. The package's scripts know the name."""
    return UNITS / f"{unit}.d/50-hostguard-volute.conf"


def configured() -> Volute | None:
    """The [volute] of the configuration. Raises CliError."""
    try:
        return config.load(at_boot=True).volute
    except ConfigError as error:
        raise CliError(f"fix the configuration first:\n{error}") from None


def need_nft(rules: str) -> None:
    """Raises CliError unless nft is there, and would load these rules."""
    if not os.access(NFT, os.X_OK):
        raise CliError(NFT_MISSING)
    run([NFT, "--check", "--file", "-"], rules)


def redirected() -> tuple[bool, bool]:
    """Whether the table redirects to the guard, and whether it drops what is not local. Raises CliError."""
    if not os.access(NFT, os.X_OK):
        return False, False
    return redirects(run([NFT, "--json", "list", "ruleset"]))


def active(unit: str) -> bool:
    """True if the unit is."""
    return subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0


def our_drop_ins() -> list[Path]:
    """Those that `guard` wrote, whatever the unit is called."""
    return sorted(UNITS.glob("*.service.d/50-hostguard-volute.conf"))


def go_straight() -> None:
    """Redirect no new connection, now and at the next boot. Open ones go on. Raises CliError."""
    for file in our_drop_ins():
        write(file, drop_in(redirected=False))
    run(["systemctl", "disable", "--now", LOADER])
    if redirected()[0]:  # loaded by hand
        run([NFT, STRAIGHT])


def remove() -> list[str]:
    """Remove all that `guard` wrote, and restart the guard without its sockets. Raises CliError."""
    if os.access(NFT, os.X_OK):
        run([NFT, f"add table {TABLE}; delete table {TABLE}"])
    removed = [file for file in (SECTION, RULES, *our_drop_ins()) if file.exists()]
    for file in removed:
        file.unlink()
        if file.parent.parent == UNITS:
            with suppress(OSError):
                file.parent.rmdir()
    run(["systemctl", "disable", "--now", SOCKET])
    run(["systemctl", "daemon-reload"])
    if removed:
        run(["systemctl", "try-restart", GUARD])
    return [*map(str, removed)]


def write(file: Path, text: str) -> None:
    """Write one of our files, readable by all."""
    from hostguard.linux.files import written_beside

    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with written_beside(file, text, 0o644, durable=True) as new:
        new.replace(file)


def configure(text: str) -> None:
    """Write the guard's section. Raises CliError."""
    try:
        dropins.write(SECTION, text, replace=True)
    except ConfigError as error:
        raise CliError(f"nothing was written:\n{error}") from None


def guard_status() -> Any:
    """GET /v1/status; None if the guard does not run. Raises CliError."""
    try:
        return client.call("GET", "/v1/status")
    except NotRunning:
        return None


def minds(status: Any, volute: Volute) -> tuple[Mind, ...]:
    """Volute's minds, as the guard knows them."""
    first, last = volute.ports
    found = []
    for mind in status["minds"]:
        port = urlsplit(mind["url"] or "").port or 0
        if first <= port <= last and mind["unit"] is None:
            hold = mind["hold"]
            found.append(
                Mind(mind["name"], port, mind["queued"], mind["live"], hold["reason"] if hold else None)
            )
    return tuple(found)


def connections(ports: tuple[int, int], daemon: int | None, guard: int | None) -> Connections:
    """The connections of this host that matter. `guard`: its PID. Only root sees whose they are."""
    import psutil

    through = to_minds = streams = 0
    for one in psutil.net_connections("tcp"):
        here, there = (getattr(end, "port", 0) for end in (one.laddr, one.raddr))
        if not there or one.status == psutil.CONN_TIME_WAIT:
            continue
        through += here == FRONT_PORT
        to_minds += ports[0] <= there <= ports[1] and one.pid != guard
        streams += there == daemon and guard is not None and one.pid == guard
    return Connections(through, to_minds, streams)


def fault_of(status: Any) -> str | None:
    """Why the guard does not serve what is redirected to it."""
    if status is None:
        return "it does not run"
    return next((str(one["text"]) for one in status["problems"] if one["code"] == "volute_front"), None)


def seen() -> Seen:
    """All that `status` needs to know. Raises CliError."""
    volute, unit = configured(), service()
    name = unit.name if unit else None
    if volute is None:
        return Seen(None, name, None if unit else find.local_owner())
    status, root = guard_status(), os.geteuid() == 0
    daemon = None
    with suppress(CliError):
        daemon = find.registry(volute.home).daemon
    redirecting, dropping = redirected() if root else (None, None)
    return Seen(
        volute, name,
        active=unit is not None and unit.active,
        delegate=unit is not None and unit.delegate,
        sockets=active(SOCKET),
        loader=active(LOADER),
        redirects=redirecting,
        drops=dropping,
        daemon=daemon,
        guard=status is not None,
        fault=fault_of(status) if status is not None else None,
        minds=minds(status, volute) if status is not None else (),
        connections=connections(volute.ports, daemon, status["pid"]) if root and status is not None else None,
    )  # fmt: skip
