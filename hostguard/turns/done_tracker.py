"""Which `done` may be an earlier one that the mind tries again, and when one is answered.

A mind tries a `done` again only if it got no answer (volute.md), and seldom says which turn it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from hostguard.store.waiters import Waiters
from hostguard.turns.live import Turn

REPEAT_S = 2.0  # volute.md: a mind tries its done three times, 0.5 s and 1 s apart
STORED_S = 2.0  # a mind is not kept waiting for longer by a card that stalls


@dataclass(slots=True)
class Done:
    """A `done` that ended a turn, that of `row`; `at` is time.monotonic()."""

    at: float
    message_id: str | None
    row: int
    answered: bool = False  # the mind was there to hear the answer
    to_come: bool = False  # the turn was ended from outside, and the mind may yet tell that it is over

    @property
    def recent(self) -> bool:
        """Whether the mind may still be trying it."""
        return time.monotonic() - self.at < REPEAT_S

    def repeated(self, message_id: str | None) -> bool:
        """Whether another one with this id is the same."""
        return message_id is not None and message_id == self.message_id

    def may_be(self, message_id: str | None, told: bool) -> bool:
        """Whether another one may be the same. `told`: the turn it would end has told something.

        A mind that tells twice of one turn, and got an answer, does so before it tells of the next one.
        """
        known = not self.to_come and (message_id is not None or (told and self.answered))
        return self.recent and not known


class DoneTracker:
    """The last one of each session, and of all sessions of a mind at once (None), while it matters."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._last: dict[tuple[str, str | None], Done] = {}

    def before(self, turn: Turn, session: str | None) -> list[Done]:
        """Those before the turn began that one for this session, or for all, may be, tried again."""
        mind, sessions = turn.live.mind, {turn.live.session, session}
        found = (self._last.get((mind, one)) for one in sessions)
        return [done for done in found if done is not None and done.at <= turn.admitted]

    def note(self, turn: Turn, session: str | None, message_id: str | None) -> Done:
        """The turn ends by a `done` for its session, or for all, to be marked as answered when that is so."""
        return self._note(turn, {turn.live.session, session}, message_id)

    def expect(self, turn: Turn) -> None:
        """The turn was stopped or killed: the mind that sees it may tell that it is done, a little later."""
        self._note(turn, {turn.live.session, None}, None).to_come = True

    def _note(self, turn: Turn, sessions: set[str | None], message_id: str | None) -> Done:
        assert turn.delivery is not None
        self._last = {key: done for key, done in self._last.items() if done.recent}
        done = Done(time.monotonic(), message_id, turn.delivery.id)
        self._last |= {(turn.live.mind, session): done for session in sessions}
        return done

    async def stored(self, ended: list[Done]) -> None:
        """Wait until the ends are on the disk, STORED_S at most."""
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(self._waiters.waiter(done.row)) for done in ended]
            if waiting:
                await asyncio.wait(waiting, timeout=STORED_S)
