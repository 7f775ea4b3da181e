"""Chooses the driver of a turn. Only here does the sort of mind matter."""

from __future__ import annotations

from dataclasses import dataclass

from hostguard.core.model import Kind
from hostguard.turns.live import TurnDriver


@dataclass
class Drivers:
    """One driver for each sort of turn."""

    exec: TurnDriver
    run: TurnDriver
    resident: TurnDriver

    def choose(self, kind: Kind, resident: bool) -> TurnDriver:
        """The driver for a row of this kind. `resident`: the mind's own messages are posted to a server."""
        if kind is Kind.RUN:
            return self.run
        return self.resident if resident and kind.delivers else self.exec
