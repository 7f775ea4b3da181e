"""Starts and stops the services that run minds, as the minds wake and sleep."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from hostguard.core.clock import AGAIN_S
from hostguard.core.signals import Signal, UnitStarted
from hostguard.core.tasks import Tasks
from hostguard.gate.policy import Policy
from hostguard.store.settings import START, SettingsStore
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns.live import Live

log = logging.getLogger(__name__)

# A service may count as started before it listens, and a refused POST is tried again only after 5 s.
LISTEN_S = 10.0
POLL_S = 0.05


class ServiceManager(Protocol):
    """Starts and stops services. Each raises SystemdError, SystemdLost."""

    async def start_unit(self, unit: str) -> None:
        """Start a service and wait for it."""

    async def stop_unit(self, unit: str) -> None:
        """Stop a service."""


@dataclass(eq=False)
class MindServices:
    """The services of all minds; a mind without one is passed over. `started` reports those that run."""

    _policy: Policy
    _settings: SettingsStore
    _live: Live
    _systemd: ServiceManager
    _started: Signal[UnitStarted]
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=partial(defaultdict, asyncio.Lock), init=False
    )
    _starting: set[str] = field(default_factory=set, init=False)
    _tasks: Tasks = field(default_factory=Tasks, init=False)

    def resume(self) -> None:
        """Start the services that the previous guard did not get to."""
        for mind in self._settings.all(START):
            self._tasks.start(self.start(mind))

    def close(self) -> None:
        """Stop waiting for systemd."""
        self._tasks.cancel()

    async def start(self, mind: str) -> None:
        """Start the mind's service and wait until it takes messages. One that does not is only logged."""
        unit = self._unit(mind)
        if unit is None:
            return
        self._starting.add(mind)
        try:
            async with self._locks[mind]:
                if await self._ask(unit, self._systemd.start_unit, lambda: True):
                    await self._listening(mind, unit)
        finally:
            self._starting.discard(mind)
        self._settings.keep(START.to(mind, None), durable=False)
        self._started.send(UnitStarted(unit))

    def stop(self, mind: str) -> None:
        """Stop the service of a mind that sleeps, once it has no turn."""
        unit = self._unit(mind)
        if unit is not None and self._may_stop(mind):
            self._tasks.start(self._stop(mind, unit))

    async def _stop(self, mind: str, unit: str) -> None:
        async with self._locks[mind]:
            await self._ask(unit, self._systemd.stop_unit, lambda: self._may_stop(mind))

    def _may_stop(self, mind: str) -> bool:
        return self._policy.asleep(mind) and not self._live.of(mind) and mind not in self._starting

    async def _listening(self, mind: str, unit: str) -> None:
        url = urlsplit(self._policy.config.minds[mind].url or "")
        if url.hostname is None:
            return
        try:
            async with asyncio.timeout(LISTEN_S):
                while True:
                    with suppress(OSError):
                        _, writer = await asyncio.open_connection(url.hostname, url.port)
                        writer.close()
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            log.warning("%s: accepts no connections %.0f s after its start", unit, LISTEN_S)

    async def _ask(
        self, unit: str, call: Callable[[str], Awaitable[None]], wanted: Callable[[], bool]
    ) -> bool:
        """Repeat the call until systemd answers; True if it succeeded."""
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
        config = self._policy.config.minds.get(mind)
        return config.unit if config is not None else None
