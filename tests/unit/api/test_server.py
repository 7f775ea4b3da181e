"""The server on real sockets: each bound, whatever the client does, and HTTP/1.1 as clients speak it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from until import until

from hostguard.api import connection, http
from hostguard.api import server as server_module
from hostguard.api.app import make_app
from hostguard.api.http import Stream, has_left, json_object, on
from hostguard.api.places import Limits
from hostguard.api.server import LOCAL, LOOPBACK, Server, listen, peer
from hostguard.core.errors import conflict

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
BIG = 32 << 20  # bytes: more than the kernel holds for one connection
MANY = LOCAL.connections
ROOT = Path(__file__).parents[3]


class Host:
    """A server with handlers that a test can look into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.go_on = asyncio.Event()
        self.waiting = self.sent = self.ended = self.cut = self.broken = 0
        self.pieces: list[Any] = []
        self.app = make_app(http.Budget(), self)

    @on("GET", "/")
    async def hello(self, request: Request) -> Response:
        return PlainTextResponse("hello")

    @on("POST", "/json")
    async def json(self, request: Request) -> Response:
        return JSONResponse(await json_object(request, 1000))

    @on("POST", "/unread")
    async def unread(self, request: Request) -> Response:
        return await self.wait(request)

    @on("GET", "/wait")
    async def wait(self, request: Request) -> Response:
        self.waiting += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.broken += 1
            raise
        return PlainTextResponse("at last")

    @on("POST", "/count")
    async def count(self, request: Request) -> Response:
        return JSONResponse(len(await request.body()))

    @on("GET", "/stream")
    async def stream(self, request: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            try:
                yield b"one\n"
                await self.go_on.wait()
                yield b"two\n"
            finally:
                self.ended += 1

        return Stream(pieces(), "text/plain")

    @on("GET", "/big")
    async def big(self, request: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            try:
                for _ in range(BIG >> 16):
                    self.sent += 1
                    yield bytes(1 << 16)
            finally:
                self.cut += 1

        self.pieces.append(pieces())  # so that nothing but the server ends them
        return Stream(self.pieces[-1], "text/plain")

    @on("GET", "/fault")
    async def fault(self, request: Request) -> Response:
        raise RuntimeError("a fault")

    @on("GET", "/problem")
    async def problem(self, request: Request) -> Response:
        raise conflict("not now")

    @on("GET", "/peer")
    async def peer(self, request: Request) -> Response:
        return JSONResponse(peer(request))

    @on("POST", "/left")
    async def left(self, request: Request) -> Response:
        await request.body()
        self.waiting += 1
        await self.go_on.wait()
        self.ended = 1 + await has_left(request)
        return PlainTextResponse("")

    async def connect(self) -> Client:
        return Client(*await asyncio.open_unix_connection(self.path))

    async def ask(self, request: bytes = GET) -> Answer:
        """One request on a connection of its own."""
        client = await self.connect()
        try:
            return await client.ask(request)
        finally:
            client.close()


class Answer:
    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode().split("\r\n")
        self.version, status, self.reason = first.split(" ", 2)
        self.status, self.body = int(status), body
        self.headers = dict(line.lower().split(": ", 1) for line in lines)

    @property
    def code(self) -> Any:
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.body)["code"]


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: bytes = GET, *, head_only: bool = False) -> Answer:
        self.writer.write(request)
        return await self.answer(head_only)

    async def answer(self, head_only: bool = False) -> Answer:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10))[:-4]
        answer = Answer(head, b"")
        if not head_only:
            answer.body = await self.reader.readexactly(int(answer.headers.get("content-length", 0)))
        return answer

    async def rest(self) -> bytes:
        """All until the server closes the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), 10)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.writer.close()


Work = Callable[[Host], Awaitable[None]]


def on_host(path: Path, work: Work, limits: Limits = LOCAL) -> None:
    async def main() -> None:
        host = Host(path / "sock")
        server = Server(host.app, limits)
        await server.start(listen(host.path))
        try:
            await asyncio.wait_for(work(host), 60)
        finally:
            server.end()
        await asyncio.sleep(0.01)  # so that transports are closed

    asyncio.run(main())


@pytest.fixture
def descriptors() -> Any:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * MANY, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


# -- bounds


def test_connections_are_bounded_and_a_free_place_is_given_again(tmp_path: Path, descriptors: None) -> None:
    async def work(host: Host) -> None:
        fresh, begun, used = [await host.connect() for _ in range(3)]
        begun.writer.write(GET[:9])
        await used.ask()
        held = [await host.connect() for _ in range(MANY - 3)]
        wait = b"GET /wait HTTP/1.1\r\nHost: h\r\n\r\n"
        for number, oldest in enumerate((fresh, begun, used)):
            newest = await host.connect()
            newest.writer.write(wait)
            await until(lambda: host.waiting == number + 1)  # noqa: B023
            if oldest is not used:  # which has its answer
                told = await oldest.answer()
                assert (told.status, told.code, told.headers["retry-after"]) == (503, "unavailable", "1")
            assert await oldest.rest() == b""
            oldest.close()
            held.append(newest)
        for client in held[:-3]:
            client.writer.write(wait)
        await until(lambda: host.waiting == MANY)
        one_more = await host.connect()
        assert (await one_more.answer()).status == 503
        assert await one_more.rest() == b""
        one_more.close()
        held.pop(0).close()
        await until(lambda: host.broken == 1)
        held.append(await host.connect())
        assert (await held[-1].ask()).status == 200
        for client in held:
            client.writer.transport.abort()
        await until(lambda: host.broken == MANY)

    on_host(tmp_path, work)


def test_without_descriptors_it_accepts_again_a_little_later(
    tmp_path: Path, descriptors: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "ACCEPT_AGAIN_S", 0.05)

    async def work(host: Host) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, before[1]))
            client.connect(str(host.path))
            await until(lambda: caplog.records)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, GET)
            assert b"200 OK" in await asyncio.wait_for(loop.sock_recv(client, 1000), 10)

    on_host(tmp_path, work)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot accept connections: Too many open files"
    ]


@pytest.mark.parametrize("pause", [None, 0.05])
def test_a_head_must_come_in_time_even_if_it_comes_in_bytes(tmp_path: Path, pause: float | None) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        began = time.monotonic()

        async def dribble() -> None:
            for byte in GET * 10 if pause else b"":
                client.writer.write(bytes([byte]) if byte not in b"\r\n" else b"x")
                await asyncio.sleep(pause or 0)

        dribbling = asyncio.create_task(dribble())
        assert await client.rest() == b""
        assert 0.4 < time.monotonic() - began < 5
        dribbling.cancel()
        client.close()
        assert (await host.ask()).status == 200

    on_host(tmp_path, work, replace(LOCAL, head_s=0.5))


def test_the_next_request_must_come_in_time_as_well(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        for start in (b"", GET[:9]):
            client = await host.connect()
            assert (await client.ask()).status == 200
            await asyncio.sleep(0.1)
            assert (await client.ask()).status == 200
            client.writer.write(start)
            began = time.monotonic()
            assert await client.rest() == b""
            assert 0.2 < time.monotonic() - began < 5
            client.close()

    on_host(tmp_path, work, replace(LOCAL, idle_s=0.3))


def test_the_time_that_an_answer_takes_is_no_idle_time(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        client.writer.write(b"GET /wait HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.sleep(0.5)
        host.go_on.set()
        assert (await client.answer()).body == b"at last"
        client.close()

    on_host(tmp_path, work, replace(LOCAL, head_s=0.2, idle_s=0.2))


def test_one_request_a_connection_where_none_may_be_idle(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        answer = await client.ask(2 * GET)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.rest() == b""
        client.close()

    on_host(tmp_path, work, LOOPBACK)


def test_who_does_not_read_holds_its_answer_up_and_is_cut_in_the_end(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        client.writer.transport.pause_reading()
        client.writer.write(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.sleep(0.3)
        sent = host.sent
        assert 0 < sent < 20
        await asyncio.sleep(0.3)
        assert host.sent == sent
        assert (await host.ask()).status == 200
        await asyncio.sleep(0.8)
        client.writer.transport.resume_reading()
        assert len(await client.rest()) < BIG
        client.close()

    on_host(tmp_path, work, replace(LOCAL, stall_s=1))


def test_a_slow_reader_has_it_all(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        client.writer.write(b"GET /big HTTP/1.0\r\n\r\n")
        await client.answer(head_only=True)
        got = 0
        while part := await client.reader.read(1 << 20):
            got += len(part)
            await asyncio.sleep(0.01)
        assert got == BIG
        client.close()

    on_host(tmp_path, work, replace(LOCAL, stall_s=1))


@pytest.mark.parametrize(
    "request_", [b"POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % BIG,
                 b"GET /wait HTTP/1.1\r\nHost: h\r\n\r\n"],
)  # fmt: skip
def test_what_is_sent_ahead_of_the_app_waits_in_the_kernel(tmp_path: Path, request_: bytes) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        client.writer.write(request_)
        await until(lambda: host.waiting)
        client.writer.write(GET * (BIG // len(GET)))
        await asyncio.sleep(0.5)
        transport: Any = client.writer.transport
        assert transport.get_write_buffer_size() > BIG - (2 << 20)
        assert (await host.ask()).status == 200
        transport.abort()

    on_host(tmp_path, work)


def test_it_answers_while_all_kinds_of_clients_hold_connections(tmp_path: Path, descriptors: None) -> None:
    async def work(host: Host) -> None:
        firsts = [b"", GET[:5], b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n", b"GET /wait HTTP/1.1\r\nHost: h\r\n\r\n",
                  b"POST /json HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{", b"GET /stream HTTP/1.0\r\n\r\n"]  # fmt: skip
        held = [await host.connect() for _ in range(MANY - 10)]  # that of an answered one may still be open
        for number, client in enumerate(held):
            client.writer.transport.pause_reading()
            client.writer.write(firsts[number % len(firsts)])
        for _ in range(20):
            began = time.monotonic()
            assert (await host.ask()).body == b"hello"
            assert time.monotonic() - began < 5
        for client in held:
            client.writer.transport.abort()
        await until(lambda: host.ended == len(held) // len(firsts))

    on_host(tmp_path, work)


def test_a_head_has_a_size(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        answer = await host.ask(b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 2 * connection.HEAD_MAX)
        assert (answer.status, answer.code) == (431, "bad_request")

    on_host(tmp_path, work)


def test_a_head_has_so_many_headers(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        more = connection.HEADERS_MAX - 1  # with Host
        assert (await host.ask(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"a:b\r\n" * more + b"\r\n")).status == 200
        answer = await host.ask(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"a:b\r\n" * (more + 1) + b"\r\n")
        assert (answer.status, answer.code) == (431, "bad_request")
        assert b"more than 100 headers" in answer.body

    on_host(tmp_path, work)


# -- its end


def test_at_its_end_what_is_answered_goes_on_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(tmp_path / "sock")
        server = Server(host.app, LOCAL)
        await server.start(listen(host.path))
        idle, used, busy = [await host.connect() for _ in range(3)]
        await used.ask()
        busy.writer.write(b"GET /wait HTTP/1.1\r\nHost: h\r\n\r\n" + GET)
        await until(lambda: host.waiting)
        server.end()
        assert await idle.rest() == await used.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await host.connect()
        host.go_on.set()
        assert (await busy.answer()).body == b"at last"
        assert await busy.rest() == b""
        for client in (idle, used, busy):
            client.close()

    asyncio.run(main())


def test_an_open_stream_does_not_hold_the_end_up(tmp_path: Path) -> None:
    async def main() -> Host:
        host = Host(tmp_path / "sock")
        server = Server(host.app, LOCAL)
        await server.start(listen(host.path))
        client.connect(str(host.path))
        client.sendall(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.to_thread(client.recv, 1000)
        server.end()
        return host

    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        began = time.monotonic()
        host = asyncio.run(main())
        assert time.monotonic() - began < 2
        assert host.ended == 1
        while client.recv(1000):
            pass


# -- HTTP/1.1


def test_a_connection_serves_one_request_after_another_in_order(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        body = b'{"a":1}'
        post = b"POST /json HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        client.writer.write(GET + post + b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n" + GET)
        found = [await client.answer() for _ in range(4)]
        assert [(a.version, a.status, a.reason) for a in found] == [
            ("HTTP/1.1", 200, "OK"), ("HTTP/1.1", 200, "OK"), ("HTTP/1.1", 404, "Not Found"), ("HTTP/1.1", 200, "OK"),
        ]  # fmt: skip
        assert json.loads(found[1].body) == {"a": 1}
        assert found[2].code == "unknown_path"
        assert (await client.ask()).body == b"hello"
        client.close()

    on_host(tmp_path, work)


def test_a_body_that_nobody_reads_is_skipped(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        unread = b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nxxxxx"
        assert (await client.ask(unread)).status == 200
        assert (await client.ask(unread)).status == 200
        # Clients send it apart from the head, which may be answered already.
        assert (await client.ask(unread[:-5])).status == 200
        assert (await client.ask(unread[-5:] + GET)).body == b"hello"
        # One that does not come.
        assert (await client.ask(unread[:-2])).status == 200
        assert await client.rest() == b""
        client.close()

    on_host(tmp_path, work, replace(LOCAL, idle_s=0.5))


def test_a_long_body_that_nobody_reads_closes_the_connection_at_once(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        await client.ask(GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 99999999\r\n\r\n"))
        began = time.monotonic()
        client.writer.write(bytes(connection.DISCARD_MAX + 1))
        assert await client.rest() == b""
        assert time.monotonic() - began < LOCAL.idle_s / 2
        client.close()

    on_host(tmp_path, work)


def test_a_large_body_is_read_as_it_comes(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        for size in (1 << 20, 3, 1 << 20):
            head = b"POST /count HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size
            assert int((await client.ask(head + bytes(size))).body) == size
        client.close()

    on_host(tmp_path, work)


def test_http_1_0(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        assert (await client.ask(b"GET / HTTP/1.0\r\n\r\n")).body == b"hello"
        assert await client.rest() == b""
        client.close()
        client = await host.connect()
        answer = await client.ask(b"GET /stream HTTP/1.0\r\n\r\n", head_only=True)
        assert "transfer-encoding" not in answer.headers
        host.go_on.set()
        assert await client.rest() == b"one\ntwo\n"
        client.close()

    on_host(tmp_path, work)


def test_head_has_no_body(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        for path in (b"/", b"/stream", b"/nowhere"):
            answer = await client.ask(b"HEAD %b HTTP/1.1\r\nHost: h\r\n\r\n" % path, head_only=True)
            assert answer.status == (404 if path == b"/nowhere" else 200)
            if path == b"/stream":
                host.go_on.set()
            else:
                assert int(answer.headers["content-length"]) > 0
        assert (await client.ask()).body == b"hello"
        client.close()

    on_host(tmp_path, work)


def test_a_body_in_chunks(tmp_path: Path) -> None:
    head = b"POST /json HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def work(host: Host) -> None:
        client = await host.connect()
        client.writer.write(head)
        for chunk in (b'2\r\n{"\r\n', b'6\r\nb": 2', b"}\r\n", b"0\r\n\r\n"):
            client.writer.write(chunk)
            await asyncio.sleep(0.02)
        assert json.loads((await client.answer()).body) == {"b": 2}
        client.writer.write(head + b"%x\r\n" % 2000 + b"x" * 2000 + b"\r\n")
        assert (await client.answer()).code == "too_large"
        client.close()
        answer = await host.ask(head + b"what\r\n")
        assert (answer.status, answer.code) == (400, "bad_request")

    on_host(tmp_path, work)


def test_who_expects_a_go_ahead_gets_it_if_the_body_is_wanted(tmp_path: Path) -> None:
    def head(path: bytes) -> bytes:
        return b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n" % path

    async def work(host: Host) -> None:
        client = await host.connect()
        assert (await client.ask(head(b"/json"), head_only=True)).status == 100
        assert (await client.ask(b"{}")).body == b"{}"
        assert (await client.ask(head(b"/nowhere"))).status == 404
        client.close()

    on_host(tmp_path, work)


def test_who_has_sent_all_and_closed_that_way_is_answered(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        for request, status in (
            (GET, 200),
            (b"POST /json HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{", 400),  # not all
        ):
            client = await host.connect()
            client.writer.write(request)
            client.writer.write_eof()
            assert (await client.answer()).status == status
            assert await client.rest() == b""
            client.close()

    on_host(tmp_path, work)


@pytest.mark.parametrize(
    "nonsense",
    [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"],
)  # fmt: skip
def test_what_is_not_http_is_answered_so(tmp_path: Path, nonsense: bytes) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        answer = await client.ask(nonsense)
        assert (answer.status, answer.code) == (400, "bad_request")
        assert await client.rest() == b""
        client.close()

    on_host(tmp_path, work)


def test_what_is_not_http_is_one_line_a_minute_that_quotes_none_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """h11's own texts quote what was sent, and that may be a part of a message."""

    async def work(host: Host) -> None:
        for _ in range(5):
            assert (await host.ask(b"a secret\r\n\r\n")).status == 400
        assert (await host.ask(chunked + b"a secret\r\n")).status == 400
        monkeypatch.setattr(http, "SELDOM_S", 0.0)
        assert (await host.ask(b"a secret\r\n\r\n")).status == 400

    chunked = b"POST /json HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    with caplog.at_level(logging.DEBUG):
        on_host(tmp_path, work)
    line = f"a process (pid {os.getpid()}, uid={os.getuid()}) sent what is not HTTP/1.1"
    said = [record.getMessage() for record in caplog.records if record.name.startswith("hostguard")]
    assert said == [line, f"{line} (5 more like it since the last such line)"]


