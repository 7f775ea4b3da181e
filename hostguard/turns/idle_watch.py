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
from hostguard.turns.live import Live, Resident, Turn

# A session's process may be followed by another; a mind that thinks meanwhile reports something now and then.
GONE_S = 30.0
DOUBT_S = 10.0  # of quiet, after a `done` that may not cover what the turn is about
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

    def watch(self, finish: Callable[[Turn, Ending], None]) -> None:
        """Call `finish` for each turn that becomes quiet."""
        if self._timer is None:
            live = [turn.live.mind for turn in self._live if turn.resident is not None]
            minds = self._policy.config.minds
            ends = [minds[name].idle_end for name in live if name in minds]
            if ends:
                delay = min(CHECK_S, min(ends) / 4)
                self._timer = asyncio.get_running_loop().call_later(delay, self._check, finish)

    def close(self) -> None:
        """Stop checking."""
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
            mind = self._policy.config.minds.get(turn.live.mind)
            if turn.resident is not None and turn.resident.posted and mind is not None:
                ending = self._quiet_end(turn, turn.resident, mind)
                if ending is not None:
                    finish(turn, ending)
        self.watch(finish)

    def thawed(self, thawed: TurnThawed) -> None:
        """The turn stood still for some time, which does not count as idleness."""
        turn = self._live.turns.get(thawed.unit)
        if turn is not None and turn.resident is not None:
            now = time.monotonic()
            turn.resident.heard = min(turn.resident.heard + thawed.seconds, now)
            turn.resident.fed = min(turn.resident.fed + thawed.seconds, now)
            self._adoption.stood_still(thawed.unit, thawed.seconds)

    def _quiet_end(self, turn: Turn, resident: Resident, mind: Mind) -> Ending | None:
        if resident.feeding is not None or turn.live.unit in self._freezer.frozen:
            return None
        # Reports are no progress: a mind that reports for ever and does nothing is idle (cases.md, 22).
        now = time.monotonic()
        idle_s = min(self._adoption.idle_ms(turn.live.unit) / 1000, now - resident.fed)
        quiet_s = min(idle_s, now - resident.heard)
        if resident.doubtful and quiet_s >= min(DOUBT_S, mind.idle_end):
            return Ending("done", "the mind reported that it is done, and has been quiet since")
        if self._adoption.deserted(turn.live.unit) and quiet_s >= min(GONE_S, mind.idle_end):
            return Ending("gone", "its processes are gone")
        if idle_s >= mind.idle_end:
            return Ending("idle", f"the mind has been idle for {mind.idle_end:g} s and sent no done")
        return None
