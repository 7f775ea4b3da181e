"""Typed signals: a fact that one part reports and others act on, without knowing each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from hostguard.core.model import Delivery

Fact = TypeVar("Fact")
log = logging.getLogger(__name__)


class Signal(Generic[Fact]):
    """Passes each fact to every subscriber, in the order in which they subscribed.

    A subscriber that fails is logged and does not keep the fact from the others. Only daemon.py subscribes.
    """

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Fact], None]] = []

    def subscribe(self, subscriber: Callable[[Fact], None]) -> None:
        """Call `subscriber` with each fact from now on."""
        self._subscribers.append(subscriber)

    def send(self, fact: Fact) -> None:
        """Report a fact. Never raises."""
        for subscriber in self._subscribers:
            try:
                subscriber(fact)
            except Exception:
                log.exception("a subscriber failed on %r", fact)


@dataclass(frozen=True)
class _OfMind:
    mind: str


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """A turn of the session began (`busy`), or ended."""

    mind: str
    session: str
    busy: bool


@dataclass(frozen=True, slots=True)
class WorkSeen:
    """A session of a mind that has no turn is at work, as this event of the mind shows."""

    mind: str
    session: str
    event: str


@dataclass(frozen=True, slots=True)
class TurnThawed:
    """The turn in this scope was frozen for some seconds and runs again."""

    unit: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SliceThrottled:
    """A write limit was set on hostguard.slice, whose cgroup this is."""

    cgroup: Path


@dataclass(frozen=True, slots=True)
class UnitStarted:
    """A service that runs a mind was started."""

    unit: str


class RoutesChanged(_OfMind):
    """A mind's routes.json was read and differs from before."""


class RoutesRead(_OfMind):
    """A mind's routes, or that it has none, are known for the first time."""


class MindWoken(_OfMind):
    """A sleeping mind is to be woken for a message."""


@dataclass(frozen=True, slots=True)
class QueueDamaged:
    """The queue's file is malformed; `text` says so to a person."""

    text: str


@dataclass(frozen=True, slots=True)
class RowsSetAside:
    """These deliveries were damaged and are no longer in the database."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueueTrouble:
    """The queue's file takes no writes, and why; or (None) takes them again."""

    trouble: str | None


class MindDied(_OfMind):
    """The process of a resident mind's server is gone."""


class ProcessesMoved(_OfMind):
    """Processes of a resident mind came into the scope of a turn, or left it."""


@dataclass(frozen=True, slots=True)
class Redrive:
    """Rows that wait may start now: of one mind, or (None) because something of the host changed."""

    mind: str | None = None


@dataclass(frozen=True, slots=True)
class RowsStored:
    """New rows are in the database; the gate does not know of them yet."""

    rows: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class Pumped:
    """The gate was asked about all that may start: what status shows may have changed."""
