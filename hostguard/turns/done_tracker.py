"""Recognizes `done` events that may be retries, and delays answers until the ends are stored.

A mind retries a `done` only if it got no answer (volute.md), and seldom names the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from hostguard.store.requests import Waiters
from hostguard.turns.live import Turn

REPEAT_S = 2.0  # volute.md: a mind sends its done three times, 0.5 s and 1 s apart
STORED_S = 2.0  # a stalled card delays the answer to a mind no longer


@dataclass(slots=True)
class Done:
    """A `done` that ended the turn of `row`; `at` is time.monotonic()."""

    at: float
    message_id: str | None
    row: int | None  # None: it is lost
    answered: bool = False  # the mind was still connected for the answer
    to_come: bool = False  # the turn was ended from outside; the mind may still report its end

    @property
    def recent(self) -> bool:
        """True if the mind may still be retrying it."""
        return time.monotonic() - self.at < REPEAT_S

    def repeated(self, message_id: str | None) -> bool:
        """True if another `done` with this id is a retry of this one."""
        return message_id is not None and message_id == self.message_id

    def may_be(self, message_id: str | None, told: bool) -> bool:
        """True if another `done` may be a retry. `told`: the turn that it would end has reported something.

        A mind that got an answer repeats a `done` only before it reports anything of the next turn.
        """
        known = not self.to_come and (message_id is not None or (told and self.answered))
        return self.recent and not known


class DoneTracker:
    """The last `done` of each session, and of all sessions of a mind (None), while retries may come."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._last: dict[tuple[str, str | None], Done] = {}

    def before(self, turn: Turn, session: str | None) -> list[Done]:
        """Earlier `done` events, from before the turn began, that this one may be a retry of."""
        mind, sessions = turn.live.mind, {turn.live.session, session}
        found = (self._last.get((mind, one)) for one in sessions)
        return [done for done in found if done is not None and done.at <= turn.admitted]

    def note(self, turn: Turn, session: str | None, message_id: str | None) -> Done:
        """Remember a `done` that ends the turn. The caller marks it as answered."""
        row = turn.delivery.id if turn.delivery is not None else None
        self._last = {key: done for key, done in self._last.items() if done.recent}
        done = Done(time.monotonic(), message_id, row)
        self._last |= {(turn.live.mind, one): done for one in (turn.live.session, session)}
        return done

    def expect(self, turn: Turn) -> None:
        """The turn was stopped or killed: the mind may notice, and report `done` a little later."""
        self.note(turn, None, None).to_come = True

    async def stored(self, ended: list[Done]) -> None:
        """Wait until the ends are on the disk, STORED_S at most."""
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(self._waiters.waiter(d.row)) for d in ended if d.row is not None]
            if waiting:
                await asyncio.wait(waiting, timeout=STORED_S)
