"""Turns of `hostguard run`: the caller's own process is moved into a scope, and then runs its command.

A stub is in the scope, too, until that process has ended: it cannot take its slot along and leave.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from hostguard.core import outcome
from hostguard.core.model import Delivery, Mind
from hostguard.turns import exit_record
from hostguard.turns.live import Turn, TurnDriver, Waiting
from hostguard.turns.scopes import Scopes


class Caller(Waiting, Protocol):
    """A connected `hostguard run`."""

    pidfd: int

    def tell(self, event: dict[str, Any]) -> None:
        """Send it an event."""


class RunDriver(TurnDriver):
    """Moves a caller's process into the turn's scope. `take` removes and returns a row's caller."""

    def __init__(self, scopes: Scopes, take: Callable[[int], Caller | None]) -> None:
        self._scopes = scopes
        self._take = take

    async def start(self, turn: Turn, mind: Mind, row: Delivery, raw: bytes) -> bool:
        """Move the caller into the scope and let it continue."""
        # A stopped caller gets the reason, too; a paused one keeps waiting.
        caller = None if turn.revoked and not turn.asked else self._take(row.id)
        if caller is None or not caller.alive():
            reason = "it was paused, or its caller is gone"
            self._scopes.give_up(turn, outcome.Ending("dismissed", reason, back=True))
            return False
        watched = os.dup(caller.pidfd)  # its own is closed with its connection
        try:
            started = await self._scopes.start_stub(
                turn, mind.limits, lambda stub, _: stub.watch(watched), caller=caller
            )
        finally:
            os.close(watched)
        if not started:
            why = "it was stopped" if turn.asked else "systemd did not start its scope"
            caller.tell({"event": "failed", "detail": why})
            return False
        caller.tell({"event": "start", "turn": turn.live.id, "unit": turn.live.unit})
        return True

    def end(self, turn: Turn) -> outcome.Ending:
        """The scope is gone, and so is the command; the caller itself saw how it ended.

        The record stays empty. It shows that the host was not restarted since.
        """
        assert turn.live.id is not None
        if turn.resumed and exit_record.read_record(turn.live.id) is None:
            return replace(outcome.HOST_LOST, failed=False, back=True)  # nobody waits for it any more
        return outcome.Ending("stopped" if turn.stopped else "exited", "the caller's command ended")
