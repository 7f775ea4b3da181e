"""hostguard without its daemon: the live scopes from systemd, and the gate under a lock file.

Calls may block here, as nothing else runs at the same time.

The daemon's database is not read: pauses, changed limits and waiting rows have no effect. The first waiting
`hostguard run` that sees a free slot takes it, so there is no order among them. Since the session of a live
scope is unknown, a mind runs one turn at a time, whatever its cap.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from hostguard.cli import client
from hostguard.cli.errors import HELD, UNKNOWN, CliError, NotRunning, OnStandby
from hostguard.core import paths
from hostguard.core.admission import decide
from hostguard.core.clock import Now, now_ms
from hostguard.core.model import Config, Fold, Hold, HostView, LiveTurn, Mind, MindView, Row, Start
from hostguard.core.units import SLICE, parse_turn_unit, scope_properties, slice_mind, turn_unit
from hostguard.systemd.dbus_blocking import Bus
from hostguard.telemetry.headlines import hold_text

SWEEP_S = 2.0  # checks again this often, in case a signal is missed
LOCK_S = 5.0  # others hold the lock for milliseconds, a starting daemon for about a second
START_S = 60.0  # for the job of a scope, which only waits for a slow PID 1


@dataclass(frozen=True, slots=True)
class LiveScope:
    """A unit in our slices with processes, or starting. `turn` is None if hostguard did not start it."""

    unit: str
    mind: str
    turn: str | None
    description: str
    ran_ms: int
    pids: int
    frozen: bool


def live_scopes(bus: Bus) -> list[LiveScope]:
    """The units that hold a slot, oldest first: those with processes in our slices, and those starting."""
    from hostguard.linux import cgroup as cgroups  # imports asyncio, which `hostguard run` can do without

    pids: dict[str, int] = {}
    minds: dict[str, str] = {}
    frozen: dict[str, bool] = {}
    for raw, _pid, _command in _processes(bus):
        cgroup = raw.decode(errors="surrogateescape")
        place = _place(cgroup)
        if place is not None:
            mind, unit = place
            minds[unit] = mind
            pids[unit] = pids.get(unit, 0) + 1
            frozen[unit] = cgroups.frozen(cgroups.ROOT / cgroup.lstrip("/"))
    for unit_, *_, job_type, _job in bus.call("ListUnitsByPatterns", "asas", [], ["hostguard-turn-*.scope"]):
        # Its processes may not be in the list above yet.
        if job_type == b"start" and (turn := parse_turn_unit(unit_.decode())):
            minds.setdefault(unit_.decode(), turn[0])
    found = []
    listed = bus.call("ListUnitsByNames", "as", list(minds)) if minds else []
    for name, description, _load, _active, _sub, _following, path, *_job in listed:
        unit, text, ran_ms = name.decode(), description.decode(errors="replace"), bus.active_for(path)
        turn = parse_turn_unit(unit)
        id_, count = turn[1] if turn else None, pids.get(unit, 0)
        found.append(LiveScope(unit, minds[unit], id_, text, ran_ms, count, frozen.get(unit, False)))
    return sorted(found, key=lambda scope: -scope.ran_ms)


def _processes(bus: Bus) -> list[tuple[bytes, int, bytes]]:
    slices = bus.call("ListUnitsByPatterns", "asas", ["active"], [SLICE])
    return bus.call("GetUnitProcesses", "s", slices[0][0]) if slices else []


def _place(cgroup: str) -> tuple[str, str] | None:
    """(mind, unit) of a cgroup in one of our slices; None elsewhere and for the services of minds."""
    mind = None
    for part in cgroup.split("/"):
        if part.endswith(".slice"):
            inner = slice_mind(part)
            mind = inner if inner is not None else mind
        elif mind is not None and part.endswith((".scope", ".service")):
            return None if part.startswith("hostguard-mind@") else (mind, part)
    return None


def own_turn() -> str | None:
    """The scope of the turn that contains this process, or None."""
    parts = Path("/proc/self/cgroup").read_text(errors="surrogateescape").replace("\n", "/").split("/")
    return next((part for part in parts if parse_turn_unit(part)), None)


def enter_scope(
    mind: str, session: str, description: str, deadline: float | None, on_held: Callable[[str, str], None]
) -> str | None:
    """Wait for a slot and move this process into a scope of `mind`; its unit, or None if the daemon runs.

    `deadline` is in monotonic seconds; `on_held` gets the reason and the blocker of each hold. Needs root.
    Raises CliError, with HELD after the deadline, ConfigError and SystemdFailed.
    """
    if os.geteuid() != 0 and not paths.USER:
        raise NotRunning(
            "hostguard is not running: systemctl start hostguard (without it, only root can run turns)"
        )
    config, known, device = _configured(mind)
    with Bus() as bus:
        bus.watch()
        while True:
            with _gate_lock() as locked:
                if not locked:
                    return None
                verdict = _decide(config, known, session, live_scopes(bus))
                if isinstance(verdict, Start):
                    return _start(bus, known, description, device)
            left = SWEEP_S if deadline is None else deadline - monotonic()
            if left <= 0:
                hold = {"reason": verdict.reason, "blocker": verdict.blocker}
                raise CliError(f"held for longer than --max-wait: {hold_text(hold, mind)}", HELD)
            on_held(verdict.reason, verdict.blocker)
            bus.wait(min(SWEEP_S, left))


def _configured(name: str) -> tuple[Config, Mind, str | None]:
    from hostguard.config.load import load
    from hostguard.linux.disk import choose

    config = load(at_boot=True)  # a fault of another mind does not matter
    mind = config.minds.get(name)
    if mind is None:
        raise CliError(f"no mind {name!r}: add [minds.{name}] to {paths.CONFIG}", UNKNOWN)
    if mind.broken:
        raise CliError(f"{name} cannot work: {mind.broken}")
    return config, mind, choose(config.device_path, paths.STATE).node


def _decide(config: Config, mind: Mind, session: str, scopes: Sequence[LiveScope]) -> Start | Hold:
    cap = config.mind_concurrent_turns if mind.concurrent_turns is None else mind.concurrent_turns
    live = tuple(LiveTurn(scope.unit, scope.mind) for scope in scopes)
    host = HostView(len(live), tuple(turn.unit for turn in live), config.global_concurrent_turns)
    own = tuple(turn for turn in live if turn.mind == mind.name)
    verdict = decide(
        host, MindView(mind.name, min(cap, 1), live=own), Row(0, mind.name, session), Now(now_ms())
    )
    assert not isinstance(verdict, Fold)  # no live turn takes input here
    return verdict


def _start(bus: Bus, mind: Mind, description: str, device: str | None) -> str:
    unit = turn_unit(mind.name, f"x{secrets.token_hex(4)}")
    bus.start(
        unit, scope_properties(mind.name, f"{mind.name}: {description}", mind.limits, device, [os.getpid()])
    )
    end = monotonic() + START_S
    while own_turn() != unit:
        if bus.results.get(unit, "done") != "done":
            raise CliError(f"systemd did not start {unit}: its job ended as {bus.results[unit]!r}")
        if monotonic() > end:
            raise CliError(f"systemd did not start {unit} within {START_S:.0f} s")
        bus.wait(0.1)
    return unit


@contextmanager
def _gate_lock() -> Iterator[bool]:
    """Hold the lock of the gate: True, or False if a running daemon holds it."""
    paths.RUNTIME.mkdir(mode=0o755, parents=True, exist_ok=True)
    end = monotonic() + LOCK_S
    while True:
        fd = os.open(paths.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if _locked(fd):
                yield True
                return
        finally:
            os.close(fd)
        if _daemon_answers():
            yield False
            return
        if monotonic() > end:
            what = f"{paths.LOCK} is held, but no daemon answers on {paths.SOCKET}"
            raise CliError(f"{what}: see systemctl status hostguard")
        sleep(0.02)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # systemd removes the runtime directory when the daemon stops: then the lock does not count.
        return os.path.samestat(os.fstat(fd), paths.LOCK.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _daemon_answers() -> bool:
    try:
        client.call("GET", "/v1/status", read_s=1.0)
    except OnStandby:
        return True  # and refuses what it is asked, with the reason
    except CliError:
        return False
    return True
