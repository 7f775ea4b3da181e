"""What a turn leaves outside of its scope keeps a slot of its mind, and is reported.

A turn can ask another service of the host to run something: its user's service manager, cron, at, ssh. No
event reports that, so the guard looks for processes of the mind's user that began since the turn did: at each
end of a turn, every TICK_S while turns live, and for AFTER_S afterwards. What it finds gets a scope in the
mind's slice, in which a stub waits for the end of those processes. So the slot is known to all who count
scopes, it outlives the guard, and whoever stops that scope frees the slot.

Not looked at: turns of `hostguard run`, whose user works outside as it likes; minds of root; and minds under
a user's own service manager, where that is everybody's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hostguard.core import outcome, paths, units
from hostguard.core.clock import Clock
from hostguard.core.model import Kind, Limits, LiveTurn, Mind
from hostguard.core.ports import Configured
from hostguard.core.tasks import Tasks
from hostguard.core.text import safe
from hostguard.linux.process import Process, process
from hostguard.linux.sockets import is_own
from hostguard.linux.strays import Stray, strays
from hostguard.systemd.client import Login, Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.systemd.fork_client import HELD_MAX, Stub
from hostguard.telemetry.events import Event, Events
from hostguard.turns.live import Live, Phase, Turn, TurnEnded
from hostguard.turns.scopes import Scopes

log = logging.getLogger(__name__)

TICK_S = 15.0
AFTER_S = 90.0  # cron starts what is in a new crontab within a minute
FOLLOW_S = 1.0  # between the end of a slot and the next that what follows gets
SHOWN = 3  # processes that a text names
GENERATIONS = 64  # between a process that waits for a message and what it works for
AT_REQUEST = frozenset(("cron", "crond", "atd"))  # PAM services whose sessions are nobody's


class Waiters(Protocol):
    """Knows the processes that wait for messages and turns."""

    def pids(self) -> list[int]:
        """These processes."""


class Homes(Protocol):
    """Knows where the servers of resident minds run."""

    def homes(self) -> Collection[Path]:
        """Their cgroups."""


@dataclass(eq=False)
class Outside:
    """Looks for processes that turns left outside, and keeps slots for them."""

    _live: Live
    _scopes: Scopes
    _systemd: Systemd
    _policy: Configured
    _homes: Homes
    _waiters: Waiters
    _events: Events
    _clock: Clock
    _held: dict[str, _Held] = field(default_factory=dict, init=False)  # by unit
    _ended: dict[str, tuple[int, float]] = field(
        default_factory=dict, init=False
    )  # by mind: since, until when
    _told: set[Process] = field(default_factory=set, init=False)
    _known: set[Process] = field(default_factory=set, init=False)  # they have, or had, their slot
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _tasks: Tasks = field(default_factory=Tasks, init=False)

    def close(self) -> None:
        """Stop looking. What is held stays held."""
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()

    def turn_ended(self, ended: TurnEnded) -> None:
        """Keep a slot for what the turn left outside. Call it before the slot is handed on."""
        turn = ended.turn
        held = self._held.pop(turn.live.unit, None)
        mind = self._mind(turn)
        kept = units.outside_id(turn.live.unit) is not None
        adopted = kept and held is None
        if mind is None or not (turn.released or turn.resumed or adopted):
            return
        if not self._clock.now().of_this_boot(turn.started):  # with the host all that it left has ended, too
            return
        since = self._began(turn) if held is None else held.since
        found = self._find(mind, since)
        if kept and (turn.stopped or turn.asked):  # somebody lets them be
            self._known |= {stray.process for stray in found}
        elif found:
            self._hold(mind, since, found, follows=kept)
        self._ended[mind.name] = (since, time.monotonic() + AFTER_S)
        self.look_later()

    def look_later(self, fact: object = None) -> None:
        """Look again in a while, if turns live or have ended a moment ago."""
        if self._timer is None and not paths.USER and (len(self._live) or self._ended):
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._look)

    # -- looking

    def _mind(self, turn: Turn) -> Mind | None:
        """The mind whose user may have left something outside in this turn."""
        message = turn.delivery is not None and turn.delivery.kind is not Kind.RUN
        if paths.USER or not (message or units.outside_id(turn.live.unit)):
            return None
        mind = self._policy.config.minds.get(turn.live.mind)
        return mind if mind is not None and mind.uid else None

    def _began(self, turn: Turn) -> int:
        now = self._clock.now()
        return now.ticks - now.since(turn.started)

    def _find(self, mind: Mind, since: int) -> list[Stray]:
        found = strays(mind.uid, since, self._scopes.root, self._homes.homes(), self._known)
        # Who waits for a turn, and what it works for, must not keep the slot of that turn.
        waiting = ancestry(self._waiters.pids()) if found else frozenset()
        return [stray for stray in found if stray.process.pid not in waiting]

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        self._ended = {name: at for name, at in self._ended.items() if at[1] > now}
        since = {name: at for name, (at, _) in self._ended.items()}
        live = set()
        for turn in self._live:
            if turn.phase is not Phase.STARTING and (mind := self._mind(turn)) is not None:
                held = self._held.get(turn.live.unit)
                began = self._began(turn) if held is None else held.since
                since[mind.name] = min(began, since.get(mind.name, began))
                if turn.delivery is not None:
                    live.add(mind.name)
        for name, at in since.items():
            mind = self._policy.config.minds.get(name)
            if mind is not None and (found := self._find(mind, at)):
                if name in live:  # its slot is taken; what is still there at its end keeps it
                    self._tasks.start(self._tell(mind, found))
                else:
                    self._hold(mind, at, found)
        self._let_waiting_go()
        for noted in (self._known, self._told):
            noted.difference_update([one for one in noted if process(one.pid) != one])
        self.look_later()

    def _let_waiting_go(self) -> None:
        """Free the slots of processes that meanwhile wait for a slot themselves."""
        waiting = ancestry(self._waiters.pids()) if self._held else frozenset()
        for unit, held in self._held.items():
            if any(one.pid in waiting for one in held.processes):
                self._tasks.start(self._let_go(unit))

    async def _let_go(self, unit: str) -> None:
        turn = self._live.turns.get(unit)
        with suppress(SystemdError, SystemdLost):
            if turn is not None:
                await self._scopes.stop(turn)

    # -- keeping a slot

    def _hold(self, mind: Mind, since: int, found: Sequence[Stray], follows: bool = False) -> None:
        unit, now = units.outside_unit(mind.name, secrets.token_hex(4)), self._clock.now()
        turn = Turn(LiveTurn(unit, mind.name, id=units.outside_id(unit)), now.date, Phase.STARTING)
        turn.started = now.stamp
        self._held[unit] = _Held(since)
        self._live.add(turn)  # at once: nobody else gets the slot
        self._tasks.start(self._keep(turn, mind, found, follows))

    async def _keep(self, turn: Turn, mind: Mind, found: Sequence[Stray], follows: bool) -> None:
        if follows:  # processes that start one another and exit must not keep the guard and systemd busy
            await asyncio.sleep(FOLLOW_S)
        left = await self._of_turns(mind, found)
        if not left:
            self._scopes.give_up(turn, outcome.Ending("dismissed", "it is no turn's"))
            return
        held = self._held[turn.live.unit]
        held.processes = [stray.process for stray in left]
        self._known |= set(held.processes)
        turn.description = described(left)
        if not follows:
            self._report(mind, left, turn.live.id)
        if await self._scopes.start_stub(turn, Limits(), lambda stub, _: _hold_for(stub, held.processes)):
            turn.phase = Phase.OUTSIDE

    async def _tell(self, mind: Mind, found: Sequence[Stray]) -> None:
        if left := await self._of_turns(mind, found):
            self._report(mind, left, None)

    async def _of_turns(self, mind: Mind, found: Sequence[Stray]) -> list[Stray]:
        logins: list[Login] = []
        if any(stray.own for stray in found):
            with suppress(SystemdError, SystemdLost):
                logins = await self._systemd.logins(mind.uid)
        persons = [login for login in logins if of_person(login)]
        return [stray for stray in found if not belongs(stray, persons)]

    def _report(self, mind: Mind, left: Sequence[Stray], slot: str | None) -> None:
        new = [stray for stray in left if stray.process not in self._told]
        self._told |= {stray.process for stray in new}
        if new:
            after = f"; they keep a slot until they end: hostguard stop {slot} frees it" if slot else ""
            text = f"{mind.name}: {described(left)}{after}"
            pids = " ".join(str(stray.process.pid) for stray in left)
            self._events.emit(Event.OUTSIDE, text, mind=mind.name, turn=slot, uid=mind.uid, pids=pids)


@dataclass(eq=False)
class _Held:
    """A slot that is kept: for processes that began since this many ms after the boot."""

    since: int
    processes: list[Process] = field(default_factory=list)


def _hold_for(stub: Stub, processes: Iterable[Process]) -> None:
    fds = []
    try:
        for one in processes:
            with suppress(ProcessLookupError):
                fds.append(os.pidfd_open(one.pid))
                if process(one.pid) != one:  # it is gone, and its number another's
                    os.close(fds.pop())
            if len(fds) == HELD_MAX:  # the others are found again at the end of these
                break
        stub.hold(fds)
    finally:
        for fd in fds:
            os.close(fd)


# -- pure, or as good as


def of_person(login: Login) -> bool:
    """True if a person opened the session: it is not that of a job, nor a login from this host to itself."""
    return login.service not in AT_REQUEST and not (
        login.remote and (login.host in ("", "localhost") or is_own(login.host))
    )


def belongs(stray: Stray, persons: Sequence[Login]) -> bool:
    """True if the process belongs to the login of one of these persons, of whose user it is."""
    if not stray.own:
        return False
    if stray.place.startswith("session-"):
        return any(login.scope == stray.place for login in persons)
    # The service manager is for all sessions at a terminal or a screen.
    return any(login.active and login.kind.startswith("user") for login in persons)


def ancestry(pids: Iterable[int]) -> frozenset[int]:
    """These processes and their ancestors."""
    found: set[int] = set()
    for pid in pids:
        for _ in range(GENERATIONS):
            if pid <= 1 or pid in found:
                break
            found.add(pid)
            known = process(pid)
            pid = known.parent if known is not None else 0
    return frozenset(found)


def described(left: Sequence[Stray]) -> str:
    """The processes in words."""
    named = ", ".join(f"{safe(one.name)} ({one.process.pid}) in {safe(one.place)}" for one in left[:SHOWN])
    more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    return f"processes outside of its turns: {named}{more}"
