"""The web endpoint on loopback TCP: the live page and what it can do. Off until configured.

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
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from hostguard.api.app import make_app
from hostguard.api.http import Budget, bearer, on, problem
from hostguard.api.report import HOUR_MS, Reports, span_of
from hostguard.api.server import Listener
from hostguard.api.volute import token_hash
from hostguard.core.errors import not_allowed, unauthorized
from hostguard.gate.control import Control
from hostguard.gate.policy import Policy
from hostguard.systemd.notify import Notifier

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
