"""The HTTP API, as hostguard-api(7) describes it. Thin: checks what comes in, calls, shows what comes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hostguard.api import metrics, pressure, report, schedules, views
from hostguard.api import minds as api_minds
from hostguard.api.http import EXCEPTION_HANDLERS, Stream, body_max, json_object, peer
from hostguard.config.dump import as_dict
from hostguard.config.load import ConfigError
from hostguard.core.clock import now_ms
from hostguard.core.errors import bad_request, conflict, not_allowed, unavailable, unknown
from hostguard.core.model import State
from hostguard.delivery import message as intake
from hostguard.gate import control
from hostguard.gate.dispatcher import Dispatcher
from hostguard.gate.run_clients import RunClient
from hostguard.linux.process import home_of
from hostguard.store import deliveries, requests
from hostguard.telemetry.events import BEHIND_MAX

if TYPE_CHECKING:
    from hostguard.daemon import Daemon

LIST_MAX = 1000  # rows in one answer
WAIT_MAX_S = 60.0
STATES = tuple(State)

Handler = Callable[[Request], Awaitable[Response]]


def make_app(daemon: Daemon) -> Starlette:
    """The ASGI application."""
    api = Api(daemon)
    routes = [
        Route("/v1/deliveries", api.send, methods=["POST"]),
        Route("/v1/deliveries", api.list_deliveries),
        Route("/v1/deliveries/{id:int}", api.delivery),
        Route("/v1/deliveries/{id:int}/why", api.why),
        Route("/v1/deliveries/{id:int}/cancel", api.cancel, methods=["POST"]),
        Route("/v1/deliveries/{id:int}/retry", api.retry, methods=["POST"]),
        Route("/v1/deliveries/{id:int}/drop", api.drop, methods=["POST"]),
        Route("/v1/turns", api.turns),
        Route("/v1/turns/{id}", api.turn),
        Route("/v1/turns/{id}/stop", api.stop, methods=["POST"]),
        Route("/v1/run", api.run, methods=["POST"]),
        Route("/v1/pause", api.pause, methods=["POST"]),
        Route("/v1/resume", api.resume, methods=["POST"]),
        Route("/v1/limits", api.limits),
        Route("/v1/limits", api.set_limit, methods=["PATCH"]),
        Route("/v1/minds", api.minds),
        Route("/v1/status", api.status),
        *pressure.routes(daemon),
        *metrics.routes(daemon),
        *report.routes(daemon.reporter),
        Route("/v1/events", api.events),
        Route("/v1/config", api.config),
        Route("/v1/reload", api.reload, methods=["POST"]),
        *api_minds.routes(daemon),
        *schedules.routes(daemon),
    ]
    return Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)


class Api:
    """The handlers; each answers one route."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.manager: Dispatcher = daemon.manager
        self.acceptor = daemon.acceptor

    async def send(self, request: Request) -> Response:
        """POST /v1/deliveries."""
        body = await self._body(request)
        message = intake.message(body, self.manager.policy.config, now_ms())
        accepted = await self.acceptor.send(message)
        rows = [views.delivery(self.manager, row) for row in accepted.rows]
        return JSONResponse({"deliveries": rows, "refused": accepted.full}, 201 if accepted.created else 200)

    async def list_deliveries(self, request: Request) -> Response:
        """GET /v1/deliveries."""
        query = request.query_params
        wanted = query.get("state", "")
        states = STATES if wanted == "all" else tuple(s for s in wanted.split(",") if s)
        for state in states:
            if state not in STATES:
                raise bad_request(f"there is no state {state}; states: all, {', '.join(STATES)}")
        limit = min(_number(query.get("limit"), 100), LIST_MAX)
        after = _number(query.get("after"), 0)
        mind = query.get("mind")
        rows = await requests.read(
            self.manager.queue, lambda db: deliveries.select(db, states, mind, after, limit)
        )
        total = len(self.manager.backlog) + self.manager.backlog.later
        return JSONResponse(
            {"deliveries": [views.delivery(self.manager, row) for row in rows], "total_queued": total}
        )

    async def delivery(self, request: Request) -> Response:
        """GET /v1/deliveries/ID."""
        id_ = request.path_params["id"]
        row = await control.delivery(self.manager, id_)
        wait = request.query_params.get("wait_s")
        if wait is not None and not row.state.final:
            with self.manager.ledger.waiters.waiter(id_) as final, self._waiting(request, id_):
                # Again, now that an end is not missed any more.
                if not (await control.delivery(self.manager, id_)).state.final:
                    await control.refuse_deadlock(self.manager, id_)
                    await asyncio.wait([final], timeout=min(_seconds(wait), WAIT_MAX_S))
        found = await requests.read(self.manager.queue, lambda db: deliveries.with_payload(db, id_))
        if found is None:
            raise unknown("delivery", id_, "it was dropped from the history")
        return JSONResponse(views.delivery(self.manager, *found))

    async def why(self, request: Request) -> Response:
        """GET /v1/deliveries/ID/why."""
        row = await control.delivery(self.manager, request.path_params["id"])
        return JSONResponse(views.why(self.manager, row))

    async def cancel(self, request: Request) -> Response:
        """POST /v1/deliveries/ID/cancel."""
        row = await control.cancel(self.manager, request.path_params["id"])
        return JSONResponse(views.delivery(self.manager, row))

    async def retry(self, request: Request) -> Response:
        """POST /v1/deliveries/ID/retry."""
        row = await control.retry(self.manager, request.path_params["id"])
        return JSONResponse(views.delivery(self.manager, row))

    async def drop(self, request: Request) -> Response:
        """POST /v1/deliveries/ID/drop."""
        row = await control.drop(self.manager, request.path_params["id"])
        return JSONResponse(views.delivery(self.manager, row))

    async def turns(self, request: Request) -> Response:
        """GET /v1/turns."""
        return JSONResponse({"turns": views.live_turns(self.manager)})

    async def turn(self, request: Request) -> Response:
        """GET /v1/turns/ID: a live turn, or what is stored of an ended one."""
        name = request.path_params["id"]
        live = self.manager.runner.live.by_id(name)
        if live is not None:
            return JSONResponse(views.turn(self.manager, live))
        row = await requests.read(self.manager.queue, lambda db: deliveries.by_turn(db, name))
        if row is None:
            raise unknown("turn", name, "hostguard turns lists the live ones")
        return JSONResponse(views.ended_turn(row))

    async def stop(self, request: Request) -> Response:
        """POST /v1/turns/ID/stop."""
        turn = await control.stop(self.manager, request.path_params["id"])
        return JSONResponse({"id": turn.live.id, "unit": turn.live.unit})

    async def pause(self, request: Request) -> Response:
        """POST /v1/pause."""
        return await self._set_pause(request, True)

    async def resume(self, request: Request) -> Response:
        """POST /v1/resume."""
        return await self._set_pause(request, False)

    async def _set_pause(self, request: Request, on: bool) -> Response:
        body = await self._body(request, optional=True)
        intake.known_fields(body, intake.PAUSE_FIELDS)
        await control.pause(self.manager, intake.one_or_all(body), on)
        policy = self.manager.policy
        return JSONResponse({"host": policy.paused(), "paused": policy.paused_minds()})

    async def limits(self, request: Request) -> Response:
        """GET /v1/limits."""
        return JSONResponse({"limits": self.manager.policy.limits()})

    async def set_limit(self, request: Request) -> Response:
        """PATCH /v1/limits."""
        body = await self._body(request)
        intake.known_fields(body, intake.LIMIT_FIELDS)
        await control.set_limit(
            self.manager,
            intake.text(body, "name", intake.KEY_MAX) or "",
            intake.one_or_all(body),
            body.get("value"),
            body.get("runtime") is True,
        )
        return await self.limits(request)

    async def minds(self, request: Request) -> Response:
        """GET /v1/minds."""
        return JSONResponse({"minds": views.minds(self.manager)})

    async def status(self, request: Request) -> Response:
        """GET /v1/status."""
        return JSONResponse(self.daemon.status())

    async def config(self, request: Request) -> Response:
        """GET /v1/config."""
        config = self.manager.policy.config
        return JSONResponse(as_dict(config) | {"sources": list(config.sources)})

    async def reload(self, request: Request) -> Response:
        """POST /v1/reload."""
        reload = asyncio.ensure_future(self.daemon.reload())
        await asyncio.wait([reload], timeout=requests.ANSWER_S)
        if not reload.done():
            reload.add_done_callback(lambda late: late.cancelled() or late.exception())  # the journal has it
            raise unavailable("the device does not answer; the configuration is read once it does")
        try:
            reload.result()
        except ConfigError as error:
            raise bad_request(str(error)) from error
        return JSONResponse({"sources": list(self.manager.policy.config.sources)})

    async def events(self, request: Request) -> Response:
        """GET /v1/events: server-sent events; with ?follow=0 those in memory, and the end."""
        last = request.headers.get("last-event-id")
        follow = request.query_params.get("follow") != "0"
        after = _number(last, 0) if last is not None or not follow else None

        async def stream() -> AsyncGenerator[bytes, None]:
            with self.daemon.parts.recent.reader() as queue:
                for event in self.daemon.parts.recent.kept(after) if after is not None else []:
                    yield _sse(event)
                yield b": ready\n\n"
                if not follow:
                    return
                while True:
                    yield _sse(await queue.get())
                    if queue.qsize() >= BEHIND_MAX:
                        return

        return Stream(stream(), "text/event-stream")

    async def run(self, request: Request) -> Response:
        """POST /v1/run: wait for a turn, then have the calling process moved into its scope."""
        pid, uid = peer(request)
        new = intake.run(await self._body(request), self.manager.policy.config, now_ms())
        if self.manager.callers.pid_waits(pid) or self.manager.runner.owns(pid):
            raise conflict(f"process {pid} waits for a turn, or has one, already")
        try:
            caller = RunClient(pid, uid)
        except OSError as error:
            raise not_allowed(f"process {pid} cannot be followed: {error.strerror}") from error
        try:
            accepted = await self.acceptor.store(new, caller)
            row = accepted.rows[0]
            if not accepted.created:
                self.acceptor.reattach(row, caller)
        except BaseException:
            caller.close()
            raise
        with self._waiting(request, row.id):
            try:
                await control.refuse_deadlock(self.manager, row.id)
            except BaseException:
                caller.close()
                self.acceptor.caller_left(row.id, caller)
                raise
        return Stream(self._wait_turn(request, row.id, caller), "application/x-ndjson")

    def _waiting(self, request: Request, id_: int) -> AbstractContextManager[None]:
        """While this lasts, the turn that the caller belongs to, if any, counts as waiting for the row."""
        home = home_of(peer(request)[0])
        mine = home.name if home is not None and home.name in self.manager.runner.live.turns else None
        return self.manager.ledger.waiters.turn(mine, id_)

    async def _wait_turn(self, request: Request, id_: int, caller: RunClient) -> AsyncGenerator[bytes, None]:
        try:
            with self._waiting(request, id_):
                while True:
                    event = await caller.events.get()
                    yield json.dumps(event).encode() + b"\n"
                    if event["event"] != "held":
                        return
        finally:
            caller.close()
            self.acceptor.caller_left(id_, caller)

    async def _body(self, request: Request, optional: bool = False) -> dict[str, Any]:
        most = body_max(self.manager.policy.config.payload_max)
        return await json_object(request, most, optional=optional)


def _sse(event: dict[str, Any]) -> bytes:
    return f"id: {event['id']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _number(value: str | None, default: int) -> int:
    if value is None or value == "":
        return default
    if not value.isdecimal() or len(value) > 18:
        raise bad_request(f"{value!r} is not a number")
    return int(value)


def _seconds(value: str) -> float:
    with suppress(ValueError):
        if (seconds := float(value)) >= 0:
            return seconds
    raise bad_request(f"{value!r} is not a number of seconds")
