"""/v1/minds: one mind or all of them, as hostguard-api(7) describes it."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.api.http import json_object, on
from hostguard.api.views import Views
from hostguard.api.volute import token_hash
from hostguard.core.clock import now_ms
from hostguard.core.errors import conflict
from hostguard.core.names import MAIN_SESSION
from hostguard.core.payload import told
from hostguard.delivery import message as intake
from hostguard.delivery import routes as routing
from hostguard.delivery.route_files import RouteFiles
from hostguard.delivery.routes import Batch, Routed, Unread
from hostguard.delivery.sleep import Sleeper
from hostguard.gate.policy import Policy, known_mind
from hostguard.store.settings import TOKEN, SettingsStore

TOKEN_BYTES = 32
BODY_MAX = 64 << 10
ROUTE_FIELDS = {"channel", "sender", "isDM", "participants", "participantCount", "content", "session"}


class Minds:
    """The handlers of this module."""

    def __init__(
        self, policy: Policy, settings: SettingsStore, sleeper: Sleeper, route_files: RouteFiles, views: Views
    ) -> None:
        self._policy, self._settings, self._sleeper = policy, settings, sleeper
        self._route_files, self._views = route_files, views

    @on("GET", "/v1/minds")
    async def _list(self, request: Request) -> Response:
        return JSONResponse({"minds": self._views.minds()})

    @on("POST", "/v1/minds/{name}/token")
    async def _token(self, request: Request) -> Response:
        # A new token; an older one ends.
        name = self._mind(request)
        await _body(request, set())
        if self._policy.config.minds[name].token is not None:
            why = f"the token of {name} is set in the configuration, which takes precedence"
            raise conflict(f"{why}: change or remove minds.{name}.token")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        await self._settings.change(TOKEN.to(name, token_hash(token)))
        return JSONResponse({"mind": name, "token": token}, headers={"Cache-Control": "no-store"})

    @on("POST", "/v1/minds/{name}/sleep")
    async def _sleep(self, request: Request) -> Response:
        # A notice goes to the mind, which sleeps once that turn ends.
        name = self._mind(request)
        body = await _body(request, {"until"})
        await self._sleeper.sleep(name, intake.time(body, "until") or None)
        return JSONResponse(self._views.mind(name))

    @on("POST", "/v1/minds/{name}/wake")
    async def _wake(self, request: Request) -> Response:
        # Answered once its unit, if it has one, is up.
        name = request.path_params["name"]
        await _body(request, set())
        await self._sleeper.wake(name, "by request")
        return JSONResponse(self._views.mind(name))

    @on("POST", "/v1/minds/{name}/route")
    async def _route(self, request: Request) -> Response:
        # Where the mind's routes lead a message, which is not sent.
        name, config = self._mind(request), self._policy.config
        body = await _body(request, ROUTE_FIELDS)
        message = intake.message({"content": "", **body, "to": f"@{name}"}, config, now_ms())
        routes = self._route_files.get(name)
        if isinstance(routes, Unread):
            found = Routed("held", f"it waits until the routes of {name} are known: {routes.why}")
        elif routes is None:
            session = message.session or MAIN_SESSION
            path = config.minds[name].routes
            why = f"no {path} that can be used" if path else f"no minds.{name}.routes in the configuration"
            found = Routed("deliver", f"there is {why}: session {session}", session)
        else:
            found = routing.route(routes, name, told(message.payload))
        return JSONResponse({"mind": name, **_routed(found)})

    def _mind(self, request: Request) -> str:
        return known_mind(request.path_params["name"], self._policy.config).name


async def _body(request: Request, fields: set[str]) -> dict[str, Any]:
    body = await json_object(request, BODY_MAX, optional=True)
    intake.known_fields(body, fields)
    return body


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
