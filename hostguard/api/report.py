"""/v1/report: the summary of a span, as hostguard-api(7) describes it.

The database is read in the queue's thread, and seldom. While the disk does not answer, the summary is made
of what was read before and of what is in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.api.http import on
from hostguard.core.clock import now_ms
from hostguard.core.errors import bad_request
from hostguard.store import requests
from hostguard.store.connection import Connection
from hostguard.store.writer import Queue, Unavailable
from hostguard.telemetry import summary, timeline_rows
from hostguard.telemetry.timeline import Incident, Point, Timeline

HOUR_MS = 3_600_000
FRESH_S = 10.0  # a page that refreshes itself costs one read of the database in this time
KEPT_S = 60.0  # what was read takes megabytes: it is dropped unless it is asked for again


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
