"""Ends the turns of resident minds that have become quiet: minds do not always report that they are done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Protocol

from hostguard.core.model import Mind
from hostguard.core.outcome import Ending
from hostguard.core.ports import Configured
from hostguard.core.signals import TurnThawed
from hostguard.turns.adoption import Adoption
from hostguard.turns.drivers import quiet_rule
from hostguard.turns.drivers.quiet_rule import QUIET_S, SETTLE_S, Seen
from hostguard.turns.live import Live, Resident, Turn

CHECK_S = 5.0  # between two checks how busy the turns are


class Freezer(Protocol):
    """Knows which turns are frozen."""

    @property
    def frozen(self) -> Container[str]:
        """Their units."""


@dataclass(eq=False)
class IdleWatch:
    """Checks now and then how busy the turns are, as long as there are any."""

    _live: Live
    _adoption: Adoption
    _policy: Configured
    _freezer: Freezer
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _checked: float = field(default=0.0, init=False)  # time.monotonic() of the last check
    _closed: bool = field(default=False, init=False)

    def watch(self, finish: Callable[[Turn, Ending], None]) -> None:
        """Call `finish` for each turn that becomes quiet."""
        if self._timer is None:
            live = [turn.live.mind for turn in self._live if turn.resident is not None]
            minds = self._policy.config.minds
            ends = [minds[name].idle_end for name in live if name in minds]
            if ends:
                delay = min(CHECK_S, min(ends) / 4)
                self._timer = asyncio.get_running_loop().call_later(delay, self._check, finish)

    def doubt(self, turn: Turn, finish: Callable[[Turn, Ending], None]) -> None:
        """The mind reported a `done` that may not be the last: check soon whether the session is quiet."""
        assert turn.resident is not None
        turn.resident.done = now = time.monotonic()
        asyncio.get_running_loop().call_later(SETTLE_S, self._settled, turn, now, finish)

    def _settled(self, turn: Turn, done: float, finish: Callable[[Turn, Ending], None]) -> None:
        if turn.resident is not None and turn.resident.done == done:
            self._adoption.measure(turn.live.unit)
            asyncio.get_running_loop().call_later(QUIET_S, self._look, turn, finish)

    def worked_since(self, turn: Turn, resident: Resident) -> bool:
        """True if the session was at work since the `done` that may not be the last, or there was none."""
        if resident.done is None or resident.fed > resident.done:
            return True
        idle_s = self._adoption.idle_ms(turn.live.unit) / 1000
        return idle_s < time.monotonic() - resident.done - SETTLE_S

    def close(self) -> None:
        """Stop checking."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, finish: Callable[[Turn, Ending], None]) -> None:
        self._timer = None
        last, self._checked = self._checked, time.monotonic()
        for turn in self._live:
            unit = turn.live.unit
            if turn.resident is not None and unit not in self._freezer.frozen and self._adoption.frozen(unit):
                # By `systemctl freeze`: nobody reports when that began, nor its end.
                self.thawed(TurnThawed(unit, min(CHECK_S, self._checked - last)))
            self._look(turn, finish)
        self.watch(finish)

    def _look(self, turn: Turn, finish: Callable[[Turn, Ending], None]) -> None:
        mind = self._policy.config.minds.get(turn.live.mind)
        if self._closed or turn.resident is None or not turn.resident.posted or mind is None:
            return
        if turn in self._live and (ending := self._quiet_end(turn, turn.resident, mind)) is not None:
            finish(turn, ending)

    def thawed(self, thawed: TurnThawed) -> None:
        """The turn stood still for some time, which does not count as idleness."""
        turn = self._live.turns.get(thawed.unit)
        if turn is not None and turn.resident is not None:
            now = time.monotonic()
            turn.resident.heard = min(turn.resident.heard + thawed.seconds, now)
            turn.resident.fed = min(turn.resident.fed + thawed.seconds, now)
            if turn.resident.done is not None:
                turn.resident.done = min(turn.resident.done + thawed.seconds, now)
            self._adoption.stood_still(thawed.unit, thawed.seconds)

    def _quiet_end(self, turn: Turn, resident: Resident, mind: Mind) -> Ending | None:
        if resident.feeding is not None or turn.live.unit in self._freezer.frozen:
            return None
        # Reports are no progress: a mind that reports for ever and does nothing is idle (cases.md, 22).
        now, unit = time.monotonic(), turn.live.unit
        fed = now - resident.fed
        idle = min(self._adoption.idle_ms(unit) / 1000, fed)
        seen = Seen(
            None if resident.done is None else now - resident.done, idle,
            min(self._adoption.calm_ms(unit) / 1000, fed), now - resident.heard,
            self._adoption.deserted(unit), resident.told is not None, resident.tool, resident.late,
            turn.unasked,
        )  # fmt: skip
        return quiet_rule.over(seen, mind.idle_end)
