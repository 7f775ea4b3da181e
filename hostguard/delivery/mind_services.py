"""Starts and stops the services that run minds, as the minds wake and sleep, and restarts them on request.

A restart waits until the mind has no turn; meanwhile the gate starts none. It is stored, so that the next
guard does what a killed one did not.
"""

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

from hostguard.core.clock import AGAIN_S, now_ms
from hostguard.core.errors import Problem, conflict
from hostguard.core.model import Kind, Target
from hostguard.core.names import MAIN_SESSION
from hostguard.core.payload import CHANNEL, SENDER, system_payload
from hostguard.core.signals import Redrive, Signal, UnitStarted
from hostguard.core.tasks import Tasks
from hostguard.delivery.acceptor import Acceptor
from hostguard.gate.policy import Policy
from hostguard.store.deliveries import New
from hostguard.store.settings import RESTART, START, SettingsStore
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

    async def restart_unit(self, unit: str) -> None:
        """Stop a service and start it again, and wait for it."""


@dataclass(eq=False)
class MindServices:
    """The services of all minds; a mind without one is passed over. `started` reports those that run."""

    _policy: Policy
    _settings: SettingsStore
    _live: Live
    _systemd: ServiceManager
    _started: Signal[UnitStarted]
    _acceptor: Acceptor
    _redrive: Signal[Redrive]
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=partial(defaultdict, asyncio.Lock), init=False
    )
    _starting: set[str] = field(default_factory=set, init=False)
    _to_restart: set[str] = field(default_factory=set, init=False)  # that no task restarts yet
    _tasks: Tasks = field(default_factory=Tasks, init=False)

    def resume(self) -> None:
        """Start the services that the previous guard did not get to."""
        for mind in self._settings.all(START):
            self._tasks.start(self.start(mind))
        self._to_restart.update(self._settings.all(RESTART))

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

    async def restart(self, mind: str, text: str) -> None:
        """Restart the mind's service between turns, and then send it this text, unless that is "".

        Returns once the request is stored. Raises Problem, also if the mind has no service.
        """
        if self._unit(mind) is None:
            fix = f"restart it yourself, or set minds.{mind}.unit"
            raise conflict(f"hostguard does not know the service that runs {mind}: {fix}")
        before = self._settings.get(RESTART, mind)
        if before is None or (text and text != before):
            await self._settings.change(RESTART.to(mind, text))
        self._to_restart.add(mind)
        self.restart_idle()

    def restart_idle(self, _: object = None) -> None:
        """Restart those whose turns have ended."""
        for mind in [*self._to_restart]:
            if not self._live.of(mind):
                self._to_restart.discard(mind)
                self._tasks.start(self._restart(mind))

    async def _restart(self, mind: str) -> None:
        unit = self._unit(mind)
        self._starting.add(mind)
        try:
            async with self._locks[mind]:
                if self._settings.get(RESTART, mind) is None:  # an earlier request was for the same restart
                    return
                # The service of a mind that sleeps is stopped; it is started when the mind wakes.
                if unit is not None and not self._policy.asleep(mind):
                    log.info("%s is restarted, as %s asked", unit, mind)
                    if await self._ask(unit, self._systemd.restart_unit, lambda: True):
                        await self._listening(mind, unit)
                await self._restarted(mind)
        finally:
            self._starting.discard(mind)
        if unit is not None:
            self._started.send(UnitStarted(unit))
        self._redrive.send(Redrive(mind))

    async def _restarted(self, mind: str) -> None:
        """Note that the restart is done, in one transaction with the text for the mind."""
        text, done = self._settings.get(RESTART, mind), RESTART.to(mind, None)
        if text and mind in self._policy.config.minds:
            target, payload = Target(mind, MAIN_SESSION, kind=Kind.LIFECYCLE), system_payload((mind,), text)
            new = New((target,), payload, now_ms(), sender=SENDER, channel=CHANNEL)
            try:
                await self._acceptor.store(new, also=lambda *_: [done])
                self._settings.use(done)
                return
            except Problem as problem:
                log.warning("%s is not told of its restart: %s", mind, problem.detail)
        self._settings.keep(done)

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
