"""What the handlers share: how requests are read, and answered.

A fault that a caller is to know of is a Problem, and is answered as RFC 9457 has it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.core.errors import Problem, bad_request, too_large, unknown
from hostguard.core.payload import parsed
from hostguard.core.text import whole

Handler = TypeVar("Handler", bound=Callable[..., Any])


SELDOM_S = 60.0  # what anybody can cause must not fill the journal


class Seldom:
    """Logs one sort of mishap at most once in SELDOM_S, and then how many there were meanwhile."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last = -SELDOM_S
        self._more = 0

    def warn(self, text: str) -> None:
        """It happened again."""
        if time.monotonic() - self._last < SELDOM_S:
            self._more += 1
            return
        more, self._more, self._last = self._more, 0, time.monotonic()
        self._logger.warning("%s%s", text, f" ({more} more like it since the last such line)" if more else "")


def on(method: str, path: str) -> Callable[[Handler], Handler]:
    """Mark a method as the handler of a route."""

    def mark(handler: Handler) -> Handler:
        handler.route = method, path  # type: ignore[attr-defined]
        return handler

    return mark


class Stream(Response):
    """An answer in pieces, until there are no more or the client leaves."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""

        async def left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        async def all_pieces() -> None:
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})

        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        works = asyncio.ensure_future(all_pieces()), asyncio.ensure_future(left())
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for work in works:
                work.cancel()
            sent, _ = await asyncio.gather(*works, return_exceptions=True)
            await self._pieces.aclose()
        if isinstance(sent, Exception):
            raise sent


async def has_left(request: Request) -> bool:
    """True if the client of a request, whose body was read, has left."""
    leaving = asyncio.ensure_future(request.receive())
    await asyncio.sleep(0)
    if not leaving.done():
        leaving.cancel()
    return leaving.done()


async def json_object(request: Request, most: int, *, optional: bool = False) -> dict[str, Any]:
    """The body, a JSON object of at most `most` bytes; `optional`: none is an empty one. Raises Problem."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > most:
            raise too_large(f"the body has more than {most} bytes")
    if optional and not raw:
        return {}
    try:
        body = parsed(raw)
    except ValueError as error:
        raise bad_request(f"the body is {error}") from error
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return body


def bearer(request: Request) -> str:
    """The token that a request bears, or ""."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def number(value: str | None, default: int) -> int:
    """A whole number of a query; None or "": `default`. Raises Problem."""
    if value is None or value == "":
        return default
    try:
        return whole(value)
    except ValueError as error:
        raise bad_request(str(error)) from None


def row_id(request: Request) -> int:
    """The delivery that a request's path names. Raises Problem."""
    text = request.path_params["id"]
    try:
        return whole(text)
    except ValueError:
        raise unknown("delivery", text, "hostguard queue lists those that wait") from None


def seconds(value: str) -> float:
    """A number of seconds of a query. Raises Problem."""
    with suppress(ValueError):
        if (found := float(value)) >= 0:
            return found
    raise bad_request(f"{value!r:.100} is not a number of seconds")


def body_max(payload_max: int) -> int:
    """The most bytes that a body around a payload can have: of ASCII escapes it takes six for one."""
    return 6 * payload_max + 4096


def problem(error: Problem) -> JSONResponse:
    """The answer for a Problem."""
    body = {
        **error.more,
        "type": f"urn:hostguard:{error.code}",
        "title": error.code.replace("_", " "),
        "status": error.status,
        "code": error.code,
        "detail": error.detail.encode(errors="replace").decode(),
    }
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, error.status, headers, media_type="application/problem+json")
