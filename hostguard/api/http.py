"""What the handlers share: how requests are read, and answered.

A fault that a caller is to know of is a Problem, and is answered as RFC 9457 has it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.core.errors import Problem, bad_request, busy, too_large, unavailable, unknown
from hostguard.core.payload import parsed
from hostguard.core.text import whole

Handler = TypeVar("Handler", bound=Callable[..., Any])


SELDOM_S = 60.0  # what anybody can cause must not fill the journal
# Bodies and answers of up to SMALL bytes need no room: connections are limited, and a `done` must not wait.
SMALL = 16 << 10
# Bytes in flight, of one user or mind and in all: enough for a body of the default payload_max. While it is
# parsed and stored it takes up to five times as much, and an answer three times.
OWN_MAX, ALL_MAX = 4 << 20, 8 << 20
ANSWER = 1 << 20  # taken for one that is not made yet: so few are made at a time
ROOT = "uid=0"  # who can do more than this, has room for small and large requests
BODY_S = 10.0  # for a body to come
ROOM_S = 15.0  # a body waits so long for room: longer than the ones before it may take to come
# In the scope of a request:
BUDGET = "hostguard.budget"
UID = "hostguard.uid"  # on an endpoint, what says whose the connection is, None if that is not known


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


def on(method: str, *paths: str, reads: bool = False) -> Callable[[Handler], Handler]:
    """Mark a method as the handler of these routes. `reads`: its answer may be large: few at a time."""

    def mark(handler: Handler) -> Handler:
        handler.route = method, paths, reads  # type: ignore[attr-defined]
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


class Room:
    """Bytes in flight: those of each owner, and of all. What is larger than an owner may have goes alone.

    Who waits longest is served first, but those with the least in flight before all others.
    """

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()
        self._waiting: list[tuple[str, int, asyncio.Future[None]]] = []

    async def take(self, owner: str, size: int, wait_s: float) -> None:
        """Have `size` bytes until `give`. Raises Problem if they do not come free within `wait_s`."""
        if self._fits(owner, size) and all(owner != other for other, _, _ in self._waiting):
            self._used[owner] += size
            return
        waits = (owner, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waits)
        try:
            await asyncio.wait_for(waits[2], wait_s)
        except BaseException as error:
            if waits[2].done() and not waits[2].cancelled():
                self.give(owner, size)
            if not isinstance(error, TimeoutError):
                raise
            own, used = self._used[owner], self._used.total()
            text = f"{owner} has {own} bytes in requests that are not finished, all callers have {used}"
            more = f"{OWN_MAX} and {ALL_MAX} are allowed: send or read less at a time"
            raise busy(f"{text}, and this one has {size}; {more}") from None
        finally:
            with suppress(ValueError):
                self._waiting.remove(waits)

    def give(self, owner: str, size: int) -> None:
        """Give back what was taken; less than 0: take more, whatever there is."""
        self._used[owner] -= size
        if not self._used[owner]:
            del self._used[owner]
        for waits in sorted(self._waiting, key=lambda one: self._used[one[0]]):
            if not waits[2].done() and self._fits(*waits[:2]):
                self._used[waits[0]] += waits[1]
                waits[2].set_result(None)

    def _fits(self, owner: str, size: int) -> bool:
        own, used = self._used[owner], self._used.total()
        mine = not own or own + size <= OWN_MAX
        return mine and (owner == ROOT or not used or used + size <= ALL_MAX)


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """What requests of all callers may take: bodies until they are answered, and answers until they are read.

    Answers have room of their own: who does not read them sends on. Large bodies are parsed one at a time.
    """

    bodies: Room = field(default_factory=Room)
    answers: Room = field(default_factory=Room)
    parser: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "parser"))

    def around(self, handler: Callable[[Request], Awaitable[Response]], reads: bool) -> Callable[..., Any]:
        """The handler within this budget. `reads`: as `on` has it."""

        async def handle(request: Request) -> Response:
            mine = _Share(self, request)
            request.scope[BUDGET] = mine
            with ExitStack() as failed:
                failed.callback(mine.give_back)
                if reads:
                    await room_to_answer(request)
                answer = await handler(request)
                mine.answered(len(answer.body))
                if mine.answer:
                    failed.pop_all()
                    return _Large(answer, mine)
            return answer

        return handle


class _Share:
    """What one request has of the budget: bytes of its body, with their owner, and of its answer."""

    def __init__(self, budget: Budget, request: Request) -> None:
        self.budget, self._request, self.answer = budget, request, 0
        self.body: tuple[str, int] | None = None

    @cached_property
    def caller(self) -> str:
        """The caller's user. Of an endpoint the kernel is asked, so only for what takes room."""
        uid = self._request.scope[UID]() if UID in self._request.scope else None
        host = self._request.client.host if self._request.client is not None else ""
        return host if uid is None else f"uid={uid}"

    def answered(self, size: int) -> None:
        """The body is not needed any more, and this is the size of the answer."""
        if self.body is not None:
            self.budget.bodies.give(*self.body)
            self.body = None
        before, self.answer = self.answer, size if size > SMALL else 0
        if before != self.answer:
            self.budget.answers.give(self.caller, before - self.answer)

    def give_back(self) -> None:
        """The request is over."""
        self.answered(0)


