"""/v1/deliveries: send, list and change deliveries, as hostguard-api(7) describes it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.api.http import body_max, json_object, number, on, room_to_answer, row_id, seconds, sender
from hostguard.api.server import peer
from hostguard.api.views import Views
from hostguard.core.clock import now_ms
from hostguard.core.errors import Problem, bad_request, conflict, unknown
from hostguard.core.model import Delivery, State
from hostguard.delivery import message
from hostguard.delivery.acceptor import Acceptor
from hostguard.gate.backlog import Backlog
from hostguard.gate.control import DeliveryControl
from hostguard.gate.policy import Policy, known_mind
from hostguard.gate.waits import Waits
from hostguard.store import deliveries, requests
from hostguard.store.requests import Waiters
from hostguard.store.writer import Queue

LIST_MAX = 1000  # rows in one answer
WAIT_MAX_S = 60.0
STATES = tuple(State)


@dataclass(eq=False)
class Deliveries:
    """The handlers of this module."""

    _policy: Policy
    _acceptor: Acceptor
    _queue: Queue
    _backlog: Backlog
    _waiters: Waiters
    _waits: Waits
    _control: DeliveryControl
    _views: Views

    @on("POST", "/v1/deliveries")
    async def _send(self, request: Request) -> Response:
        config = self._policy.config
        body = await json_object(request, body_max(config.payload_max))
        new = message.message(body, config, now_ms(), sender(request))
        if new.key is not None and new.key.startswith(message.MIND_KEYS):
            raise bad_request(f"key must not begin with {message.MIND_KEYS!r}: such keys are those of minds")
        accepted = await self._acceptor.send(new)
        rows = [self._views.delivery(row) for row in accepted.rows]
        return JSONResponse({"deliveries": rows, "refused": accepted.full}, 201 if accepted.created else 200)

    @on("GET", "/v1/deliveries", reads=True)
    async def _list(self, request: Request) -> Response:
        query = request.query_params
        wanted = query.get("state", "")
        failed = wanted == "failed"
        states = STATES if wanted == "all" or failed else tuple(s for s in wanted.split(",") if s)
        for state in states:
            if state not in STATES:
                raise bad_request(f"there is no state {state:.100}; states: all, failed, {', '.join(STATES)}")
        limit, after = min(number(query.get("limit"), 100), LIST_MAX), number(query.get("after"), 0)
        mind = message.one_or_all(query)
        select = partial(deliveries.select, states=states, mind=mind, after=after, limit=limit, failed=failed)
        rows = await requests.read(self._queue, select)
        if not rows:
            await self._refuse_unknown(mind)
        shown = [self._views.delivery(row) for row in rows]
        return JSONResponse({"deliveries": shown, "total_queued": len(self._backlog) + self._backlog.later})

    async def _refuse_unknown(self, mind: str | None) -> None:
        """Raise Problem if no mind has this name, nor one that was removed."""
        if mind is None or mind in self._policy.config.minds:
            return
        if not await requests.read(self._queue, partial(deliveries.has_rows, mind=mind)):
            known_mind(mind, self._policy.config)

    @on("GET", "/v1/deliveries/{id}")
    async def _one(self, request: Request) -> Response:
        id_ = row_id(request)
        row = await self._control.find(id_)
        wait = request.query_params.get("wait_s")
        if wait is None or row.state.final:
            return await self._shown(request, id_)
        with self._waiters.waiter(id_) as final, self._waits.begun(peer(request)[0], row.row) as never:
            # Read again: from here on an end is not missed.
            if not (await self._control.find(id_)).state.final:
                limit = min(seconds(wait), WAIT_MAX_S)
                either: list[asyncio.Future[Any]] = [final, never]
                await asyncio.wait(either, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if never.done() and not final.done():
                    raise _never_ends(row, never.result())
            # Still among those that wait: a guard that stops answers them first.
            return await self._shown(request, id_)

    async def _shown(self, request: Request, id_: int) -> Response:
        await room_to_answer(request)
        found = await requests.read(self._queue, lambda db: deliveries.with_payload(db, id_))
        if found is None:
            raise unknown("delivery", id_, "it was dropped from the history, or damaged: hostguard status")
        return JSONResponse(self._views.delivery(*found))

    @on("GET", "/v1/deliveries/{id}/why")
    async def _why(self, request: Request) -> Response:
        return JSONResponse(self._views.why(await self._control.find(row_id(request))))

    @on("POST", "/v1/deliveries/{id}/cancel")
    async def _cancel(self, request: Request) -> Response:
        return JSONResponse(self._views.delivery(await self._control.cancel(row_id(request))))

    @on("POST", "/v1/deliveries/{id}/retry")
    async def _retry(self, request: Request) -> Response:
        return JSONResponse(self._views.delivery(await self._control.retry(row_id(request))))

    @on("POST", "/v1/deliveries/{id}/drop")
    async def _drop(self, request: Request) -> Response:
        return JSONResponse(self._views.delivery(await self._control.drop(row_id(request))))


def _never_ends(row: Delivery, units: Collection[str]) -> Problem:
    behind = f"it waits for {', '.join(units)}, which in turn waits for it"
    return conflict(
        f"waiting for {row.id} would never end: {behind}. It is accepted: continue without waiting"
    )
