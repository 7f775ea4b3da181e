"""The live set: every slot in use, a scope that is live or a start in flight. Pure bookkeeping.

It mirrors what systemd lists; it never frees a slot by itself.
"""

from __future__ import annotations

import time
from asyncio import Task
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hostguard.core.model import NOT_HELD, Delivery, LiveTurn, Waited
from hostguard.core.outcome import Ending, Record, Usage
from hostguard.systemd.fork_client import Stub


class Phase(StrEnum):
    """Where a slot's turn is."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"  # a resident mind's turn is over, and its processes go home
    LINGERING = "lingering"  # the command ended, but children of it live on in the scope
    FOREIGN = "foreign"  # a scope that somebody else put into our slices
    UNSURE = "unsure"  # systemd did not say whether the scope came up


@dataclass(eq=False)
class Resident:
    """What a turn that is posted to a resident mind has beside that of a command."""

    posted: bool = False  # the mind took the first message
    feeding: Task[None] | None = None  # posts what follows, one after another
    folded: list[tuple[Delivery, Waited]] = field(default_factory=list)  # what the mind took after the first
    heard: float = field(default_factory=time.monotonic)  # when the mind last took or told something
    fed: float = field(default_factory=time.monotonic)  # when it was last posted to
    told: bool = False  # the mind told something of the session since
    early: bool = False  # `done` came before the answer to the first POST
    doubtful: bool = False  # `done` came, but it may not cover what the turn is about
    ending: Ending | None = None  # how the turn ends, once that is known


@dataclass(eq=False)
class Turn:
    """One slot. `delivery` is None for a foreign scope; `since` is ms since the epoch."""

    live: LiveTurn
    since: int
    phase: Phase
    delivery: Delivery | None = None
    description: str = ""
    waited: Waited = NOT_HELD
    max_turn: float | None = None
    stub: Stub | None = None
    admitted: float = field(default_factory=time.monotonic)  # when the gate let it begin
    pid: int | None = None  # of a `hostguard run` that waits to be moved into the scope
    begun: float | None = None  # time.monotonic() at the start; None for one that an earlier guard started
    released: bool = False  # this guard let the command run
    record: Record | None = None  # read at the end
    used: Usage | None = None  # read at the end, where no record tells
    stopped: bool = False  # somebody asked for its end, perhaps systemd as the host shuts down
    asked: bool = False  # we were asked to stop it, so that it is not to start again
    revoked: bool = False  # must not start after all: paused since it was admitted
    gone: bool = False  # the scope went while the start was still in flight
    resident: Resident | None = None  # it is posted to a resident mind


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn's slot came free."""

    turn: Turn
    ending: Ending


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

    def close_input(self, turn: Turn) -> None:
        """Let no more messages fold into the turn."""
        turn.live = replace(turn.live, takes_input=False)
        if turn.live.unit in self._minds.get(turn.live.mind, {}):
            self._minds[turn.live.mind][turn.live.unit] = turn.live

    def taking(self, mind: str, session: str) -> Turn | None:
        """The turn into which messages of the session fold, if there is one."""
        for live in self._minds.get(mind, {}).values():
            if live.takes_input and live.session == session:
                return self.turns[live.unit]
        return None

    def resident(self, mind: str) -> list[tuple[Turn, Resident]]:
        """The mind's turns that are posted to it."""
        found = (self.turns[unit] for unit in self._minds.get(mind, {}))
        return [(turn, turn.resident) for turn in found if turn.resident is not None]

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
