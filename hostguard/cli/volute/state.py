"""What `hostguard volute status` says, and what is left to do for `unguard`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hostguard.cli.volute.texts import FRONT_PORT, LOADER, SOCKET, TABLE
from hostguard.core.model import Volute
from hostguard.core.reasons import Reason

GUARD_AGAIN = "sudo hostguard volute guard"


@dataclass(frozen=True, slots=True)
class Mind:
    """A mind of Volute. `queued`: its messages that wait; `hold`: why the first of them does."""

    name: str
    port: int
    queued: int
    live: int
    hold: str | None


@dataclass(frozen=True, slots=True)
class Connections:
    """Open ones: through the guard; to minds from others than the guard; of the guard to Volute's daemon."""

    through: int = 0
    to_minds: int = 0
    streams: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found. None where only root can see it, or nothing was asked."""

    volute: Volute | None  # as configured
    unit: str | None  # the service that runs Volute on this host
    local: str | None = None  # who runs Volute as a service of their own manager
    active: bool = False
    delegate: bool = False
    sockets: bool = False
    loader: bool = False
    redirects: bool | None = None
    drops: bool | None = None
    daemon: int | None = None
    guard: bool = False
    fault: str | None = None
    minds: tuple[Mind, ...] = ()
    connections: Connections | None = None


def problems(seen: Seen) -> Iterator[tuple[str, str]]:
    """What keeps the guard from standing in front of Volute: each with what to type."""
    volute = seen.volute
    if volute is None:
        return
    if seen.unit != volute.unit:
        yield f"{volute.unit} does not run Volute on this host", GUARD_AGAIN
    elif not seen.delegate:
        yield f"{volute.unit} lacks Delegate=yes: the processes of its minds cannot be moved", GUARD_AGAIN
    if not seen.guard:
        yield "the guard does not run: messages wait", "sudo systemctl start hostguard"
    if not seen.sockets:
        yield f"{SOCKET} does not listen", GUARD_AGAIN
    if seen.redirects is False:
        yield f"the table {TABLE} redirects nothing: messages go past the gate", GUARD_AGAIN
    elif not seen.loader:
        yield f"{LOADER} is not active: the table is not loaded at the next boot", GUARD_AGAIN
    if seen.fault is not None:
        yield seen.fault, "journalctl -u hostguard"
    missing = len(seen.minds) - (seen.connections.streams if seen.connections else len(seen.minds))
    if seen.active and seen.guard and missing > 0:
        yield (
            f"the guard does not receive the events of {missing} of {len(seen.minds)} minds",
            "journalctl -u hostguard",
        )


def as_json(seen: Seen) -> dict[str, Any]:
    """For --json."""
    found = [{"text": text, "fix": fix} for text, fix in problems(seen)]
    return {
        "guarded": seen.volute is not None and not found,
        "configured": seen.volute is not None,
        "home": seen.volute.home if seen.volute else None,
        "ports": [*seen.volute.ports] if seen.volute else None,
        "unit": seen.volute.unit if seen.volute else seen.unit,
        "active": seen.active,
        "delegate": seen.delegate,
        "sockets": seen.sockets,
        "table": seen.redirects,
        "drop_remote": seen.drops,
        "daemon_port": seen.daemon,
        "guard": seen.guard,
        "streams": seen.connections.streams if seen.connections else None,
        "held": sum(mind.queued for mind in seen.minds),
        "mind_down": sum(mind.queued for mind in seen.minds if mind.hold == Reason.MIND_DOWN),
        "minds": [asdict(mind) for mind in seen.minds],
        "problems": found,
    }


def lines(seen: Seen) -> Iterator[str]:
    """For people."""
    found = [*problems(seen)]
    volute = seen.volute
    if volute is None:
        yield "not guarded"
        if seen.unit:
            yield f"Volute runs as {seen.unit}: {GUARD_AGAIN}"
        elif seen.local:
            yield f"Volute is a service of {seen.local} alone: hostguard volute guard says what to do"
        else:
            yield "no service of this host runs Volute"
        return
    yield "guarded" if not found else "guarded in part"
    root = "not known, use sudo"
    table = {True: "redirects to the guard", False: "redirects nothing", None: root}[seen.redirects]
    dropped = {True: "dropped", False: "not dropped: it can POST to minds past the gate", None: root}[
        seen.drops
    ]
    yield f"unit     {volute.unit}, {'active' if seen.active else 'not active'}"
    yield f"home     {volute.home}"
    yield f"ports    {volute.ports[0]} to {volute.ports[1]}; Volute's daemon: {seen.daemon or root}"
    yield f"sockets  {SOCKET}, {'listening' if seen.sockets else 'not listening'}"
    yield f"table    {TABLE}, {table}"
    yield f"network  {dropped}"
    streams = f"{seen.connections.streams} of {len(seen.minds)} minds" if seen.connections else root
    yield f"events   {streams if seen.guard else 'the guard does not run'}"
    for mind in seen.minds:
        held = f"{mind.queued} held ({mind.hold})" if mind.hold else f"{mind.queued} held"
        yield f"mind     {mind.name}, port {mind.port}: {held}"
    for text, fix in found:
        yield f"problem: {text}: {fix}"


def left(minds: tuple[Mind, ...], connections: Connections) -> Iterator[str]:
    """What still needs the guard after nothing is redirected any more."""
    held, live = sum(mind.queued for mind in minds), sum(mind.live for mind in minds)
    if held:
        yield f"{_count(held, 'message')} held: hostguard queue"
    if live:
        yield f"{_count(live, 'turn')}: hostguard turns"
    if connections.through:
        yield f"{_count(connections.through, 'connection')} through the guard: ss -tn sport = :{FRONT_PORT}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
