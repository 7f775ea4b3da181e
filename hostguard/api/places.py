"""Who has the places of a server, one for each connection, and who gives one up when all are taken.

Nobody keeps others out by holding connections. When all places are taken:
- Those whose owner has more than a few give way first.
- Of these the oldest without a request goes, never the newest: a client that works sends its request at once.
- If each has a request, the owner with the most gives up its oldest, but not for another one of its own.
- A request that has shown a token, or is of root, keeps its place.

And nobody delays others by sending much: what begins is taken from each owner in turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")

FEW_PART = 16  # who has at most this part of all places gives way last
AT_ONCE = 8  # begin in one turn of the event loop
KEPT_PART = 2  # at most this part of all places is kept for requests with a token


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients of one server may take. Times are in seconds; None: any time."""

    connections: int
    head_s: float | None  # from the connection until the first request's head is complete
    idle_s: float  # from an answer until the next head is complete; 0: one request a connection
    stall_s: float | None  # how long a client may take nothing of an answer


class State(IntEnum):
    """What the client of a place does."""

    IDLE = 0  # it sent no request yet, or none since its last one was answered
    BUSY = 1  # its request is being answered
    KEPT = 2  # so is one that keeps its place


@dataclass(eq=False, slots=True)
class Place(Generic[T]):
    """A place, and whose it is. `first`: everybody else gives way to it."""

    holder: T
    owner: int | None = None  # a uid; None: not known, and all of these count as one owner's
    first: bool = False
    state: State = field(default=State.IDLE, init=False)
    since: int = field(default=0, init=False)  # a number that is greater the later its state began


class Places(Generic[T]):
    """At most `most` places."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Place[T], None] = {}
        self._owners: dict[int | None, tuple[dict[Place[T], None], ...]] = {}  # by state, the oldest first
        self._unknown: dict[Place[T], None] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Place[T]]:
        return iter([*self._held])

    def of(self, owner: int | None) -> int:
        """How many places an owner has."""
        return sum(map(len, self._owners.get(owner, ())))

    @property
    def scarce(self) -> bool:
        """True if so many are taken that it matters who has them."""
        return len(self) >= self._most // 2

    def unknown(self) -> list[Place[T]]:
        """The places that were taken without an owner, each once."""
        found, self._unknown = [*self._unknown], {}
        return found

    def take(self, place: Place[T]) -> Place[T] | None:
        """Take a place. Returns the one that is given up for it: `place` itself if none is."""
        loser = self._loser(place) if len(self) >= self._most else None
        if loser is not None:
            self.leave(loser)
        if loser is not place:
            self._held[place] = None
            self._put(place, State.IDLE)
            if place.owner is None:
                self._unknown[place] = None
        return loser

    def know(self, place: Place[T], owner: int | None) -> None:
        """Who has a place was found out."""
        self._cut(place)
        place.owner = owner
        self._owners.setdefault(owner, ({}, {}, {}))[place.state][place] = None

    def busy(self, place: Place[T]) -> None:
        """Its client sent a request."""
        self._move(place, State.KEPT if place.first else State.BUSY)

    def keep(self, place: Place[T]) -> None:
        """Its request has shown a token."""
        if sum(len(states[State.KEPT]) for states in self._owners.values()) < self._most // KEPT_PART:
            self._move(place, State.KEPT)

    def idle(self, place: Place[T]) -> None:
        """Its request was answered."""
        self._move(place, State.IDLE)

    def leave(self, place: Place[T]) -> None:
        """Its client left, or has to."""
        if place in self._held:
            self._cut(place)
            del self._held[place]
            self._unknown.pop(place, None)

    def _move(self, place: Place[T], state: State) -> None:
        if place in self._held:
            self._cut(place)
            self._put(place, state)

    def _cut(self, place: Place[T]) -> None:
        states = self._owners[place.owner]
        del states[place.state][place]
        if not any(states):
            del self._owners[place.owner]

    def _put(self, place: Place[T], state: State) -> None:
        self._count += 1
        place.state, place.since = state, self._count
        self._owners.setdefault(place.owner, ({}, {}, {}))[state][place] = None

    def _loser(self, new: Place[T]) -> Place[T]:
        owners = [states for states in self._owners.values() if states[State.IDLE] or states[State.BUSY]]
        many = [states for states in owners if sum(map(len, states)) > self._most // FEW_PART]
        owners = many or owners
        idle = [next(iter(states[State.IDLE])) for states in owners if states[State.IDLE]]
        if idle:
            return min(idle, key=lambda place: place.since)
        largest = max(owners, key=lambda states: sum(map(len, states)), default=None)
        if largest is None or (not new.first and self.of(new.owner) >= sum(map(len, largest))):
            return new
        return next(iter(largest[State.BUSY]))


class Fair:
    """Lets AT_ONCE connections or requests begin in a turn of the event loop, of each owner one in turn."""

    def __init__(self) -> None:
        self._waiting: dict[int | None, deque[asyncio.Future[None]]] = {}
        self._begun = 0
        self._soon = False

    async def wait(self, owner: int | None) -> None:
        """Until it is the owner's turn."""
        loop = asyncio.get_running_loop()
        if not self._soon:
            loop.call_soon(self._next)
            self._soon = True
        if self._begun < AT_ONCE and not self._waiting:
            self._begun += 1
            return
        turn = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        await turn

    def _next(self) -> None:
        self._begun, self._soon = 0, bool(self._waiting)
        while self._waiting and self._begun < AT_ONCE:
            owner = next(iter(self._waiting))
            turns = self._waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():  # it may have left
                turn.set_result(None)
                self._begun += 1
        if self._soon:
            asyncio.get_running_loop().call_soon(self._next)
