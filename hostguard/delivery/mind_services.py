"""Starts and stops the units that run minds, as these wake and sleep."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from urllib.parse import urlsplit

from hostguard.gate.dispatcher import Dispatcher
from hostguard.store.settings import START
from hostguard.systemd.dbus import SystemdError, SystemdLost

log = logging.getLogger(__name__)

AGAIN_S = 5.0  # until systemd, which did not answer, is asked again
# A service is often started before it listens; a POST that is refused would wait for 5 s.
LISTEN_S = 10.0
LOOK_S = 0.05


class MindUnits:
    """The units of all minds; a mind without one is passed over."""

    def __init__(self, manager: Dispatcher) -> None:
        self._manager = manager
        self._locks: dict[str, asyncio.Lock] = {}
        self._starting: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def resume(self) -> None:
        """Start what the guard before did not come to."""
        for mind in self._manager.settings.all(START):
            self._spawn(self.start(mind))

    def close(self) -> None:
        """Let go."""
        for task in self._tasks:
            task.cancel()

    async def start(self, mind: str) -> None:
        """Start the mind's unit and wait until it takes messages.

        One that does not is only logged: then the mind is down.
        """
        unit = self._unit(mind)
        if unit is None:
            return
        self._starting.add(mind)
        try:
            async with self._lock(mind):
                if await self._ask(unit, self._manager.runner.systemd.start_unit, lambda: True):
                    await self._listening(mind, unit)
        finally:
            self._starting.discard(mind)
        self._manager.settings.keep(START.to(mind, None), durable=False)
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

    async def _listening(self, mind: str, unit: str) -> None:
        url = urlsplit(self._manager.policy.config.minds[mind].url or "")
        if url.hostname is None:
            return
        try:
            async with asyncio.timeout(LISTEN_S):
                while True:
                    with suppress(OSError):
                        _, writer = await asyncio.open_connection(url.hostname, url.port)
                        writer.close()
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            log.warning("%s: takes no connections %.0f s after its start", unit, LISTEN_S)

    async def _ask(
        self, unit: str, call: Callable[[str], Awaitable[None]], wanted: Callable[[], bool]
    ) -> bool:
        """True once systemd has done it."""
        while wanted():
            try:
                await call(unit)
                return True
            except SystemdError as error:
                log.error("%s: %s", unit, error)
                return False
            except SystemdLost as error:
                log.warning("%s: %s; trying again", unit, error)
                await asyncio.sleep(AGAIN_S)
        return False

    def _unit(self, mind: str) -> str | None:
        config = self._manager.policy.config.minds.get(mind)
        return config.unit if config is not None else None

    def _lock(self, mind: str) -> asyncio.Lock:
        return self._locks.setdefault(mind, asyncio.Lock())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
