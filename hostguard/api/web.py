"""The web endpoint on loopback TCP: the live page and what it can do. Off until configured.

Its report is at /v1/report, too: hostguard-api(7). The database is read for it in the queue's thread,
and seldom. While the disk does not answer, the report is made of what was read before and is in memory.

Any page that a browser on this host shows can send requests here. Two checks keep it out:
- Host must name loopback. A foreign name that was made to resolve to it (DNS rebinding) does not.
- Origin, if there is one, must be the endpoint's own. To change something takes a token, too, which no
  browser adds by itself.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from hostguard.api.app import make_app
from hostguard.api.http import Budget, bearer, on, problem
from hostguard.api.server import Listener, token_shown
from hostguard.api.volute import token_hash
from hostguard.core.clock import now_ms
from hostguard.core.errors import bad_request, not_allowed, unauthorized
from hostguard.gate.control import Control
from hostguard.gate.policy import Policy
from hostguard.store import requests
from hostguard.store.connection import Connection
from hostguard.store.writer import Queue, Unavailable
from hostguard.systemd.notify import Notifier
from hostguard.telemetry import summary, timeline_rows
from hostguard.telemetry.timeline import Incident, Point, Timeline

HOUR_MS = 3_600_000
FRESH_S = 10.0  # a page that refreshes itself costs one read of the database in this time
KEPT_S = 60.0  # what was read takes megabytes: it is dropped unless it is asked for again
FD_NAME = "web"  # of the socket, while the service manager keeps it
ANSWER_S = 3.0  # the page waits this long for the disk
# A port is not compared: through `ssh -L` it is another one.
OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.ASCII)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",  # a page has one of its own
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class WebEndpoint(Listener):
    """Serves the handlers of these objects while `web.listen` is configured."""

    def __init__(self, notifier: Notifier, budget: Budget, *objects: object) -> None:
        app, loss = OwnOrigin(make_app(budget, *objects)), "there are no pages and no metrics"
        super().__init__(app, "the web endpoint", "web.listen", loss, FD_NAME, notifier)

    async def _serve(self, sock: socket.socket) -> None:
        await asyncio.to_thread(_load_page)
        await super()._serve(sock)


def _load_page() -> None:
    """Have what makes the page in memory, so that it is served while the disk does not answer."""
    from hostguard.telemetry import page

    page.load()


class Pages:
    """The handlers of this module."""

    def __init__(self, policy: Policy, reports: Reports, control: Control) -> None:
        self._policy, self._reporter, self._control = policy, reports, control

    @on("GET", "/", reads=True)
    async def _page(self, request: Request) -> Response:
        from hostguard.telemetry.page import policy, render

        hours = span_of(request, "hours", 24)
        can_act = self._policy.config.web_token is not None
        report = await self._reporter.report(hours * HOUR_MS, ANSWER_S)
        html = await asyncio.to_thread(render, report, socket.gethostname(), hours, can_act)
        return HTMLResponse(html, headers={"Content-Security-Policy": policy(live=True)})

    @on("POST", "/v1/pause")
    async def _pause(self, request: Request) -> Response:
        check_token(request, self._policy)
        await self._control.pause(None, True)
        return JSONResponse({"paused": True})

    @on("POST", "/v1/resume")
    async def _resume(self, request: Request) -> Response:
        check_token(request, self._policy)
        await self._control.pause(None, False)
        return JSONResponse({"paused": False})

    @on("POST", "/v1/turns/{id}/stop")
    async def _stop(self, request: Request) -> Response:
        check_token(request, self._policy)
        return JSONResponse({"id": (await self._control.stop(request.path_params["id"])).live.id})


class OwnOrigin:
    """Refuses the requests of foreign pages, and adds HEADERS to each answer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, as ASGI has it."""

        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        fault = foreign(Headers(scope=scope))
        app = self._app if fault is None else problem(not_allowed(fault))
        await app(scope, receive, marked)


def foreign(headers: Headers) -> str | None:
    """Why a request counts as that of a foreign page; None if it does not."""
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    if len(hosts) != 1 or not OWN_HOST.fullmatch(hosts[0]):
        return "the Host header must name this host: 127.0.0.1, localhost or [::1]"
    if any(origin != f"http://{hosts[0]}" for origin in origins):
        return "requests from pages of another origin are refused"
    # Requests for an image have no Origin: https://www.w3.org/TR/fetch-metadata/. Links may lead here.
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if site in ("cross-site", "same-site") and mode != "navigate":
        return "requests from pages of another site are refused"
    return None


def check_token(request: Request, policy: Policy) -> None:
    """Raises Problem unless the request bears the configured token."""
    wanted = policy.config.web_token
    if wanted is None:
        raise not_allowed("the pages are read-only: no web.token is configured")
    token = bearer(request)
    if not token or not hmac.compare_digest(token_hash(token), wanted):
        raise unauthorized("this is not web.token")
    token_shown(request)


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the database has of a span, and when it was read, by time.monotonic()."""

    at: float
    ended: list[timeline_rows.Ended]
    points: list[Point]
    incidents: list[Incident]


