"""Questions that one part asks of another, of which it knows nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hostguard.core.model import Config, Delivery, LiveTurn, Row
from hostguard.core.signals import Redrive


class Configured(Protocol):
    """Has the configuration in force; a reload replaces it."""

    @property
    def config(self) -> Config:
        """The configuration now."""


class Caps(Configured, Protocol):
    """Knows how many turns the configuration and the operator allow."""

    def global_cap(self) -> int | None:
        """Turns of all minds together; None = unlimited."""

    def paused(self, mind: str | None = None) -> bool:
        """True if the mind, or (None) the whole guard, is paused."""


class RowSource(Protocol):
    """The queued rows that may go into a live turn."""

    def first(self, turn: LiveTurn) -> Row | None:
        """The row that the gate folds into the turn next. The row stays queued until it is taken."""

    def take(self, row: Row) -> None:
        """Remove the row from the queued ones."""

    def give_back(self, row: Row, pause_ms: int = 0) -> None:
        """Queue a taken row again at its place in its session, which waits out the pause."""


class Dispatching(Protocol):
    """Offers queued rows to the gate."""

    def admit(self, rows: Sequence[Delivery]) -> None:
        """Take stored rows into the backlog and offer them to the gate."""

    def pump(self) -> None:
        """Start every row that may start."""

    def redrive(self, cause: Redrive) -> None:
        """Offer the waiting rows again, of one mind or of all."""

    @property
    def closing(self) -> bool:
        """True once the guard stops: nothing starts any more."""


class HeldRows(Protocol):
    """Rows that are not offered to the gate yet: those in a batch, and those in quarantine."""

    def counts(self, mind: str) -> tuple[int, int]:
        """How many of the mind's rows are in a batch, and in quarantine."""

    def cancel(self, row: Delivery) -> None:
        """Forget a row that was cancelled in the database."""


class SessionNotes(Protocol):
    """Knows the instructions that a mind's routes have for a session, once the routes are read."""

    def instructions(self, mind: str, session: str) -> str | None:
        """The instructions; None if there are none."""

    def unread(self, mind: str) -> str:
        """Why the mind's routes could not be read yet, "" if it has none or they were."""

    async def read(self, mind: str) -> None:
        """Wait until the mind's routes are read, or it has none."""
