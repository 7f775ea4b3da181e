"""/v1/events: the guard's events, as hostguard-api(7) describes them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hostguard.api.http import Stream, number, on
from hostguard.telemetry.events import BEHIND_MAX, RecentEvents


class EventStream:
    """The handler of this module."""

    def __init__(self, events: RecentEvents) -> None:
        self._events = events

    @on("GET", "/v1/events")
    async def _get(self, request: Request) -> Response:
        # Server-sent events; with ?follow=0 those in memory, and the end.
        last = request.headers.get("last-event-id")
        follow = request.query_params.get("follow") != "0"
        after = number(last, 0) if last is not None or not follow else None
        return Stream(_sent(self._events, after, follow), "text/event-stream")


async def _sent(events: RecentEvents, after: int | None, follow: bool) -> AsyncGenerator[bytes, None]:
    with events.reader() as queue:
        for event in events.kept(after) if after is not None else []:
            yield _sse(event)
        yield b": ready\n\n"
        while follow and queue.qsize() < BEHIND_MAX:
            yield _sse(await queue.get())


def _sse(event: dict[str, Any]) -> bytes:
    return f"id: {event['id']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
