"""The summary, as JSON on the socket and as a live page on the web endpoint, as hostguard-api(7) has them.

What is stored is read in the queue's thread, and seldom; while the disk does not answer what was read before
is shown, with what is in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from socket import gethostname
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from hostguard.api.web import check_token
from hostguard.core.clock import now_ms
from hostguard.core.errors import bad_request
from hostguard.gate import control
from hostguard.store import requests
from hostguard.store.connection import Connection
from hostguard.store.writer import Unavailable
from hostguard.telemetry import summary, timeline_rows
from hostguard.telemetry.timeline import Incident, Point

if TYPE_CHECKING:
    from hostguard.daemon import Daemon

HOUR_MS = 3_600_000
FRESH_S = 10.0  # a page that refreshes itself costs a look at the database in this time
KEPT_S = 60.0  # what was read takes megabytes: it is let go unless it is asked for again
ANSWER_S = 3.0  # the page waits this long for the disk; who asked for one summary, as for any other answer
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the database has of a span, and when it was read, by time.monotonic()."""

    at: float
    ended: list[timeline_rows.Ended]
    points: list[Point]
    incidents: list[Incident]


class Reporter:
    """Makes reports."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stored: dict[int, _Stored] = {}  # by span in ms
        self._reading: dict[int, asyncio.Future[_Stored]] = {}

    async def report(self, span_ms: int, wait_s: float) -> summary.Json:
        """That of the last `span_ms`, after at most `wait_s` seconds of waiting for the disk."""
        await self._read(span_ms, wait_s)
        known = self._daemon.parts.recorder.timeline
        stored = self._stored.get(span_ms, _Stored(0, [], [], []))
        points = known.known()
        first = points[0].at if points else now_ms()
        incidents = {one.at: one for one in (*stored.incidents, *known.incidents)}
        now = now_ms()
        begin = summary.begin_of(now, span_ms)
        return await asyncio.to_thread(  # of 100,000 rows it takes long
            summary.make,
            self._daemon.status(),
            (row for row in stored.ended if row.ended_at >= begin),
            [*(point for point in stored.points if point.at < first), *points],
            [one for at, one in sorted(incidents.items()) if one.until is None or one.until >= begin],
            now,
            span_ms,
            complete=span_ms not in self._reading and span_ms in self._stored,
        )

    async def _read(self, span_ms: int, wait_s: float) -> None:
        stored = self._stored.get(span_ms)
        if stored is not None and time.monotonic() - stored.at < FRESH_S:
            return
        if span_ms not in self._reading:
            begin = summary.begin_of(now_ms(), span_ms)
            reading = asyncio.ensure_future(self._daemon.manager.queue.read(lambda db: _look(db, begin)))
            self._reading[span_ms] = reading
            reading.add_done_callback(lambda done: self._have(span_ms, done))
        await asyncio.wait([self._reading[span_ms]], timeout=wait_s)

    def _have(self, span_ms: int, done: asyncio.Future[_Stored]) -> None:
        del self._reading[span_ms]
        if done.cancelled() or isinstance(done.exception(), Unavailable):
            return
        stored = done.result()
        self._stored = {span_ms: stored}  # of one span: nobody looks at many
        asyncio.get_running_loop().call_later(KEPT_S, self._let_go, span_ms, stored)

    def _let_go(self, span_ms: int, stored: _Stored) -> None:
        if self._stored.get(span_ms) is stored and span_ms not in self._reading:
            del self._stored[span_ms]


def _look(db: Connection, begin: int) -> _Stored:
    ended = timeline_rows.ended(db, begin)
    return _Stored(
        time.monotonic(), ended, timeline_rows.points(db, begin), timeline_rows.incidents(db, begin)
    )


def routes(reporter: Reporter) -> list[Route]:
    """For api.make_app."""

    async def get(request: Request) -> Response:
        """GET /v1/report."""
        return JSONResponse(
            await reporter.report(_number(request, "since_s", 86_400) * 1000, requests.ANSWER_S)
        )

    return [Route("/v1/report", get)]


def pages(daemon: Daemon, reporter: Reporter) -> list[Route]:
    """For the web endpoint."""

    async def page(request: Request) -> Response:
        """GET /: the page."""
        from hostguard.telemetry.page import policy, render

        hours = _number(request, "hours", 24)
        steer = daemon.manager.policy.config.web_token is not None
        made = await reporter.report(hours * HOUR_MS, ANSWER_S)
        html = await asyncio.to_thread(render, made, gethostname(), hours, steer)
        return HTMLResponse(html, headers={"Content-Security-Policy": policy(live=True)})

    async def pause(request: Request) -> Response:
        """POST /v1/pause: of all minds."""
        await control.pause(daemon.manager, None, True)
        return JSONResponse({"paused": True})

    async def resume(request: Request) -> Response:
        """POST /v1/resume."""
        await control.pause(daemon.manager, None, False)
        return JSONResponse({"paused": False})

    async def stop(request: Request) -> Response:
        """POST /v1/turns/ID/stop."""
        turn = await control.stop(daemon.manager, request.path_params["id"])
        return JSONResponse({"id": turn.live.id})

    def acting(handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            check_token(request, daemon)
            return await handler(request)

        return checked

    return [
        Route("/", page),
        Route("/v1/pause", acting(pause), methods=["POST"]),
        Route("/v1/resume", acting(resume), methods=["POST"]),
        Route("/v1/turns/{id}/stop", acting(stop), methods=["POST"]),
    ]


async def preload() -> None:
    """Have what makes the page in memory, so that it is served while the disk does not answer."""

    def load() -> None:
        from hostguard.telemetry import page

        page.load()

    await asyncio.to_thread(load)


def _number(request: Request, name: str, default: int) -> int:
    """A span. Raises Problem."""
    given = request.query_params.get(name, str(default))
    most = summary.SPAN_MAX // (HOUR_MS if name == "hours" else 1000)
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and 1 <= int(given) <= most):
        raise bad_request(f"{name} must be a whole number from 1 to {most}")
    return int(given)
