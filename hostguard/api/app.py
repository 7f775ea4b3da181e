"""The API's app, and the handlers for the guard as a whole, as hostguard-api(7) describes them.

All handlers are thin: they check a request, call a part of the guard, and answer with what it returns.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hostguard import __version__
from hostguard.api.http import SMALL, Budget, Stream, json_object, number, on, problem
from hostguard.api.pressure import pressed
from hostguard.api.views import Json, Views, effective_cap
from hostguard.config.dump import as_dict
from hostguard.core.clock import Clock
from hostguard.core.errors import ConfigError, Problem, bad_request, internal, unavailable, unknown
from hostguard.core.settings import Level
from hostguard.core.signals import Pumped
from hostguard.delivery import message
from hostguard.gate.backlog import Backlog
from hostguard.gate.control import Control
from hostguard.gate.gate import Gate
from hostguard.gate.policy import Policy
from hostguard.linux.disk import Device
from hostguard.linux.limits import Verdict
from hostguard.linux.psi import OK
from hostguard.pressure.monitor import Monitor
from hostguard.store import requests
from hostguard.store.writer import Queue
from hostguard.systemd.notify import Notifier
from hostguard.telemetry.events import BEHIND_MAX, RecentEvents
from hostguard.telemetry.problems import listed, of_minds

LINE_S = 0.2  # each status line costs PID 1 a round of signals


async def _failed(request: Request, error: Exception) -> Response:
    """The answer to what a handler raised. A coroutine: Starlette runs a plain function in a thread."""
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND:
        error = unknown("path", request.url.path, request.app.state.missing(request.url.path))
    elif isinstance(error, HTTPException):
        error = bad_request(f"{request.method} is not allowed here")
    return problem(error if isinstance(error, Problem) else internal(repr(error)))


def _manual(path: str) -> str:
    return "see hostguard-api(7)"


def make_app(budget: Budget, *objects: object, missing: Callable[[str], str] = _manual) -> Starlette:
    """The ASGI application with the handlers that `on` marks in these objects, within the budget.

    `missing`: why another path is not there, in words.
    """
    routes = [
        Route(path, budget.around(getattr(one, name), marked.route[2]), methods=[marked.route[0]])
        for one in objects
        for name, marked in vars(type(one)).items()
        if hasattr(marked, "route")
        for path in marked.route[1]
    ]
    handled: Any = (Problem, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, Exception)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(handled, _failed))
    app.state.missing = missing
    return app


def blind(path: str, device: Device, read: str) -> str | None:
    """Why the disk is not watched, or has no limits, although `[device] path` wants it; None: it is and has.

    `read`: OK, or why its counters cannot be read.
    """
    if path == "none":
        return None
    if device.name is None:
        return f"unknown, so it is not watched and has no limits: {device.reason}"
    if device.node is None:
        return f"watched, but no limits can be set: {device.reason}"
    return None if read == OK else f"not watched: {read}"


@dataclass(eq=False)
class Status:
    """The whole guard on one page, and on one line."""

    _policy: Policy
    _gate: Gate
    _backlog: Backlog
    _queue: Queue
    _monitor: Monitor
    _views: Views
    _notifier: Notifier
    _clock: Clock
    reload_failed: bool = field(default=False, init=False)
    _line_due: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._started = self._clock.now().stamp

    def _problems(self, device: Device, minds: list[Json]) -> dict[str, str | None]:
        """What is wrong, by code; None: that is not."""
        trouble, no_systemd, failed, no_writes = self._queue.trouble, None, None, None
        path, read = self._policy.config.device_path, self._monitor.sampler.disk_reason
        if not self._gate.host().systemd:
            no_systemd = "does not answer: nothing starts until it does; running turns continue"
        if self.reload_failed:
            failed = "the last reload failed; the earlier configuration is in effect: hostguard config check"
        if trouble is not None:
            no_writes = f"{self._queue.path} cannot be written to: {trouble}"
            no_writes += "; nothing is accepted or started meanwhile"
        bugs = ", ".join(f"{bug} ({count} times)" for bug, count in self._queue.faults.items())
        lost = "a bug in hostguard: changes are not stored, and their rows stay as they were until a restart"
        return {
            "no_systemd": no_systemd, "reload_failed": failed, "no_writes": no_writes,
            "write_failed": f"{lost}. Please report: {bugs}" if bugs else None,
            "queue_damaged": self._queue.notice, "no_disk": blind(path, device, read),
            **of_minds(minds, self._monitor.frozen),
        }  # fmt: skip

    def page(
        self, device: Device, faults: Mapping[str, str | None], enforcement: Collection[Verdict]
    ) -> Json:
        """The body of GET /v1/status. `faults`: what other parts report, by code; None: no fault."""
        policy, host, minds, now = self._policy, self._gate.host(), self._views.minds(), self._clock.now()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "at": now.date,
            "started_at": now.date_of(self._started),
            "state": "no_systemd" if not host.systemd else "paused" if host.paused else "running",
            "turns": host.live,
            "cap": host.cap,
            "effective_cap": effective_cap(host),
            "pressure": pressed(self._monitor),
            "queued": len(self._backlog) + self._backlog.later,
            "held": len(self._backlog),
            "due_later": self._backlog.later,
            "paused_minds": policy.paused_minds(),
            "minds": minds,
            "live": self._views.turns(),
            "device": {"path": policy.config.device_path, **asdict(device)},
            "problems": listed({**faults, **self._problems(device, minds)}),
            "enforcement": [asdict(verdict) for verdict in enforcement],
        }

    def line(self) -> str:
        """One line for sd_notify: what `systemctl status` shows."""
        host, level, trouble = self._gate.host(), self._monitor.state.level, self._queue.trouble
        allowed, held = effective_cap(host), len(self._backlog)
        line = f"{host.live} turns, {held} held, cap unlimited"
        if host.cap is not None:
            line = f"{host.live}/{host.cap} turns, {held} held, cap {host.cap}"
        if level is not Level.CALM or allowed != host.cap:
            line += f"; {level}" + (f", {allowed} may run" if allowed != host.cap else "")
        if not host.systemd:
            line += "; no connection to systemd, nothing is started"
        elif trouble is not None:
            line += f"; the queue cannot be written to, nothing is started: {trouble}"
        elif host.paused:
            line += "; paused"
        path, monitor = self._policy.config.device_path, self._monitor
        if blind(path, monitor.device, monitor.sampler.disk_reason):
            line += "; the disk is not watched or limited: hostguard status"
        return f"{line}; the last reload failed: hostguard config check" if self.reload_failed else line

    def changed(self, _: Pumped) -> None:
        """Many changes within LINE_S make one status line."""
        if not self._line_due:
            self._line_due = True
            asyncio.get_running_loop().call_later(LINE_S, self._send_line)

    def _send_line(self) -> None:
        self._line_due = False
        self._notifier.status(self.line())


@dataclass(eq=False)
class Operator:
    """The handlers of this module. `reload` reads the configuration again and raises ConfigError."""

    _policy: Policy
    _control: Control
    _events: RecentEvents
    _status: Callable[[], Json]
    _reload: Callable[[], Awaitable[None]]

    @on("GET", "/v1/status")
    async def _get_status(self, request: Request) -> Response:
        return JSONResponse(self._status())

    @on("POST", "/v1/pause")
    async def _pause(self, request: Request) -> Response:
        return await self._set_pause(request, True)

    @on("POST", "/v1/resume")
    async def _resume(self, request: Request) -> Response:
        return await self._set_pause(request, False)

    async def _set_pause(self, request: Request, on: bool) -> Response:
        body = await self._body(request, optional=True)
        message.known_fields(body, message.PAUSE_FIELDS)
        changed = await self._control.pause(message.one_or_all(body), on)
        paused = self._policy.paused_minds()
        return JSONResponse({"host": self._policy.paused(), "paused": paused, "changed": changed})

    @on("GET", "/v1/limits")
    async def _limits(self, request: Request) -> Response:
        return JSONResponse({"limits": self._policy.limits()})

    @on("PATCH", "/v1/limits")
    async def _set_limit(self, request: Request) -> Response:
        body = await self._body(request)
        message.known_fields(body, message.LIMIT_FIELDS)
        name, mind = message.text(body, "name", message.KEY_MAX) or "", message.one_or_all(body)
        runtime = message.flag(body, "runtime")
        await self._control.set_limit(name, mind, body.get("value"), runtime)
        return await self._limits(request)

    @on("GET", "/v1/config")
    async def _config(self, request: Request) -> Response:
        config = self._policy.config
        return JSONResponse(as_dict(config) | {"sources": list(config.sources)})

    @on("POST", "/v1/reload")
    async def _post_reload(self, request: Request) -> Response:
        reload = asyncio.ensure_future(self._reload())
        await asyncio.wait([reload], timeout=requests.ANSWER_S)
        if not reload.done():
            reload.add_done_callback(lambda late: late.cancelled() or late.exception())  # the journal has it
            raise unavailable("the device does not answer; the configuration is read once it does")
        try:
            reload.result()
        except ConfigError as error:
            raise bad_request(str(error)) from error
        return JSONResponse({"sources": list(self._policy.config.sources)})

    @on("GET", "/v1/events")
    async def _get_events(self, request: Request) -> Response:
        # Server-sent events; with ?follow=0 those in memory, and the end.
        last = request.headers.get("last-event-id")
        follow = request.query_params.get("follow") != "0"
        after = number(last, 0) if last is not None or not follow else None
        return Stream(_sent(self._events, after, follow), "text/event-stream")

    async def _body(self, request: Request, optional: bool = False) -> dict[str, Any]:
        return await json_object(request, SMALL, optional=optional)


async def _sent(events: RecentEvents, after: int | None, follow: bool) -> AsyncGenerator[bytes, None]:
    with events.reader() as queue:
        for event in events.kept(after) if after is not None else []:
            yield _sse(event)
        yield b": ready\n\n"
        while follow and queue.qsize() < BEHIND_MAX:
            yield _sse(await queue.get())


def _sse(event: dict[str, Any]) -> bytes:
    return f"id: {event['id']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