class Reports:
    """Makes reports. `status` is the body of GET /v1/status."""

    def __init__(self, queue: Queue, timeline: Timeline, status: Callable[[], summary.Json]) -> None:
        self._queue, self._timeline, self._status = queue, timeline, status
        self._stored: dict[int, _Stored] = {}  # by span in ms
        self._reading: dict[int, asyncio.Future[_Stored]] = {}

    @on("GET", "/v1/report", reads=True)
    async def _get(self, request: Request) -> Response:
        span_ms = span_of(request, "since_s", 86_400) * 1000
        return JSONResponse(await self.report(span_ms, requests.ANSWER_S))

    async def report(self, span_ms: int, wait_s: float) -> summary.Json:
        """The report of the last `span_ms`, after at most `wait_s` seconds of waiting for the disk."""
        await self._read(span_ms, wait_s)
        stored = self._stored.get(span_ms, _Stored(0, [], [], []))
        points = self._timeline.known()
        first = points[0].at if points else now_ms()
        incidents = {one.at: one for one in (*stored.incidents, *self._timeline.incidents)}
        now = now_ms()
        begin = summary.begin_of(now, span_ms)
        return await asyncio.to_thread(  # of 100,000 rows it takes long
            summary.make,
            self._status(),
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
            reading = asyncio.ensure_future(self._queue.read(lambda db: _read(db, begin)))
            self._reading[span_ms] = reading
            reading.add_done_callback(lambda done: self._have(span_ms, done))
        await asyncio.wait([self._reading[span_ms]], timeout=wait_s)

    def _have(self, span_ms: int, done: asyncio.Future[_Stored]) -> None:
        del self._reading[span_ms]
        if done.cancelled() or isinstance(done.exception(), Unavailable):
            return
        stored = done.result()
        self._stored = {span_ms: stored}  # of one span: nobody looks at many
        asyncio.get_running_loop().call_later(KEPT_S, self._drop, span_ms, stored)

    def _drop(self, span_ms: int, stored: _Stored) -> None:
        if self._stored.get(span_ms) is stored and span_ms not in self._reading:
            del self._stored[span_ms]


def _read(db: Connection, begin: int) -> _Stored:
    ended, points = timeline_rows.ended(db, begin), timeline_rows.points(db, begin)
    return _Stored(time.monotonic(), ended, points, timeline_rows.incidents(db, begin))


def span_of(request: Request, name: str, default: int) -> int:
    """The span that the query names, in hours or seconds. Raises Problem."""
    given = request.query_params.get(name, str(default))
    most = summary.SPAN_MAX // (HOUR_MS if name == "hours" else 1000)
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and 1 <= int(given) <= most):
        raise bad_request(f"{name} must be a whole number from 1 to {most}")
    return int(given)
