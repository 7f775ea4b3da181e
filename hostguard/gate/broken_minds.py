"""The minds that cannot work on this host, as it lacks their user, program or sandbox. Their rows are held.

They are checked again until they can: the user may come with a directory server, a program with an upgrade.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace

from hostguard.config import on_host
from hostguard.core.clock import CHECK_S
from hostguard.core.model import Mind
from hostguard.core.signals import Redrive, Signal
from hostguard.core.tasks import Tasks
from hostguard.gate.policy import Policy

log = logging.getLogger(__name__)


@dataclass(eq=False)
class BrokenMinds:
    """Logs them, and replaces them in the configuration once they can work. `redrive` reports each."""

    _policy: Policy
    _redrive: Signal[Redrive]
    _tasks: Tasks = field(default_factory=Tasks, init=False)
    _logged: dict[str, str] = field(default_factory=dict, init=False)

    def all(self) -> list[Mind]:
        """The broken minds."""
        return [mind for mind in self._policy.config.minds.values() if mind.broken]

    def follow(self) -> None:
        """Follow a new configuration."""
        found = {mind.name: mind.broken for mind in self.all()}
        for name, why in found.items():
            if self._logged.get(name) != why:
                log.error("%s is held: %s; checked again every %g s", name, why, CHECK_S)
        for name in self._logged.keys() - found.keys():
            log.info("%s is not held any more: it has what it needs", name)
        self._logged = found
        if found and not len(self._tasks):
            self._tasks.start(self._check())

    async def _check(self) -> None:
        while broken := self.all():
            await asyncio.sleep(CHECK_S)
            for mind in broken:
                now = await asyncio.to_thread(on_host.again, mind)
                minds = self._policy.config.minds
                if minds.get(mind.name) is mind and now != mind:  # no reload was faster
                    self._policy.config = replace(self._policy.config, minds={**minds, mind.name: now})
                    self.follow()
                    self._redrive.send(Redrive(mind.name))

    def close(self) -> None:
        """Check no more."""
        self._tasks.cancel()
