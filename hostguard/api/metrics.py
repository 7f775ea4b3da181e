"""The page that Prometheus scrapes, as hostguard-api(7) describes it. It answers from memory."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hostguard.core.errors import unavailable
from hostguard.store.requests import ANSWER_S

if TYPE_CHECKING:
    from hostguard.daemon import Daemon


def routes(daemon: Daemon) -> list[Route]:
    """The route, for the apps that serve it."""

    async def metrics(request: Request) -> Response:
        """GET /metrics."""
        try:
            load = asyncio.to_thread(import_module, "hostguard.api.exposition")
            module = await asyncio.wait_for(load, ANSWER_S)
        except TimeoutError:
            raise unavailable("the disk does not answer; hostguard status does") from None
        body = module.exposition(daemon.manager, daemon.parts.counters)
        return Response(body, headers={"Content-Type": module.CONTENT_TYPE})

    return [Route("/metrics", metrics)]
