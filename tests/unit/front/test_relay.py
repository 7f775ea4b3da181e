"""A connection to a mind's port: messages are kept and answered, everything else goes straight through."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from until import until

from hostguard.api.http import Budget
from hostguard.front import relay as relays
from hostguard.front.messages import Messages, NotKept
from hostguard.front.relay import Relay
from hostguard.linux.sockets import Marked

POST = b'POST /message HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{"session":"s"} '
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TAKEN = b'\r\n\r\n{"ok":true}'


class Unmarked(Marked):
    """Makes sockets without a mark: that takes a capability."""

    def make(self, family: int) -> socket.socket:
        return socket.socket(family, socket.SOCK_STREAM)


class Kept(Messages):
    """Keeps messages in a list. `mind`: whose port it is. `fails`: it cannot keep any."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, Any, bytes]] = []
        self.refusals: list[str] = []
        self.budget, self.mind, self.fails = Budget(), cast("str | None", "ada"), False

    @property
    def most(self) -> int:
        return 1000

    async def mind_at(self, port: int) -> str | None:
        return self.mind

    def refused(self, mind: str, why: str) -> None:
        self.refusals.append(why)

    async def keep(self, mind: str, body: Any, raw: bytes) -> None:
        if self.fails:
            raise NotKept("no")
        self.kept.append((mind, body, raw))


class Host:
    """A client, a relay, and a mind's server."""

    def __init__(self) -> None:
        self.messages = Kept()
        self.reached: list[bool] = []
        self.got = b""  # what the mind was sent
        self.mind: asyncio.StreamWriter | None = None
        self.answers = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.mind = writer
        while data := await reader.read(1 << 16):
            self.got += data
            if self.answers and self.got.endswith(b"\r\n\r\n"):
                writer.write(HEALTHY)
        writer.close()


@asynccontextmanager
async def a_host(
    listens: bool = True,
) -> AsyncIterator[tuple[Host, asyncio.StreamReader, asyncio.StreamWriter]]:
    host = Host()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if not listens:
        server.close()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    theirs.setblocking(False)
    relay = Relay(
        theirs,
        ("127.0.0.1", port),
        host.messages,
        Unmarked(),
        lambda _, listens: host.reached.append(listens),
    )
    serving = asyncio.create_task(relay.serve())
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        async with asyncio.timeout(20):
            yield host, reader, writer
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            await serving
    finally:
        serving.cancel()
        server.close()


def test_a_message_is_kept_byte_for_byte_and_answered_as_the_mind_would() -> None:
    async def main() -> None:
        async with a_host() as (host, reader, writer):
            writer.write(POST[:30])
            await writer.drain()
            writer.write(POST[30:])
            assert (await reader.read()).endswith(TAKEN)  # and the connection is closed
            assert host.messages.kept == [("ada", {"session": "s"}, POST)]
            assert host.reached == []  # the mind was not asked

    asyncio.run(main())


def test_one_whose_sender_has_left_is_kept_all_the_same() -> None:
    async def main() -> None:
        async with a_host() as (host, reader, writer):
            writer.write(POST)
            writer.write_eof()
            assert (await reader.read()).endswith(TAKEN)
            assert len(host.messages.kept) == 1

    asyncio.run(main())


def test_a_message_after_other_requests_on_the_connection_is_kept_too() -> None:
    async def main() -> None:
        async with a_host() as (host, reader, writer):
            for _ in range(2):
                writer.write(GET)
                assert await reader.readexactly(len(HEALTHY)) == HEALTHY
            writer.write(POST)
            assert (await reader.read()).endswith(TAKEN)
            assert host.got == GET + GET
            assert host.reached == [True]

    asyncio.run(main())


def test_answers_go_in_the_order_of_requests() -> None:
    async def main() -> None:
        async with a_host() as (host, reader, writer):
            host.answers = False
            writer.write(GET + POST)
            await until(lambda: host.messages.kept and host.mind)
            assert host.mind is not None
            host.mind.write(HEALTHY)
            said = await reader.read()
            assert said.startswith(HEALTHY)
            assert said.endswith(TAKEN)

    asyncio.run(main())


def test_a_port_without_a_mind_is_passed_through() -> None:
    async def main() -> None:
        async with a_host() as (host, _, writer):
            host.messages.mind = None
            writer.write(POST)
            await until(lambda: host.got == POST)
            assert host.messages.kept == []

    asyncio.run(main())


def test_what_is_not_http_goes_through_both_ways() -> None:
    async def main() -> None:
        async with a_host() as (host, reader, writer):
            writer.write(b"\x16\x03\x01 hello")
            await until(lambda: host.mind and host.got)
            assert host.mind is not None
            host.mind.write(b"\x15")
            assert await reader.readexactly(1) == b"\x15"
            assert host.got == b"\x16\x03\x01 hello"

    asyncio.run(main())


def test_a_mind_that_does_not_listen_is_seen_as_that() -> None:
    async def main() -> None:
        async with a_host(listens=False) as (host, reader, writer):
            writer.write(GET)
            with pytest.raises(ConnectionResetError):  # Volute starts a mind only if this fails
                await reader.read()
            assert host.reached == [False]

    asyncio.run(main())


def test_what_cannot_be_kept_is_not_answered_but_reset() -> None:
    async def main() -> None:
        async with a_host() as (host, reader, writer):
            host.messages.fails = True
            writer.write(POST)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert host.got == b""  # nor did it go past the gate

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (
            b"POST /message HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n",
            413,
            ["its body has 1001 bytes"],
        ),
        (b"POST /message HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{a}", 400, ["not JSON"]),
        (b"POST /message HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n[1]", 400, ["not a JSON object"]),
        (b"POST /message HTTP/1.1\r\n\r\n", 400, []),
    ],
)
def test_what_no_mind_would_take_is_refused(sent: bytes, status: int, said: list[str]) -> None:
    async def main() -> None:
        async with a_host() as (host, reader, writer):
            writer.write(sent)
            assert (await reader.read()).startswith(b"HTTP/1.1 %d " % status)
            assert host.messages.kept == []
            assert all(text in refusal for text, refusal in zip(said, host.messages.refusals, strict=True))

    asyncio.run(main())


def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "BODY_S", 0.05)

    async def main() -> None:
        async with a_host() as (host, reader, writer):
            writer.write(POST[:-1])
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert host.messages.kept == []

    asyncio.run(main())
