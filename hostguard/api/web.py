"""What the HTTP apps share: a body is read with a limit, and a Problem is shown as RFC 9457 has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse

from hostguard.core.errors import Problem, bad_request, internal, not_allowed, too_large, unknown

T = TypeVar("T")


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
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return body


def peer(request: Request) -> tuple[int, int]:
    """(pid, uid) of the caller: see server.PeerProtocol. Raises Problem."""
    client = request.client
    if client is None or not client.host.startswith("uid="):
        raise not_allowed("only a local caller on the unix socket can do this")
    return client.port, int(client.host.removeprefix("uid="))


def body_max(payload_max: int) -> int:
    """The most bytes that a body around a payload can have: of ASCII escapes it takes six for one."""
    return 6 * payload_max + 4096


def problem(error: Any) -> JSONResponse:
    """The answer that tells a Problem."""
    body = {
        "type": f"urn:hostguard:{error.code}",
        "title": error.code.replace("_", " "),
        "status": error.status,
        "code": error.code,
    }
    body["detail"] = error.detail.encode(errors="replace").decode()
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, error.status, headers, media_type="application/problem+json")


async def until_gone(request: Request, queue: asyncio.Queue[T]) -> AsyncIterator[T]:
    """What comes into the queue until the client leaves: newer Starlette does not look for that itself."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(left())
    item: asyncio.Future[T] | None = None
    try:
        while True:
            item = asyncio.ensure_future(queue.get())
            await asyncio.wait([item, gone], return_when=asyncio.FIRST_COMPLETED)
            if not item.done():
                return
            yield item.result()
    finally:
        gone.cancel()
        if item is not None:
            item.cancel()


# For Starlette: whatever goes wrong is told as a Problem.
EXCEPTION_HANDLERS: dict[Any, Any] = {
    Problem: lambda _, error: problem(error),
    404: lambda request, _: problem(unknown("path", request.url.path, "see hostguard-api(7)")),
    405: lambda request, _: problem(bad_request(f"{request.method} is not possible here")),
    Exception: lambda _, error: problem(internal(error)),
}
