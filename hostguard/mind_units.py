"""Starts and stops the units that run minds, as these wake and sleep."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine

from hostguard import deliveries
from hostguard.manager import Manager
from hostguard.systemd import SystemdError, SystemdLost

log = logging.getLogger(__name__)

AGAIN_S = 5.0  # until systemd, which did not answer, is asked again


def start_key(mind: str) -> str:
    """The setting of a mind that is awake, and whose unit has still to be started."""
    return f"start.mind.{mind}"


class MindUnits:
    """The units of all minds; a mind without one is passed over."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._locks: dict[str, asyncio.Lock] = {}
        self._starting: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def resume(self) -> None:
        """Start what the guard before did not come to."""
        for mind in self._manager.policy.named(start_key("")):
            self._spawn(self.start(mind))

    def close(self) -> None:
        """Let go."""
        for task in self._tasks:
            task.cancel()

    async def start(self, mind: str) -> None:
        """Start the mind's unit and wait for it. If it fails that is only logged: the mind is down then."""
        unit = self._unit(mind)
        if unit is None:
            return
        self._starting.add(mind)
        try:
            async with self._lock(mind):
                await self._ask(unit, self._manager.runner.systemd.start_unit, lambda: True)
        finally:
            self._starting.discard(mind)
        key = start_key(mind)
        self._manager.ledger.write(lambda db: deliveries.set_setting(db, key, None), durable=False)
        self._manager.residents.up(mind)

    def stop(self, mind: str) -> None:
        """Stop the unit of a mind that sleeps, once it has no turn."""
        unit = self._unit(mind)
        if unit is not None and self._may_stop(mind):
            self._spawn(self._stop(mind, unit))

    async def _stop(self, mind: str, unit: str) -> None:
        async with self._lock(mind):
            await self._ask(unit, self._manager.runner.systemd.stop_unit, lambda: self._may_stop(mind))

    def _may_stop(self, mind: str) -> bool:
        manager = self._manager
        return manager.policy.asleep(mind) and not manager.runner.live.of(mind) and mind not in self._starting

    async def _ask(
        self, unit: str, call: Callable[[str], Awaitable[None]], wanted: Callable[[], bool]
    ) -> None:
        while wanted():
            try:
                await call(unit)
                return
            except SystemdError as error:
                log.error("%s: %s", unit, error)
                return
            except SystemdLost as error:
                log.warning("%s: %s; trying again", unit, error)
                await asyncio.sleep(AGAIN_S)

    def _unit(self, mind: str) -> str | None:
        config = self._manager.policy.config.minds.get(mind)
        return config.unit if config is not None else None

    def _lock(self, mind: str) -> asyncio.Lock:
        return self._locks.setdefault(mind, asyncio.Lock())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
