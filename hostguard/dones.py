"""Which `done` may be an earlier one that the mind tries again, and when one is answered.

A mind tries a `done` again only if it got no answer (volute.md), and seldom says which turn it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from hostguard.live import Turn
from hostguard.waiters import Waiters

REPEAT_S = 2.0  # volute.md: a mind tries its done three times, 0.5 s and 1 s apart
STORED_S = 2.0  # a mind is not kept waiting for longer by a card that stalls


@dataclass(slots=True)
class Done:
    """A `done` that ended a turn, that of `row`; `at` is time.monotonic()."""

    at: float
    message_id: str | None
    row: int
    answered: bool = False  # the mind was there to hear the answer

    @property
    def recent(self) -> bool:
        """Whether the mind may still be trying it."""
        return time.monotonic() - self.at < REPEAT_S

    def repeated(self, message_id: str | None, told: bool) -> bool:
        """Whether another one with this id may be the same. `told`: the turn it would end has told something.

        A mind that tells twice of one turn, and got an answer, does so before it tells of the next one.
        """
        if message_id is not None:
            return message_id == self.message_id
        return self.recent and not (told and self.answered)


class Dones:
    """The last one of each session, while it matters."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._last: dict[tuple[str, str | None], Done] = {}

    def repeats(self, turn: Turn, message_id: str | None, told: bool) -> bool:
        """Whether a `done` may be the one that ended the turn before this one, tried again."""
        last = self._last.get((turn.live.mind, turn.live.session))
        return last is not None and last.repeated(message_id, told)

    def note(self, turn: Turn, message_id: str | None) -> Done:
        """The turn ends by a `done`, to be marked as answered when that is so."""
        assert turn.delivery is not None
        self._last = {key: done for key, done in self._last.items() if done.recent}
        done = Done(time.monotonic(), message_id, turn.delivery.id)
        self._last[turn.live.mind, turn.live.session] = done
        return done

    async def stored(self, ended: list[Done]) -> None:
        """Wait until the ends are on the disk, STORED_S at most."""
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(self._waiters.waiter(done.row)) for done in ended]
            if waiting:
                await asyncio.wait(waiting, timeout=STORED_S)
