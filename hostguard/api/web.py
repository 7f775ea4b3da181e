"""The web endpoint on loopback TCP, for people and their tools; off until configured.

Any page that a browser of this host shows can send requests here. Two things keep it out:
- Host names loopback. A name of somebody else's that was made to resolve to it (DNS rebinding) does not.
- Origin, if there is one, is the endpoint's own. What acts needs a token besides, which no browser adds.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.routing import Route

from hostguard.api.http import EXCEPTION_HANDLERS, Address, problem
from hostguard.api.server import Listener
from hostguard.api.volute import token_hash
from hostguard.core.errors import Problem, not_allowed

if TYPE_CHECKING:
    from hostguard.daemon import Daemon

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
    """Serves `routes` while `web.listen` is configured; `preload` has what they need in memory by then."""

    def __init__(self, routes: Sequence[Route], preload: Callable[[], Awaitable[None]]) -> None:
        self._preload = preload
        app = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)
        super().__init__(
            OwnOrigin(app), "the web endpoint", "web.listen", "there are no pages and no metrics"
        )

    async def start(self, address: Address | None) -> None:
        """As Listener."""
        if address is not None:
            await self._preload()
        await super().start(address)

    async def reload(self, address: Address | None) -> None:
        """As Listener."""
        if address is not None:
            await self._preload()
        await super().reload(address)


class OwnOrigin:
    """Lets requests through to the app that are not made by somebody else's page, and marks the answers."""

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
    """Why a request is somebody else's page's, or None. Pure."""
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    if len(hosts) != 1 or not OWN_HOST.fullmatch(hosts[0]):
        return "the Host header must name this host: 127.0.0.1, localhost or [::1]"
    if any(origin != f"http://{hosts[0]}" for origin in origins):
        return "a page of another origin may not ask"
    # What no Origin comes with, as an image: https://www.w3.org/TR/fetch-metadata/. A link may lead here.
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if site in ("cross-site", "same-site") and mode != "navigate":
        return "a page of another site may not ask"
    return None


def check_token(request: Request, daemon: Daemon) -> None:
    """Raises Problem unless the request bears the configured token."""
    wanted = daemon.manager.policy.config.web_token
    if wanted is None:
        raise not_allowed("the pages are only to be read: no web.token is configured")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(token_hash(token.strip()), wanted):
        raise Problem(HTTPStatus.UNAUTHORIZED, "unauthorized", "this is not the token of [web]")
