"""Waits while the queue cannot be opened because the card is full, read-only or gone.

To end instead, and to be started again every few seconds, would take half of a small host's CPU.
Every request is answered with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from hostguard.api.http import problem
from hostguard.api.server import LOCAL, Server, listen
from hostguard.core import paths
from hostguard.core.clock import AGAIN_S
from hostguard.core.errors import unavailable
from hostguard.store.writer import Queue, Unavailable
from hostguard.systemd.notify import Notifier

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The guard was told to stop before the queue could be opened."""


async def open_queue(queue: Queue, notifier: Notifier, stop: asyncio.Event) -> socket.socket | None:
    """Open the queue, however long that takes. Raises SchemaTooNew, Stopped, OSError.

    Returns the API's socket, still open, if it was served meanwhile; None if the queue opened at once.
    """
    try:
        await queue.open()
        return None
    except Unavailable as error:
        standby = _Standby(error)
    listener = listen(paths.SOCKET)
    server = Server(standby, LOCAL)
    await server.start(listener.dup())
    notifier.send("READY=1", f"STATUS={standby.text}")
    try:
        while not await _within(stop, AGAIN_S):
            try:
                await queue.open()
            except Unavailable as error:
                standby.because(error)
                notifier.status(standby.text)
            else:
                log.warning("%s can be opened now", queue.path)
                return listener
        listener.close()
        raise Stopped
    finally:
        server.end()


class _Standby:
    """Says why the queue cannot be opened: once in the journal, and to each request."""

    def __init__(self, error: Unavailable) -> None:
        self.text = ""
        self.because(error)

    def because(self, error: Unavailable) -> None:
        text = f"{error}; nothing is accepted or started; trying again every {AGAIN_S:g} s"
        if text != self.text:
            self.text = text
            log.critical("%s", text)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        await problem(unavailable(self.text))(scope, receive, send)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
