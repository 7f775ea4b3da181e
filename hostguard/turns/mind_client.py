"""The guard's HTTP client for resident minds: sends one POST and classifies the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hostguard.core.errors import named
from hostguard.core.model import Delivery, Mind

if TYPE_CHECKING:
    import httpx

# volute.md: Volute's daemon allows a mind this long, from the connection to the head of the answer.
POST_S = 120.0
BODY_S = 5.0  # for the body of the answer, which only has the reason
CONNECT_S = 5.0  # on loopback, only a stuck host takes longer
REPLY_MAX = 64 << 10  # bytes of an answer that are read
# Modules that httpx would import on the event loop when it first connects; one of them, by its version.
LATE = ("httpcore.backends.asyncio", "httpcore._backends.anyio", "anyio._backends._asyncio")


class Outcome(StrEnum):
    """The outcome of a POST."""

    TAKEN = "taken"
    REFUSED = "refused"  # no success, or no answer: the attempt counts
    DOWN = "down"  # no server listens: not a failure of the message


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

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    def open(self) -> None:
        """Create the client. httpx costs 65 ms and 7 MB, so only a host with a resident mind pays them.

        Blocks: reads modules from the disk.
        """
        if self._client is not None:
            return
        import httpx

        for module in LATE:
            with suppress(ImportError):
                import_module(module)
        self._client = httpx.AsyncClient(
            verify=False,  # noqa: S501  # minds have http only: no certificates to read
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            # No connection is kept: one that the mind closed meanwhile would look like a lost answer.
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    async def post(self, mind: Mind, row: Delivery, body: Mapping[str, Any], turn: str) -> Posted:
        """POST the message. Never raises, whatever the mind's URL or answer."""
        import httpx

        self.open()
        assert self._client is not None
        headers = {"Content-Type": "application/json", "Idempotency-Key": key(row), "X-Hostguard-Turn": turn}
        raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        try:
            request = self._client.build_request("POST", f"{mind.url}/message", content=raw, headers=headers)
            # Not asyncio.timeout: anyio 3, after a slow connect, leaves a cancellation of its own counted in
            # the task, which it takes for a cancellation by others.
            answer = await asyncio.wait_for(self._client.send(request, stream=True), POST_S)
            async with aclosing(answer):  # the status decides, even if the body is lost
                said = await _start_of(answer)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Posted(Outcome.DOWN, f"{mind.url} accepts no connections ({error})")
        except TimeoutError:
            return Posted(Outcome.REFUSED, f"no answer within {POST_S:.0f} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Posted(Outcome.REFUSED, f"the connection broke: {error or type(error).__name__}")
        except Exception as error:  # such as a UnicodeError for a host name that cannot be encoded
            return Posted(Outcome.REFUSED, f"{mind.url} cannot be posted to: {named(error)}")
        if answer.is_success:
            return Posted(Outcome.TAKEN)
        return Posted(Outcome.REFUSED, f"HTTP {answer.status_code}{f': {said}' if said else ''}")

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.aclose()


async def _start_of(answer: httpx.Response) -> str:
    """The beginning of the body, as far as it arrives within BODY_S."""
    import httpx

    raw = bytearray()

    async def read() -> None:
        async for chunk in answer.aiter_raw():
            raw.extend(chunk)
            if len(raw) > REPLY_MAX:
                break

    with suppress(httpx.HTTPError, TimeoutError):
        await asyncio.wait_for(read(), BODY_S)
    return " ".join(raw[:200].decode(errors="replace").split())
