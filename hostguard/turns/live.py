"""The live set: every slot in use, a scope that is live or a start in flight. Pure bookkeeping.

It mirrors what systemd lists; it never frees a slot by itself.
"""

from __future__ import annotations

import time
from asyncio import Future, Task
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from hostguard.core import units
from hostguard.core.clock import Now
from hostguard.core.model import NOT_HELD, Delivery, LiveTurn, Mind, Row, Waited
from hostguard.core.outcome import Ending, Record, Usage
from hostguard.systemd.fork_client import Stub
from hostguard.turns import exit_record


class Phase(StrEnum):
    """The phase of a slot's turn."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"  # a resident mind's turn is over, and its processes leave the scope
    LINGERING = "lingering"  # the command ended, but children of it live on in the scope
    FOREIGN = "foreign"  # a scope that somebody else put into our slices
    OUTSIDE = "outside"  # what a turn left outside of its scope; see outside.py
    UNSURE = "unsure"  # systemd did not say whether the scope came up


@dataclass(eq=False)
class Resident:
    """The state of a turn that is posted to a resident mind."""

    posted: bool = False  # the mind took the first message
    posting: Future[Any] | None = None  # the POST that is on its way
    cut: bool = False  # it posts nothing more: its scope is stopped, or gone
    feeding: Task[None] | None = None  # posts what follows, one after another
    heard: float = field(default_factory=time.monotonic)  # when the mind last took or reported something
    fed: float = field(default_factory=time.monotonic)  # when it was last posted to
    reported: bool = False  # the mind reported something of the session since
    early: bool = False  # `done` came before the answer to the first POST, or none need come
    shared: bool = False  # something was folded into the turn, or no message began it: see quiet_rule.py
    done: float | None = None  # when a `done` came that may not be the last
    late: bool = False  # a `done` came that may be about the turn before
    told: float | None = None  # when the last `done` came that did not end the turn
    tool: bool = False  # the last that the mind reported is a call of a tool
    ending: Ending | None = None  # how the turn ends, once that is known


class TurnDriver(Protocol):
    """Runs one sort of turns: commands, the processes of waiting callers, or messages to resident minds."""

    takes_input: bool = False  # messages of the same session fold into its turns

    def prepare(self, turn: Turn) -> bool:
        """Make what must exist before the row is marked as delivering. False if that is impossible now."""
        return exit_record.prepare(turn.live)

    async def start(self, turn: Turn, mind: Mind, row: Delivery, raw: bytes) -> bool:
        """Bring the turn up. True once it is at work; False if nothing runs, and its end says why."""

    def feed(self, turn: Turn) -> None:
        """Take the queued rows that fold into the turn."""
        return None

    async def resume(self, turn: Turn, mind: Mind | None) -> None:
        """Continue a turn that an earlier guard started. `mind` is None if it is not configured any more.

        Processes go on without the guard, and the scope is watched already.
        """
        return None

    def stopping(self, turn: Turn) -> None:
        """Somebody had systemd stop the turn's scope."""
        return None

    def end(self, turn: Turn) -> Ending:
        """How the turn ended, now that its scope is gone. Raises OSError if that cannot be read now."""


class RowLedger(Protocol):
    """Stores what becomes of rows."""

    async def fetch(self, id_: int) -> tuple[Delivery, bytes] | None:
        """A row with its payload; None if it has ended. Raises Unavailable."""

    def begin(self, row: Delivery, turn: Turn, since: int) -> Waited:
        """The row is being posted into the turn: how long it has waited `since` that stamp."""

    def folded(self, row: Delivery, turn: Turn, waited: Waited) -> None:
        """The mind took the row into the turn."""

    def confirm(self, row: Delivery, turn: Turn) -> None:
        """The mind confirmed the row."""

    def settle(self, row: Delivery, turn: Turn, ending: Ending, waited: Waited) -> Row | None:
        """Account for the end of the row; the row to queue again, if any."""


@dataclass(eq=False)
class Turn:
    """One slot. `driver` and `delivery` are None for a foreign scope; `since` is ms since the epoch.

    `started` and `ended` are stamps, see core/clock.py.
    """

    live: LiveTurn
    since: int
    phase: Phase
    delivery: Delivery | None = None
    driver: TurnDriver | None = None
    folded: list[tuple[Delivery, Waited]] = field(default_factory=list)  # what it took after the first row
    description: str = ""
    waited: Waited = NOT_HELD
    max_turn: float | None = None
    stub: Stub | None = None
    admitted: float = field(default_factory=time.monotonic)  # when the gate let it begin
    started: int = 0
    ended: int | None = 0  # 0: it is live; None: while no guard ran, and nobody knows when
    ran_s: float = 0.0  # once it is over, at most; this is what `max_turn` is compared with
    pid: int | None = None  # of a `hostguard run` that waits to be moved into the scope
    resumed: bool = False  # an earlier guard started it
    released: bool = False  # this guard let the command run
    record: Record | None = None  # read at the end
    used: Usage | None = None  # read at the end, if the record has none
    stopped: bool = False  # somebody asked for its end, perhaps systemd as the host shuts down
    asked: bool = False  # the guard was asked to stop it: it does not start again
    revoked: bool = False  # must not start after all: paused since it was admitted
    gone: bool = False  # the scope went while the start was still in flight
    resident: Resident | None = None  # for a resident mind's turn

    def over(self, now: Now, ended: int = 0) -> None:
        """Its processes are gone, since the stamp `ended` or since now."""
        self.ended = ended or now.stamp
        self.ran_s = (self.ran_ms(now) or 0) / 1000

    def ran_ms(self, now: Now) -> int | None:
        """How long it ran, until its end or so far; None if nobody knows."""
        if self.ended is None:
            return None
        return max(0, now.since(self.started) - (now.since(self.ended) if self.ended else 0))

    @property
    def unasked(self) -> bool:
        """True if no message began it: it is for work that was seen outside of any turn."""
        return self.live.id is not None and self.live.id.startswith(units.UNASKED)

    @property
    def rows(self) -> list[tuple[Delivery, Waited]]:
        """The rows that are in the turn, with how long each waited."""
        first = [(self.delivery, self.waited)] if self.delivery is not None else []
        return first + self.folded


class Waiting(Protocol):
    """A process that waits to be moved into a turn's scope."""

    pid: int

    def alive(self) -> bool:
        """True if the pid still belongs to this process. If not, its turn never began, and nothing failed."""


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
        """Free this turn's slot. False if it no longer has one: a late or second end."""
        if self.turns.get(turn.live.unit) is not turn:
            return False
        del self.turns[turn.live.unit]
        mind = self._minds[turn.live.mind]
        del mind[turn.live.unit]
        if not mind:
            del self._minds[turn.live.mind]
        return True

    def close_input(self, turn: Turn) -> None:
        """No more messages fold into the turn."""
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
