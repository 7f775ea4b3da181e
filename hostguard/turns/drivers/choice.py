"""Chooses the driver of a turn. Only here does the sort of mind matter."""

from __future__ import annotations

from dataclasses import dataclass

from hostguard.core.model import Kind, Mind
from hostguard.turns.live import TurnDriver


@dataclass
class Drivers:
    """One driver for each sort of turn."""

    exec: TurnDriver
    run: TurnDriver
    resident: TurnDriver

    def choose(self, kind: Kind, mind: Mind | None, posted: bool | None = None) -> TurnDriver:
        """The driver for a row of this kind. `posted`: how an earlier guard began its turn, if one did."""
        if kind is Kind.RUN:
            return self.run
        if posted is None:
            posted = mind is not None and mind.url is not None
        return self.resident if posted and kind.delivers else self.exec
