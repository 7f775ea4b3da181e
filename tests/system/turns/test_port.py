"""The real systemd does what the unit tests' host does, by the same tests: tests/unit/turns/test_fake_host.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from host_contract import CONTRACT
from on_bus import on_bus

from hostguard.systemd.client import Systemd
from hostguard.systemd.fork_client import ForkClient


class Both(ForkClient):
    """Has its first stubs once systemd is connected."""

    def __init__(self, systemd: Systemd) -> None:
        super().__init__(systemd)
        self._started = False

    async def take(self) -> Any:
        if not self._started:
            self._started = True
            await self.start()
        return await super().take()


@pytest.mark.parametrize("holds", CONTRACT)
def test_contract(holds: Callable[[Any, Any], Any]) -> None:
    async def work() -> None:
        systemd = Systemd()
        forks = Both(systemd)
        try:
            await holds(systemd, forks)
        finally:
            forks.close()
            await systemd.close()

    on_bus(work())