def test_who_wants_a_websocket_has_plain_http(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        upgrade = GET[:-2] + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert (await host.ask(upgrade)).body == b"hello"

    on_host(tmp_path, work)


# -- what the app sees, and its faults


def test_the_app_knows_who_calls(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        answer = await host.ask(b"GET /peer HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n")
        assert json.loads(answer.body) == [os.getpid(), os.getuid()]

    on_host(tmp_path, work)


def test_a_fault_is_answered_and_logged_and_the_connection_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        assert (await client.ask(b"GET /problem HTTP/1.1\r\nHost: h\r\n\r\n")).code == "conflict"
        assert caplog.records == []
        answer = await client.ask(b"GET /fault HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (answer.status, answer.code) == (500, "internal")
        assert (await client.ask()).status == 200
        client.close()

    with caplog.at_level(logging.WARNING):
        on_host(tmp_path, work)
    assert [record.getMessage() for record in caplog.records] == ["cannot answer GET /fault"]


def test_a_fault_in_the_middle_of_an_answer_cuts_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def pieces() -> AsyncGenerator[bytes, None]:
            yield b"one\n"
            raise RuntimeError("a fault")

        await Stream(pieces(), "text/plain")(scope, receive, send)

    async def main() -> None:
        server = Server(app, LOCAL)
        await server.start(listen(tmp_path / "sock"))
        client = Client(*await asyncio.open_unix_connection(tmp_path / "sock"))
        client.writer.write(GET)
        assert (await client.rest()).endswith(b"\r\n\r\n4\r\none\n\r\n")
        client.close()
        server.end()

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == ["cannot answer GET /"]


@pytest.mark.parametrize("half", [False, True])
def test_a_stream_ends_when_its_client_leaves(tmp_path: Path, half: bool) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        await client.ask(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n", head_only=True)
        assert await client.reader.readline() == b"4\r\n"
        assert host.ended == 0
        if half:
            client.writer.write_eof()
        else:
            client.close()
        await until(lambda: host.ended == 1)
        client.close()

    on_host(tmp_path, work)


def test_a_stream_that_waits_for_its_client_ends_when_that_leaves(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        client.writer.transport.pause_reading()
        client.writer.write(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: host.sent)
        await asyncio.sleep(0.1)
        assert host.cut == 0
        client.writer.write_eof()
        await until(lambda: host.cut)
        assert host.sent < 20
        client.writer.transport.abort()

    on_host(tmp_path, work)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_handler_can_ask_if_the_client_has_left(tmp_path: Path, leaves: bool) -> None:
    async def work(host: Host) -> None:
        client = await host.connect()
        client.writer.write(b"POST /left HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
        await until(lambda: host.waiting)
        if leaves:
            client.close()
            await asyncio.sleep(0.1)
        host.go_on.set()
        await until(lambda: host.ended)
        assert host.ended == 1 + leaves
        client.close()

    on_host(tmp_path, work)


def test_nothing_is_imported_once_it_serves(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        await host.ask()
        loaded = set(sys.modules)
        host.go_on.set()
        for path in (b"/stream", b"/fault", b"/problem", b"/nowhere", b"/left"):
            client = await host.connect()
            await client.ask(b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n" % path)
            client.close()
        assert set(sys.modules) - loaded == set()

    on_host(tmp_path, work)


def test_the_daemon_goes_without_what_it_does_not_need() -> None:
    program = "import sys, hostguard.daemon; print({'click', 'httpx', 'uvicorn', 'logging.config', 'multiprocessing', 'anyio._backends._asyncio'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_a_request_whose_client_gave_up_before_it_was_accepted_is_not_carried_out(tmp_path: Path) -> None:
    """It waited in the backlog, while no guard ran: whoever sent it was told that nothing was done."""

    async def main() -> None:
        host, listener = Host(tmp_path / "sock"), listen(tmp_path / "sock")
        gone, half, there = [await host.connect() for _ in range(3)]
        for client in (gone, half, there):
            client.writer.write(GET.replace(b"/ ", b"/wait "))
        gone.close()
        await gone.writer.wait_closed()
        half.writer.write_eof()
        server = Server(host.app, LOCAL)
        await server.start(listener)
        await until(lambda: host.waiting == 2)
        await asyncio.sleep(0.1)
        assert host.waiting == 2
        host.go_on.set()
        for client in (half, there):
            assert (await client.answer()).body == b"at last"
            client.close()
        server.end()
        await asyncio.sleep(0.01)  # so that transports are closed

    asyncio.run(main())
