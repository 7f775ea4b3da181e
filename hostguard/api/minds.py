"""The part of the API that is about one mind, /v1/minds/NAME/..., as hostguard-api(7) describes it."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hostguard.api import views
from hostguard.api.http import json_object
from hostguard.api.volute import token_hash
from hostguard.core.clock import now_ms
from hostguard.core.errors import conflict
from hostguard.core.names import MAIN_SESSION
from hostguard.core.payload import told
from hostguard.delivery import message as intake
from hostguard.delivery import routes as routing
from hostguard.delivery.routes import Batch, Routed
from hostguard.gate.policy import known_mind
from hostguard.store.settings import TOKEN

if TYPE_CHECKING:
    from hostguard.daemon import Daemon

TOKEN_BYTES = 32
BODY_MAX = 64 << 10
ROUTE_FIELDS = {"channel", "sender", "isDM", "participants", "participantCount", "content", "session"}


def routes(daemon: Daemon) -> list[Route]:
    """The routes, for api.make_app."""
    api = _Minds(daemon)
    return [
        Route("/v1/minds/{name}/token", api.token, methods=["POST"]),
        Route("/v1/minds/{name}/sleep", api.sleep, methods=["POST"]),
        Route("/v1/minds/{name}/wake", api.wake, methods=["POST"]),
        Route("/v1/minds/{name}/route", api.route, methods=["POST"]),
    ]


class _Minds:
    """The handlers."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._manager = daemon.manager

    async def token(self, request: Request) -> Response:
        """POST /v1/minds/NAME/token: a new token; an older one ends."""
        name = self._mind(request)
        intake.known_fields(await json_object(request, BODY_MAX, optional=True), set())
        if self._manager.policy.config.minds[name].token is not None:
            raise conflict(
                f"the token of {name} is set in the configuration, which wins: change minds.{name}.token, or"
                " take it out"
            )
        token = secrets.token_urlsafe(TOKEN_BYTES)
        await self._manager.settings.change(TOKEN.to(name, token_hash(token)))
        return JSONResponse({"mind": name, "token": token}, headers={"Cache-Control": "no-store"})

    async def sleep(self, request: Request) -> Response:
        """POST /v1/minds/NAME/sleep: it is told so, and sleeps once that turn is over."""
        name = self._mind(request)
        body = await json_object(request, BODY_MAX, optional=True)
        intake.known_fields(body, {"until"})
        until = intake.time(body, "until")
        await self._daemon.sleeper.sleep(name, until or None)
        return JSONResponse(views.mind(self._manager, name))

    async def wake(self, request: Request) -> Response:
        """POST /v1/minds/NAME/wake: answered once its unit, if it has one, is up."""
        name = self._mind(request)
        intake.known_fields(await json_object(request, BODY_MAX, optional=True), set())
        await self._daemon.sleeper.wake(name, "by request")
        return JSONResponse(views.mind(self._manager, name))

    async def route(self, request: Request) -> Response:
        """POST /v1/minds/NAME/route: what the mind's routes make of a message, which is not sent."""
        name, config = self._mind(request), self._manager.policy.config
        body = await json_object(request, BODY_MAX, optional=True)
        intake.known_fields(body, ROUTE_FIELDS)
        message = intake.message({"content": "", **body, "to": f"@{name}"}, config, now_ms())
        routes = self._daemon.kept.files.get(name)
        if routes is None:
            session = message.session or MAIN_SESSION
            path = config.minds[name].routes
            why = f"no {path} that can be used" if path else f"no minds.{name}.routes in the configuration"
            found = Routed("deliver", f"there is {why}: session {session}", session)
        else:
            found = routing.route(routes, name, told(message.payload))
        return JSONResponse({"mind": name, **_routed(found)})

    def _mind(self, request: Request) -> str:
        return known_mind(request.path_params["name"], self._manager.policy.config).name


def _routed(found: Routed) -> dict[str, Any]:
    batch = found.mode if isinstance(found.mode, Batch) else None
    mode = None if found.action != "deliver" else "batch" if batch else "immediate"
    return {
        "action": found.action,
        "session": found.session,
        "path": found.path,
        "rule": found.rule,
        "mode": mode,
        "batch": asdict(batch) if batch else None,
        "text": found.text,
    }
