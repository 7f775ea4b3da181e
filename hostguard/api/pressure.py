"""The part of the API that is about pressure, as hostguard-api(7) describes it. It answers from memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hostguard.api import views
from hostguard.api.http import Stream
from hostguard.pressure.monitor import BEHIND_MAX
from hostguard.pressure.trace import sample_line

if TYPE_CHECKING:
    from hostguard.daemon import Daemon
    from hostguard.gate.dispatcher import Dispatcher


def routes(daemon: Daemon) -> list[Route]:
    """The routes, for api.make_app."""
    api = _Pressure(daemon.manager)
    return [Route("/v1/pressure", api.now), Route("/v1/pressure/samples", api.samples)]


class _Pressure:
    """The handlers."""

    def __init__(self, manager: Dispatcher) -> None:
        self._manager = manager

    async def now(self, request: Request) -> Response:
        """GET /v1/pressure."""
        return JSONResponse(views.pressure(self._manager))

    async def samples(self, request: Request) -> Response:
        """GET /v1/pressure/samples: JSON lines, one for each look at the disk from now on."""

        async def stream() -> AsyncGenerator[bytes, None]:
            with self._manager.watcher.reader() as queue:
                while True:
                    yield sample_line(await queue.get())
                    if queue.qsize() >= BEHIND_MAX:
                        return

        return Stream(stream(), "application/x-ndjson")
