"""on_stall = "freeze": freezes the youngest turns while the disk is stalled, so that fewer compete for it.

A frozen process holds no kernel lock: the cgroup freezer (admin-guide/cgroup-v2.rst) stops it when it returns
to user mode, so one that waits for the disk is frozen only after the disk has answered. Others may wait for a
frozen turn, hence the bound.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from hostguard.core import paths
from hostguard.core.settings import Level
from hostguard.core.signals import Signal, TurnThawed
from hostguard.core.tasks import Tasks
from hostguard.linux import files
from hostguard.pressure.rule import State
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import Bus, SystemdError, SystemdLost
from hostguard.telemetry.events import Event, Events
from hostguard.turns.live import Live, Phase

log = logging.getLogger(__name__)

AGAIN_S = 0.5  # until a failed thaw is tried again, for as long as the turn lives
CLOSE_S = 5.0  # for thaws when the guard stops; the next guard does the rest
GONE = ("NoSuchUnit", "UnitInactive")  # ends of D-Bus error names: there is nothing to thaw


def plan(
    live: Sequence[str], spared: Collection[str], frozen: Collection[str], level: Level, admit: int | None
) -> tuple[list[str], list[str]]:
    """The units to freeze now, youngest first, and those to thaw, oldest first. Pure.

    `live` are the units of the turns, oldest first; `spared` must not be frozen; `frozen` are already. While
    the disk is stalled all but the `admit` oldest are frozen. While it is strained they stay frozen, so
    that the backlog of writes comes first; once it is calm each call thaws one.
    """
    if level is Level.CALM:
        return [], [unit for unit in live if unit in frozen][:1]
    beyond = live[admit:] if level is Level.STALLED and admit is not None else []
    return [unit for unit in reversed(beyond) if unit not in frozen and unit not in spared], []


async def thaw_left() -> None:
    """Thaw what an earlier guard froze, before this one may fail to start; `Freezer.open` tries again."""
    units = files.recall(paths.FROZEN, files.texts) or []

    async def thaw() -> None:
        for unit in units:
            with suppress(SystemdError):  # it is gone
                await bus.call("ThawUnit", "s", [unit])

    bus = Bus(thaw, lambda: None, lambda *_: None)
    if units:
        with suppress(SystemdLost):
            await bus.start()
        bus.close()


class Freezer:
    """Freezes and thaws scopes over D-Bus."""

    def __init__(self, live: Live, systemd: Systemd, events: Events, thawed: Signal[TurnThawed]) -> None:
        self._live = live
        self._systemd = systemd
        self._events = events
        self._turn_thawed = thawed
        self.frozen: dict[str, float] = {}  # unit -> time.monotonic() of the freeze, youngest turn first
        self._thawed: dict[str, float] = {}  # of the thaw: spared for as long as it may be frozen
        self._thawing: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks()

    def open(self) -> None:
        """Thaw what an earlier guard froze. Call it once systemd is connected."""
        for unit in files.recall(paths.FROZEN, files.texts) or []:
            self.frozen[unit] = time.monotonic()
            self._thaw(unit)

    async def close(self) -> None:
        """Thaw all turns, and wait for it at most CLOSE_S."""
        self.thaw_all()
        if self._thawing:
            await asyncio.wait(self._thawing.values(), timeout=CLOSE_S)

    def thaw_all(self) -> None:
        """Thaw all turns."""
        for unit in reversed(list(self.frozen)):
            self._thaw(unit)

    def follow(self, state: State, longest: float) -> None:
        """Freeze and thaw as the state requires, for at most `longest` seconds. Call it at each tick."""
        now, live = time.monotonic(), self._live
        self._thawed = {unit: at for unit, at in self._thawed.items() if now - at < longest}
        self._forget([unit for unit in self.frozen if unit not in live.turns and unit not in self._thawing])
        # Foreign scopes are not ours to freeze; turns that start or end must proceed.
        busy = {turn.live.unit for turn in live if turn.phase not in (Phase.RUNNING, Phase.LINGERING)}
        spared = busy | self._thawed.keys()
        freeze, thaw = plan(list(live.turns), spared, self.frozen, state.level, state.admit)
        for unit in freeze:
            self._freeze(unit, state.evidence, now)
        if freeze:
            asyncio.get_running_loop().call_later(longest, self._thaw_since, now)
        for unit in thaw:
            self._thaw(unit)

    def _thaw_since(self, at: float) -> None:
        """Thaw what was frozen at that time, oldest first, even if the disk is still stalled."""
        for unit in reversed([unit for unit, since in self.frozen.items() if since == at]):
            self._thaw(unit)

    def _freeze(self, unit: str, evidence: str, now: float) -> None:
        try:
            files.note(paths.FROZEN, [*self.frozen, unit])
        except OSError as error:
            log.warning("%s is not frozen, as undoing it could not be guaranteed: %s", unit, error)
            return
        self.frozen[unit] = now  # the same for all of a tick: they are thawed together, oldest first
        self._emit(Event.FROZEN, unit, f"{unit} is frozen: {evidence}")
        self._tasks.start(self._ask(unit))

    async def _ask(self, unit: str) -> None:
        try:
            await self._systemd.freeze(unit)
        except SystemdLost as error:  # no answer as long as one of its processes waits for the disk
            log.debug("%s: %s", unit, error)
        except SystemdError as error:
            log.warning("%s is not frozen: %s", unit, error)
            self._thawed[unit] = time.monotonic()  # not again at each tick
            self._forget([unit])

    def _thaw(self, unit: str) -> None:
        if unit not in self._thawing:
            self._thawing[unit] = self._tasks.start(self._thaw_surely(unit))

    async def _thaw_surely(self, unit: str) -> None:
        logged = False
        while True:
            try:
                await self._systemd.thaw(unit)
                break
            except (SystemdError, SystemdLost) as error:
                if isinstance(error, SystemdError) and error.name.endswith(GONE):
                    break
                if not logged:
                    log.warning("%s is not thawed yet: %s", unit, error)
                logged = True
            await asyncio.sleep(AGAIN_S)
        del self._thawing[unit]
        seconds = time.monotonic() - self.frozen.get(unit, time.monotonic())
        self._forget([unit])
        self._thawed[unit] = time.monotonic()
        if unit in self._live.turns:
            self._turn_thawed.send(TurnThawed(unit, seconds))
            text, frozen_ms = f"{unit} resumed after {seconds:.1f} s", int(seconds * 1000)
            self._emit(Event.THAWED, unit, text, frozen_ms=frozen_ms)

    def _forget(self, units: Collection[str]) -> None:
        for unit in units:
            self.frozen.pop(unit, None)
        if units:
            try:
                files.note(paths.FROZEN, list(self.frozen))
            except OSError as error:  # the next guard thaws what is not frozen, which is harmless
                log.debug("%s: %s", paths.FROZEN, error)

    def _emit(self, event: Event, unit: str, text: str, **more: int) -> None:
        turn = self._live.turns.get(unit)
        mind, id_ = (turn.live.mind, turn.live.id) if turn is not None else (None, None)
        self._events.emit(event, text, mind=mind, turn=id_, unit=unit, **more)
