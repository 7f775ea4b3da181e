"""Scopes of turns that are over, until systemd has forgotten them, too: a name is free only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from hostguard.core import units
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost

LEAVE_S = 2.0  # systemd normally forgets a scope within milliseconds
# A turn that was dismissed has the same name at its next start: systemd may not have forgotten it yet.
FORGET_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class ScopeReaper:
    """What systemd has still to forget. `has_processes` tells it of a unit of a mind."""

    def __init__(self, systemd: Systemd, has_processes: Callable[[str, str], bool]) -> None:
        self._systemd = systemd
        self._has_processes = has_processes
        self._units: set[str] = set()
        self._reaper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Let go."""
        if self._reaper is not None:
            self._reaper.cancel()

    def add(self, unit: str) -> None:
        """The scope is over for us: have systemd forget it if it is empty and systemd does not see it.

        A process that ends within some 10 ms of being moved into its scope can leave the scope active for
        ever: the kernel tells of a cgroup's end at most that often.
        """
        self._units.add(unit)
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_later(LEAVE_S, self._reap)

    def forgotten(self, unit: str) -> None:
        """systemd says that the scope is gone."""
        self._units.discard(unit)

    def _reap(self) -> None:
        self._reaper = None
        leaving, self._units = self._units, set()
        for unit in leaving:
            task = asyncio.create_task(self._stop_empty(unit))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def start_scope(self, unit: str, properties: Sequence[units.Property]) -> None:
        """Start a scope once its name is free. Raises SystemdError, SystemdLost."""
        for pause in (*FORGET_S, None):
            try:
                return await self._systemd.start_scope(unit, properties)
            except SystemdError as error:
                if pause is None or not error.name.endswith(".UnitExists"):
                    raise
            await self._stop_empty(unit)
            await asyncio.sleep(pause)

    async def _stop_empty(self, unit: str) -> None:
        parsed = units.parse_turn_unit(unit)
        if parsed is not None and not self._has_processes(unit, parsed[0]):
            with suppress(SystemdError, SystemdLost):
                await self._systemd.stop_unit(unit)