class _Large(Response):
    """An answer that keeps its room until the client has read it."""

    def __init__(self, answer: Response, share: _Share) -> None:
        self._answer, self._share = answer, share

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        try:
            await self._answer(scope, receive, send)
        finally:
            self._share.give_back()


async def room_to_answer(request: Request) -> None:
    """Wait for room for the answer, before it is made. Raises Problem."""
    share: _Share = request.scope[BUDGET]
    await share.budget.answers.take(share.caller, ANSWER, ROOM_S)
    share.answer = ANSWER


async def json_object(
    request: Request, most: int, *, optional: bool = False, owner: str = "", within: float = BODY_S
) -> dict[str, Any]:
    """The body, a JSON object of at most `most` bytes that comes `within` seconds. Raises Problem.

    `optional`: none is an empty one. `owner`: whose budget it takes, if not that of the caller's user.
    """
    share: _Share = request.scope[BUDGET]
    declared = int(request.headers.get("content-length", 0))
    fault = too_large(f"the body has more than {most} bytes, which is the most")
    if declared > most:
        raise fault
    raw, size, now = bytearray(), declared or most, asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(within) as limit:
            async for chunk in request.stream():
                if len(raw) + len(chunk) > most:
                    raise fault
                if len(raw) <= SMALL < len(raw) + len(chunk):
                    limit.reschedule(None)
                    owner = owner or share.caller
                    await share.budget.bodies.take(owner, size, ROOM_S)
                    share.body = owner, size
                    limit.reschedule(now() + within)
                raw += chunk
    except TimeoutError:
        # Not 408: a mind does not try its `done` again after a 4xx.
        raise unavailable(f"the body did not come within {within:g} s") from None
    if optional and not raw:
        return {}
    if len(raw) > SMALL:
        body, said = await asyncio.get_running_loop().run_in_executor(share.budget.parser, _parse, raw)
    else:
        body, said = _parse(raw)
    if said:
        raise bad_request(f"the body is {said}")
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return body


def _parse(raw: bytearray) -> tuple[Any, str]:
    """The value of JSON, and why it has none, or "". The bytes are not needed any more."""
    try:
        return parsed(raw), ""
    except ValueError as error:
        return None, str(error)
    finally:
        raw.clear()


def sender(request: Request) -> str:
    """Whose limits apply to what a caller of the unix socket sends; "": it is root."""
    share: _Share = request.scope[BUDGET]
    return "" if share.caller == ROOT else share.caller


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
    """The most bytes that a body around a payload can have: any text has three times its bytes in ASCII."""
    return 3 * payload_max + 4096


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
