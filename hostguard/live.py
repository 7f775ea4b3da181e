"""The live set: every slot in use, a scope that is live or a start in flight. Pure bookkeeping.

It mirrors what systemd lists; it never frees a slot by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from hostguard.model import Delivery, LiveTurn
from hostguard.spawner import Stub
from hostguard.turns import Record


class Phase(StrEnum):
    """Where a slot's turn is."""

    STARTING = "starting"
    RUNNING = "running"
    LINGERING = "lingering"  # the command ended, but children of it live on in the scope
    FOREIGN = "foreign"  # a scope that somebody else put into our slices
    UNSURE = "unsure"  # systemd did not say whether the scope came up


@dataclass(eq=False)
class Turn:
    """One slot. `delivery` is None for a foreign scope; `since` is ms since the epoch."""

    live: LiveTurn
    since: int
    phase: Phase
    delivery: Delivery | None = None
    description: str = ""
    held_ms: int = 0
    max_turn: float | None = None
    stub: Stub | None = None
    pid: int | None = None  # of a `hostguard run` that waits to be moved into the scope
    begun: float | None = None  # time.monotonic() at the start; None for one that an earlier guard started
    released: bool = False  # this guard let the command run
    record: Record | None = None  # read at the end
    stopped: bool = False  # somebody asked for its end
    revoked: bool = False  # must not start after all: paused since it was admitted
    gone: bool = False  # the scope went while the start was still in flight


@dataclass
class Live:
    """Slots by unit name, oldest first, and by mind."""

    turns: dict[str, Turn] = field(default_factory=dict)
    _minds: dict[str, dict[str, LiveTurn]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(list(self.turns.values()))

    def add(self, turn: Turn) -> None:
        """Take a slot."""
        assert turn.live.unit not in self.turns
        self.turns[turn.live.unit] = turn
        self._minds.setdefault(turn.live.mind, {})[turn.live.unit] = turn.live

    def remove(self, turn: Turn) -> bool:
        """Free this turn's slot. False if it has none any more: a late or second end."""
        if self.turns.get(turn.live.unit) is not turn:
            return False
        del self.turns[turn.live.unit]
        mind = self._minds[turn.live.mind]
        del mind[turn.live.unit]
        if not mind:
            del self._minds[turn.live.mind]
        return True

    def of(self, mind: str) -> tuple[LiveTurn, ...]:
        """The mind's slots."""
        return tuple(self._minds.get(mind, {}).values())

    def sessions(self, mind: str) -> set[str]:
        """The mind's sessions that have a turn."""
        return {turn.session for turn in self._minds.get(mind, {}).values() if turn.session is not None}

    def by_id(self, turn_id: str) -> Turn | None:
        """The slot of a turn id, or of a unit name."""
        if turn_id in self.turns:
            return self.turns[turn_id]
        return next((turn for turn in self if turn.live.id == turn_id), None)

    @property
    def oldest(self) -> str | None:
        """The unit that has its slot for the longest time."""
        return next(iter(self.turns), None)
