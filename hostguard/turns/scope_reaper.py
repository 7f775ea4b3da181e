"""Scopes of turns that ended, until systemd has forgotten them: their names are free only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from hostguard.core import units
from hostguard.core.tasks import Tasks
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost

REAP_S = 2.0  # systemd normally forgets a scope within milliseconds
# A turn that was dismissed has the same name at its next start: systemd may not have forgotten it yet.
FORGET_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class ScopeReaper:
    """Makes systemd forget empty scopes. `has_processes` says whether a mind's unit has any."""

    def __init__(self, systemd: Systemd, has_processes: Callable[[str, str], bool]) -> None:
        self._systemd = systemd
        self._has_processes = has_processes
        self._units: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    def close(self) -> None:
        """Let go."""
        if self._timer is not None:
            self._timer.cancel()

    def add(self, unit: str) -> None:
        """The turn of the scope ended: stop the scope later if systemd has not noticed by then.

        A process that ends within some 10 ms of being moved into its scope can leave the scope active for
        ever: the kernel reports that a cgroup is empty at most that often.
        """
        self._units.add(unit)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REAP_S, self._reap)

    def forgotten(self, unit: str) -> None:
        """systemd says that the scope is gone."""
        self._units.discard(unit)

    def _reap(self) -> None:
        self._timer = None
        ended, self._units = self._units, set()
        for unit in ended:
            self._tasks.start(self._stop_empty(unit))

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
