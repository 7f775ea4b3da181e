"""One connection to the port of a mind: messages are kept, everything else goes straight through."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from hostguard.api.http import SMALL
from hostguard.core.errors import Problem
from hostguard.front.messages import TRY_S, Messages, NotKept
from hostguard.front.request import (
    HEAD_MAX,
    NotHttp,
    Piece,
    Requests,
    answer,
    expects_continue,
    is_http,
    is_message,
    leaves_http,
    size_of,
    taken,
)
from hostguard.linux.sockets import Address, Marked

READ = 64 << 10  # bytes
CONNECT_S = 5.0  # on this host
BODY_S = 10.0  # for the body of a message
IDLE_S = 60.0  # for a first request, and for what follows the mind's own end of the connection
CLOSE_S = 1.0  # for the client to read the last answer
RESET = struct.pack("ii", 1, 0)  # struct linger
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Relay:
    """Serves one client that wanted to reach `to`. `reached` gets the port, and whether somebody listens."""

    def __init__(
        self,
        client: socket.socket,
        to: Address,
        messages: Messages,
        marked: Marked,
        reached: Callable[[int, bool], None],
    ) -> None:
        self._client, self._to = client, to
        self._messages, self._marked, self._reached = messages, marked, reached
        self._loop = asyncio.get_running_loop()
        self._mind: socket.socket | None = None
        self._back: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()  # all that was sent to the mind, as far as one byte shows
        self._answered.set()
        self.idle = True  # nothing is under way: it may be closed when there are too many
        self.keeping = False  # a message is being stored: it must not be cut off from its answer

    async def serve(self) -> None:
        """Until one side is done. Never raises, unless it is cancelled."""
        clean = False
        try:
            await self._serve()
            if self._back is not None:
                await self._back
            clean = True
        except (OSError, NotKept):  # TimeoutError is one
            pass
        finally:
            if self._back is not None:
                self._back.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await self._back
            for sock in (self._client, self._mind):
                if sock is not None:
                    _close(sock, clean)

    async def _serve(self) -> None:
        data = await self._receive()
        if not data:
            return
        self.idle = False
        if not is_http(data):
            await self._through(data)
            return
        requests = Requests()
        requests.feed(data)
        try:
            await self._requests(requests)
        except NotHttp:
            await self._last(answer("400 Bad Request", b"Bad Request", "text/plain"))

    async def _requests(self, requests: Requests) -> None:
        leaves = False
        while True:
            piece = requests.next()
            if piece is None:
                self.idle = self._answered.is_set() and not requests.rest()
                data = await self._receive()
                self.idle = False
                if not data:
                    break
                requests.feed(data)
                continue
            if piece.head is not None:
                if is_message(piece.head) and (mind := await self._messages.mind_at(self._to[1])):
                    await self._message(mind, requests, piece)
                    return
                leaves = leaves_http(piece.head)
                self._answered.clear()
            await self._send(piece.raw)
            if piece.end and leaves:
                await self._through(requests.rest())
                return
        if self._mind is not None:
            self._mind.shutdown(socket.SHUT_WR)

    async def _receive(self) -> bytes:
        """What the client sends; b"" if it sends no more. Raises OSError."""
        async with asyncio.timeout(IDLE_S if self._mind is None else None):
            return await self._loop.sock_recv(self._client, READ)

    # -- straight through

    async def _through(self, data: bytes) -> None:
        while data:
            await self._send(data)
            data = await self._receive()
        if self._mind is not None:
            self._mind.shutdown(socket.SHUT_WR)

    async def _send(self, data: bytes) -> None:
        """Send it to the mind. Raises OSError: then the client is reset, as by the mind itself."""
        if self._mind is None:
            self._mind = mind = self._marked.make(self._client.family)
            mind.setblocking(False)
            mind.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._loop.sock_connect(mind, self._to)
            except OSError:
                self._reached(self._to[1], False)
                raise
            self._reached(self._to[1], True)
            self._back = self._loop.create_task(self._answers(mind))
        await self._loop.sock_sendall(self._mind, data)

    async def _answers(self, mind: socket.socket) -> None:
        try:
            while data := await self._loop.sock_recv(mind, READ):
                self._answered.set()
                await self._loop.sock_sendall(self._client, data)
            self._client.shutdown(socket.SHUT_WR)
            self._loop.call_later(IDLE_S, self._read_no_more)
        except OSError:
            self._read_no_more()
            raise
        finally:
            self._answered.set()

    def _read_no_more(self) -> None:
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RD)  # who waits for the client to send something goes on

    # -- a message

    async def _message(self, mind: str, requests: Requests, head: Piece) -> None:
        """Keep it, then answer. Raises OSError, NotHttp, NotKept."""
        assert head.head is not None
        declared, messages = size_of(head.head), self._messages
        most = messages.most
        if declared is not None and declared > most:
            return await self._refuse(mind, f"its body has {declared} bytes")
        room = declared if declared is not None else most
        try:
            if room > SMALL:
                await messages.budget.bodies.take(f"Volute, for {mind},", room, TRY_S)
        except Problem as problem:
            raise NotKept(problem.detail) from None
        try:
            if expects_continue(head.head):
                await self._loop.sock_sendall(self._client, CONTINUE)
            raw, body = bytearray(head.raw), bytearray()
            async with asyncio.timeout(BODY_S):
                while not (piece := await self._piece(requests)).end:
                    raw += piece.raw
                    body += piece.data
                    if len(body) > most or len(raw) > most + 2 * HEAD_MAX:
                        return await self._refuse(mind, f"its body has more than {most} bytes")
            raw += piece.raw
            try:
                message = await messages.parse(body)
            except ValueError as error:
                messages.refused(mind, f"it is {error}")
                return await self._last(answer("400 Bad Request", b"Bad Request", "text/plain"))
            self.keeping = True
            await messages.keep(mind, message, bytes(raw))
        finally:
            if room > SMALL:
                messages.budget.bodies.give(f"Volute, for {mind},", room)
        async with asyncio.timeout(TRY_S):  # answers go in the order of requests
            await self._answered.wait()
        await self._last(taken(message))

    async def _piece(self, requests: Requests) -> Piece:
        while (piece := requests.next()) is None:
            data = await self._loop.sock_recv(self._client, READ)
            if not data:
                raise ConnectionResetError
            requests.feed(data)
        return piece

    async def _refuse(self, mind: str, why: str) -> None:
        text = f"{why}, {self._messages.most} are allowed (limits.payload_max of hostguard)"
        self._messages.refused(mind, text)
        await self._last(answer("413 Content Too Large", text.encode(), "text/plain"))

    async def _last(self, data: bytes) -> None:
        """Send the last answer, and let the client read it: to close while it sends would reset it."""
        if self._back is not None:
            self._back.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await self._back
            self._back = None
        await self._loop.sock_sendall(self._client, data)
        self._client.shutdown(socket.SHUT_WR)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while await self._loop.sock_recv(self._client, READ):
                    pass


def _close(sock: socket.socket, clean: bool) -> None:
    with suppress(OSError):
        if not clean:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()
