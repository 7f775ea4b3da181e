"""How httpx reaches a resident mind: a connection for each request, checked before anything is sent on it.

It is h11 on a socket, since httpx's own transport has no place for two things: to ask who has the other end
of this very connection, and to bound what a mind answers in bytes, number and time.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import h11
import httpx

from hostguard.core.model import Mind
from hostguard.linux.sockets import Marked
from hostguard.turns.mind_listener import MindListeners, Unseen

# volute.md: Volute's daemon allows a mind this long, from the connection to the head of the answer.
POST_S = 120.0
BODY_S = 5.0  # for the body of the answer, which only has the reason
CONNECT_S = 5.0  # on loopback, only a stuck host takes longer
HEAD_MAX = 16 << 10  # bytes up to the end of the answer's head, with what comes before it
INTERIM_MAX = 8  # answers such as 100 Continue before the one that counts
REPLY_MAX = 16 << 10  # bytes of an answer's body that are read
READ = 4 << 10  # bytes at a time: h11 takes some 10 ms for the worst of them
# Extensions of a request: the mind, and the bytes that are sent in place of the request.
MIND, AS_IT_IS = "mind", "as_it_is"


class Stranger(Exception):
    """Somebody else listens on the mind's port: who, in words. Nothing was sent."""


class _Broken(Exception):
    """The answer cannot be used. The text says why."""


class MindTransport(httpx.AsyncBaseTransport):
    """Sends requests whose extension MIND has their mind.

    It keeps no connection: a mind may close one at any time.
    """

    def __init__(self, listeners: MindListeners, marked: Marked) -> None:
        self._listeners, self._marked = listeners, marked

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer's status, and the beginning of its body. Raises Stranger, httpx.TransportError."""
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX + READ)
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=[*request.headers.raw])
        events = (head, h11.Data(data=await request.aread()), h11.EndOfMessage())
        sent = b"".join(http.send(event) or b"" for event in events)
        sent, mind = request.extensions.get(AS_IT_IS, sent), request.extensions[MIND]
        marked = self._marked if mind.volute else None
        try:
            async with asyncio.timeout(CONNECT_S):
                sock = await _connected(request.url.host, request.url.port or 80, marked)
        except OSError as error:
            raise httpx.ConnectError(str(error) or "no answer") from error
        with sock:
            try:
                await self._check(mind, sock)
                status, body = await _exchange(http, sock, sent)
            except TimeoutError as error:
                raise httpx.ReadTimeout(f"no answer within {POST_S:.0f} s") from error
            except (OSError, h11.ProtocolError, _Broken) as error:
                if self._marked.came_back(sock):
                    raise httpx.ConnectError(
                        "nft leads it to the guard, without a look at its mark"
                    ) from None
                raise httpx.RemoteProtocolError(str(error) or type(error).__name__) from error
        return httpx.Response(status, content=bytes(body))  # without its headers: nothing is decoded

    async def _check(self, mind: Mind, sock: socket.socket) -> None:
        """Raises Stranger, ConnectError, OSError."""
        local, peer = sock.getsockname()[:2], sock.getpeername()[:2]
        try:
            found = await asyncio.to_thread(self._listeners.stranger, mind, local, peer)
        except Unseen as error:
            raise httpx.ConnectError(str(error)) from None
        if found is not None:
            raise Stranger(f"its port {peer[1]} is taken by {found}")


async def _connected(host: str, port: int, marked: Marked | None) -> socket.socket:
    """A connection to the first address of the host that accepts one. Raises OSError."""
    loop, error = asyncio.get_running_loop(), OSError("its name has no address")
    for family, address in await _addresses(host, port):
        sock = socket.socket(family, socket.SOCK_STREAM) if marked is None else marked.make(family)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        except BaseException as why:
            sock.close()
            if not isinstance(why, OSError):
                raise
            error = why
        else:
            return sock
    raise error


async def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    with suppress(ValueError):
        version = ip_address(host).version
        return [(socket.AF_INET6 if version == 6 else socket.AF_INET, (host, port))]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _exchange(http: h11.Connection, sock: socket.socket, sent: bytes) -> tuple[int, bytearray]:
    """Send the request; the answer's status and body. Raises OSError, ProtocolError, _Broken."""
    # A mind may answer before it has read all, and then read no more.
    sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(sock, sent))
    try:
        async with asyncio.timeout(POST_S):
            head = await _head(http, sock)
        body = bytearray()
        # The status decides, even if the body is lost.
        with suppress(OSError, TimeoutError, h11.ProtocolError):
            async with asyncio.timeout(BODY_S):
                await _read_body(http, sock, body)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    return head.status_code, body


async def _head(http: h11.Connection, sock: socket.socket) -> h11.Response:
    got = interim = 0
    while True:
        event = http.next_event()
        if isinstance(event, h11.Response):
            return event
        if isinstance(event, h11.InformationalResponse):
            interim += 1
            if interim > INTERIM_MAX:
                raise _Broken(f"more than {INTERIM_MAX} interim answers ({event.status_code}), and no other")
        elif got > HEAD_MAX:
            raise _Broken(f"the head of the answer has more than {HEAD_MAX >> 10} KiB")
        elif event is h11.NEED_DATA:
            got += await _receive(http, sock)
        else:
            raise _Broken("it was closed without an answer")


async def _read_body(http: h11.Connection, sock: socket.socket, body: bytearray) -> None:
    """Add the beginning of the answer's body, as it arrives."""
    got = 0
    while got <= REPLY_MAX:
        event = http.next_event()
        if isinstance(event, h11.Data):
            body += event.data
        elif event is h11.NEED_DATA:
            got += await _receive(http, sock)
        else:
            return


async def _receive(http: h11.Connection, sock: socket.socket) -> int:
    await asyncio.sleep(0)  # data that is there already would be read without a pause for others
    data = await asyncio.get_running_loop().sock_recv(sock, READ)
    http.receive_data(data)
    return len(data)
