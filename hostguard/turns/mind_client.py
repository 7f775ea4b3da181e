"""The guard's HTTP client for resident minds: sends one POST and classifies the answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hostguard.core.errors import named
from hostguard.core.model import Delivery, Mind
from hostguard.linux.sockets import Marked
from hostguard.turns.mind_listener import Manager, MindListeners

if TYPE_CHECKING:
    import httpx


class Outcome(StrEnum):
    """The outcome of a POST."""

    TAKEN = "taken"
    REFUSED = "refused"  # no success, or no answer: the attempt counts
    DOWN = "down"  # no server listens: not a failure of the message
    STRANGER = "stranger"  # somebody else listens there; the message was not sent
    CUT = "cut"  # the turn ended first


@dataclass(frozen=True, slots=True)
class Posted:
    """The outcome, and the reason in words."""

    outcome: Outcome
    text: str = ""


def key(row: Delivery) -> str:
    """The Idempotency-Key of a row: the same for each attempt, and unique even across databases."""
    return f"hostguard-{row.id}-{row.created_at}"


class MindClient:
    """One client for all minds, ready once `open` was called."""

    def __init__(self, manager: Manager, marked: Marked) -> None:
        self._listeners = MindListeners(manager)
        self._marked = marked
        self._client: httpx.AsyncClient | None = None

    def open(self) -> None:
        """Create the client. httpx costs 65 ms and 7 MB, so only a host with a resident mind pays them.

        Blocks: reads modules from the disk.
        """
        if self._client is not None:
            return
        import httpx

        from hostguard.turns.mind_transport import MindTransport

        logging.getLogger("httpx").setLevel(logging.WARNING)  # newer ones log each request
        # It follows no proxy of the environment, and asks for no encoding that would have to be undone.
        self._client = httpx.AsyncClient(
            transport=MindTransport(self._listeners, self._marked),
            trust_env=False,
            headers={"Accept-Encoding": "identity", "Connection": "close"},
        )

    async def post(self, mind: Mind, row: Delivery, body: Mapping[str, Any] | bytes, turn: str) -> Posted:
        """POST the message; bytes are a whole request that is sent as it is.

        Never raises, whatever the mind's URL or answer, unless it is cancelled.
        """
        import httpx

        from hostguard.turns.mind_transport import AS_IT_IS, MIND, Stranger

        self.open()
        assert self._client is not None
        raw, extensions = b"", {MIND: mind, AS_IT_IS: body}
        if not isinstance(body, bytes):
            raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
            del extensions[AS_IT_IS]
        headers = {"Content-Type": "application/json", "Idempotency-Key": key(row), "X-Hostguard-Turn": turn}
        try:
            answer = await self._client.post(
                f"{mind.url}/message", content=raw, headers=headers, extensions=extensions
            )
        except Stranger as error:
            return Posted(Outcome.STRANGER, str(error))
        except httpx.ConnectError as error:
            return Posted(Outcome.DOWN, f"{mind.url} accepts no connections ({error})")
        except httpx.TimeoutException as error:
            return Posted(Outcome.REFUSED, str(error))
        except httpx.TransportError as error:
            return Posted(Outcome.REFUSED, f"the connection broke: {error}")
        except Exception as error:  # such as a UnicodeError for a host name that cannot be encoded
            return Posted(Outcome.REFUSED, f"{mind.url} cannot be posted to: {named(error)}")
        if answer.is_success:
            return Posted(Outcome.TAKEN)
        said = " ".join(answer.content[:200].decode(errors="replace").split())
        return Posted(Outcome.REFUSED, f"HTTP {answer.status_code}{f': {said}' if said else ''}")
