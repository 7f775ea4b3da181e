"""An app of ours on loopback TCP, where and as long as the configuration says."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any

from hostguard.api.server import LoopbackProtocol, Server, handed_over, listen_tcp, make_server

if TYPE_CHECKING:
    from hostguard.systemd.notify import Notifier

log = logging.getLogger(__name__)

RETRY_S = 5.0  # after an address that could not be had
Address = tuple[str, int]


class Listener:
    """Serves `app` as `what`, set by `key`. `problem` says why it does not, and with `loss` what that means.

    With a `notifier` the service manager keeps the socket, under the name `kept`, while the guard restarts.
    """

    def __init__(
        self, app: Any, what: str, key: str, loss: str, kept: str = "", notifier: Notifier | None = None
    ) -> None:
        self.problem: str | None = None
        self._app = app
        self._what, self._key, self._loss, self._kept = what, key, loss, kept
        self._notifier = notifier
        self._address: Address | None = None
        self._server: Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    async def start(self, address: Address | None) -> None:
        """Serve there, None: nowhere. An address that cannot be had is tried again and again."""
        self._address = address
        kept = handed_over(self._kept) if self._notifier is not None else None
        if kept is None:
            self._open()
        elif kept.getsockname()[:2] == address:
            self._serve(kept)
        else:
            kept.close()
            self._forget()
            self._open()

    async def reload(self, address: Address | None) -> None:
        """Serve there from now on; connections stay if that is the same."""
        if address != self._address:
            await self.close()
            self._forget()
            self._address = address
            self._open()

    async def close(self) -> None:
        """Stop serving."""
        self._address, self.problem = None, None
        if self._retry is not None:
            self._retry.cancel()
        if self._server is not None and self._serving is not None:
            self._server.end()
            await asyncio.wait([self._serving])
        self._server = self._serving = None

    def _open(self) -> None:
        if self._address is None:
            return
        host, port = self._address
        try:
            sock = listen_tcp(self._address)
        except OSError as error:
            if self.problem is None:
                self.problem = (
                    f"{self._what} cannot listen on {host} port {port}: {error.strerror}; {self._loss}."
                    f" Free the port, or set {self._key} to another one"
                )
                log.error("%s", self.problem)
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._open)
            return
        if self._notifier is not None:
            self._notifier.keep(self._kept, sock)
        self._serve(sock)

    def _forget(self) -> None:
        if self._notifier is not None:
            self._notifier.forget(self._kept)

    def _serve(self, sock: socket.socket) -> None:
        self.problem = None
        self._server = make_server(self._app, LoopbackProtocol)
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        log.info("%s listens on %s port %d", self._what, *sock.getsockname()[:2])
