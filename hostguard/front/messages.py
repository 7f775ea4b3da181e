"""Messages of Volute to its minds: stored durably as deliveries, in the order in which they came."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from hostguard.api.http import Budget, Seldom
from hostguard.core.errors import Problem
from hostguard.core.payload import parsed
from hostguard.delivery.acceptor import Acceptor
from hostguard.delivery.message import Message
from hostguard.front.registry import Registry
from hostguard.front.request import payload_of, session_of
from hostguard.gate.policy import Policy

T = TypeVar("T")
log = logging.getLogger(__name__)

# Volute gives a message up after 120 s without an answer, and some versions lose what is refused.
TRY_S = 110.0
AGAIN_S, AGAIN_MAX_S = 0.5, 5.0  # between two attempts; each pause is twice the one before


class NotKept(Exception):
    """The message could not be stored in time. Its sender must not get an answer."""


@dataclass(eq=False)
class Messages:
    """Stores messages."""

    _policy: Policy
    _registry: Registry
    _acceptor: Acceptor
    budget: Budget
    _orders: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False
    )
    _failing: Seldom = field(default_factory=lambda: Seldom(log), init=False)
    _refusing: Seldom = field(default_factory=lambda: Seldom(log), init=False)

    @property
    def most(self) -> int:
        """The most bytes of a message's body."""
        return self._policy.config.payload_max

    async def mind_at(self, port: int) -> str | None:
        """The mind that has the port; None: no mind has it. Raises NotKept if that cannot be found out."""

        return await self._persist(lambda: self._registry.mind_at(port))

    def refused(self, mind: str, why: str) -> None:
        """A message was not taken. Volute may have lost it, so the journal has it."""
        self._refusing.warn(f"a message for {mind} was refused: {why}")

    async def parse(self, body: bytearray) -> dict[str, Any]:
        """The message. Raises ValueError as `payload.parsed` does."""
        text = body.decode(errors="replace")  # as a mind reads it
        value = await asyncio.get_running_loop().run_in_executor(self.budget.parser, parsed, text)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value

    async def keep(self, mind: str, body: Mapping[str, Any], raw: bytes) -> None:
        """Store the message `body`, of which `raw` is the whole request. Raises NotKept, ValueError."""
        session = session_of(body)
        payload, stored = payload_of(body, session, raw)
        message = Message((mind,), session, payload, stored, by=f"Volute, for {mind},")

        async def send() -> None:
            if mind not in self._policy.config.minds:
                raise NotKept(f"{mind} is no mind of Volute any more")
            await self._acceptor.send(message)

        order = self._orders.setdefault((mind, session), asyncio.Lock())
        async with order:  # one that is tried again must not be overtaken by a later one
            await self._persist(send)

    async def _persist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, again and again if it fails, for TRY_S. Raises NotKept."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + TRY_S, AGAIN_S
        while True:
            try:
                return await work()
            except (Problem, OSError) as error:
                why = error.detail if isinstance(error, Problem) else str(error)
            if loop.time() + pause > until:
                self._failing.warn(f"a message of Volute was given up after {TRY_S:.0f} s: {why}")
                raise NotKept(why)
            self._failing.warn(f"a message of Volute waits without an answer: {why}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_MAX_S)
