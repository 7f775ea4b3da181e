"""/v1/turns and /v1/run: live and ended turns, and one for the caller, as hostguard-api(7) describes it."""

from __future__ import annotations

import json
from asyncio import Future
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.api.http import SMALL, Stream, json_object, on
from hostguard.api.server import peer
from hostguard.api.views import Views, ended_turn
from hostguard.core.clock import now_ms
from hostguard.core.errors import conflict, not_allowed, unknown
from hostguard.core.model import Row
from hostguard.delivery import message
from hostguard.delivery.acceptor import Acceptor
from hostguard.gate.control import Control, DeliveryControl
from hostguard.gate.policy import Policy
from hostguard.gate.run_clients import RunClient, RunClients
from hostguard.gate.waits import Waits
from hostguard.store import deliveries, requests
from hostguard.store.writer import Queue
from hostguard.turns.live import Live, Turn
from hostguard.turns.scopes import Scopes


def _stopping(turn: Turn) -> dict[str, Any]:
    row = turn.delivery
    return {
        "id": turn.live.id,
        "unit": turn.live.unit,
        "mind": turn.live.mind,
        "delivery": row.id if row is not None else None,
        "resident": turn.resident is not None,
    }


@dataclass(eq=False)
class Turns:
    """The handlers of this module."""

    _policy: Policy
    _acceptor: Acceptor
    _queue: Queue
    _live: Live
    _scopes: Scopes
    _run_clients: RunClients
    _waits: Waits
    _control: Control
    _delivery_control: DeliveryControl
    _views: Views

    @on("GET", "/v1/turns")
    async def _list(self, request: Request) -> Response:
        return JSONResponse({"turns": self._views.turns()})

    @on("GET", "/v1/turns/{id}")
    async def _one(self, request: Request) -> Response:
        # A live turn, or what is stored of an ended one.
        name = request.path_params["id"]
        live = self._live.by_id(name)
        if live is not None:
            return JSONResponse(self._views.turn(live))
        row = await requests.read(self._queue, lambda db: deliveries.by_turn(db, name))
        if row is None:
            raise unknown("turn", name, "hostguard turns lists the live ones")
        return JSONResponse(ended_turn(row))

    @on("POST", "/v1/turns/{id}/stop")
    async def _stop(self, request: Request) -> Response:
        id_, body = request.path_params["id"], await json_object(request, SMALL, optional=True)
        message.known_fields(body, message.STOP_FIELDS)
        if (within := body.get("interrupt_s")) is not None:
            return await self._interrupt(id_, message.interrupt_s(within))
        turn = await self._control.stop(id_)
        return JSONResponse(_stopping(turn))

    async def _interrupt(self, id_: str, within: float) -> Response:
        """Send a message into the turn that asks the mind to end it; it is not sent after `within` s."""
        turn, now = self._live.by_id(id_), now_ms()
        if turn is None:
            raise unknown("turn", id_, "hostguard turns lists the live ones")
        if not turn.live.takes_input:
            raise conflict(f"turn {id_} takes no messages now, so it can only be stopped by force")
        row = (await self._acceptor.store(message.stop(turn.live, now, now + int(within * 1000)))).rows[0]
        return JSONResponse({**_stopping(turn), "message": row.id})

    @on("POST", "/v1/run")
    async def _run(self, request: Request) -> Response:
        # Wait for a turn, then have the calling process moved into its scope.
        pid, uid = peer(request)
        config = self._policy.config
        body = await json_object(request, SMALL)
        new = message.run(body, config, now_ms(), uid)
        if self._run_clients.pid_waits(pid) or self._scopes.owns(pid):
            raise conflict(
                f"process {pid} already waits for a turn or has one: leave out the inner hostguard run"
            )
        try:
            caller = RunClient(pid, uid)
        except OSError as error:
            raise not_allowed(f"process {pid} cannot be watched: {error.strerror}") from error
        try:
            accepted = await self._acceptor.store(new, caller)
            row = accepted.rows[0]
            if not accepted.created:
                self._delivery_control.reattach(row, caller)
        except BaseException:
            caller.close()
            raise
        return Stream(self._events(row.row, caller), "application/x-ndjson")

    async def _events(self, row: Row, caller: RunClient) -> AsyncGenerator[bytes, None]:
        def refuse(never: Future[tuple[str, ...]]) -> None:
            if not never.cancelled():
                self._delivery_control.refuse_run(row, never.result())

        try:
            with self._waits.begun(caller.pid, row) as never:
                never.add_done_callback(refuse)
                while True:
                    event = await caller.events.get()
                    yield json.dumps(event).encode() + b"\n"
                    if event["event"] != "held":
                        return
        finally:
            caller.close()
            self._delivery_control.client_left(row.id, caller)
