"""The guard's HTTP client for resident minds: sends one POST and classifies the answer.

It is h11 on a socket: the message is sent only once it is known who has the other end of this connection,
and what a mind may answer is bounded in bytes, number and time. No general client has both in its public
interface.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import h11

from hostguard.core.errors import named
from hostguard.core.model import Delivery, Mind
from hostguard.turns.mind_listener import Manager, MindListeners, Unseen

# volute.md: Volute's daemon allows a mind this long, from the connection to the head of the answer.
POST_S = 120.0
BODY_S = 5.0  # for the body of the answer, which only has the reason
CONNECT_S = 5.0  # on loopback, only a stuck host takes longer
HEAD_MAX = 16 << 10  # bytes up to the end of the answer's head, with what comes before it
INTERIM_MAX = 8  # answers such as 100 Continue before the one that counts
REPLY_MAX = 16 << 10  # bytes of an answer's body that are read
READ = 4 << 10  # bytes at a time: h11 takes some 10 ms for the worst of them


class Outcome(StrEnum):
    """The outcome of a POST."""

    TAKEN = "taken"
    REFUSED = "refused"  # no success, or no answer: the attempt counts
    DOWN = "down"  # no server listens: not a failure of the message
    STRANGER = "stranger"  # somebody else listens there; the message was not sent
    CUT = "cut"  # the turn ended first


@dataclass(frozen=True, slots=True)
class Posted:
    """The outcome, and the reason in words."""

    outcome: Outcome
    text: str = ""


class _Broken(Exception):
    """The answer cannot be used. The text says why."""


def key(row: Delivery) -> str:
    """The Idempotency-Key of a row: the same for each attempt, and unique even across databases."""
    return f"hostguard-{row.id}-{row.created_at}"


class MindClient:
    """One client for all minds. It keeps no connection: a mind may close one at any time."""

    def __init__(self, manager: Manager) -> None:
        self._listeners = MindListeners(manager)

    async def post(self, mind: Mind, row: Delivery, body: Mapping[str, Any], turn: str) -> Posted:
        """POST the message. Never raises, whatever the mind's URL or answer, unless it is cancelled."""
        raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        headers = {"Content-Type": "application/json", "Idempotency-Key": key(row), "X-Hostguard-Turn": turn}
        try:
            at = urlsplit(mind.url or "")
            headers |= {"Host": at.netloc, "Content-Length": str(len(raw)), "Connection": "close"}
            http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX + READ)
            request = h11.Request(method="POST", target="/message", headers=[*headers.items()])
            sent = b"".join(
                http.send(event) or b"" for event in (request, h11.Data(data=raw), h11.EndOfMessage())
            )
            async with asyncio.timeout(CONNECT_S):
                sock = await _connected(at.hostname or "", at.port or 80)
        except (OSError, TimeoutError) as error:
            return Posted(Outcome.DOWN, f"{mind.url} accepts no connections ({error or 'no answer'})")
        except Exception as error:  # such as a UnicodeError for a host name that cannot be encoded
            return Posted(Outcome.REFUSED, f"{mind.url} cannot be posted to: {named(error)}")
        with sock:
            try:
                if found := await self._stranger(mind, sock):
                    return found
                return await _exchange(http, sock, sent)
            except TimeoutError:
                return Posted(Outcome.REFUSED, f"no answer within {POST_S:.0f} s")
            except (OSError, h11.ProtocolError, _Broken) as error:
                return Posted(Outcome.REFUSED, f"the connection broke: {error or type(error).__name__}")

    async def _stranger(self, mind: Mind, sock: socket.socket) -> Posted | None:
        """What to say if it is not the mind that has the other end. Raises OSError."""
        local, peer = sock.getsockname()[:2], sock.getpeername()[:2]
        try:
            found = await asyncio.to_thread(self._listeners.stranger, mind, local, peer)
        except Unseen:
            return Posted(Outcome.DOWN, f"{mind.url} is left before it is known who listens there")
        if found is None:
            return None
        return Posted(Outcome.STRANGER, f"its port {peer[1]} is taken by {found}")


async def _connected(host: str, port: int) -> socket.socket:
    """A connection to the first address of the host that accepts one. Raises OSError."""
    loop, error = asyncio.get_running_loop(), OSError("its name has no address")
    for family, address in await _addresses(host, port):
        sock = socket.socket(family, socket.SOCK_STREAM)
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


async def _exchange(http: h11.Connection, sock: socket.socket, sent: bytes) -> Posted:
    """Send the request and read the answer. Raises OSError, TimeoutError, ProtocolError, _Broken."""
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
    if 200 <= head.status_code < 300:
        return Posted(Outcome.TAKEN)
    said = " ".join(body[:200].decode(errors="replace").split())
    return Posted(Outcome.REFUSED, f"HTTP {head.status_code}{f': {said}' if said else ''}")


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
