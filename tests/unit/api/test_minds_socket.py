"""The socket of the minds' endpoint: where it listens, and what it costs to hold it up."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from minds_endpoint import TOKENS, on_host
from until import until

from hostguard.api import server, volute


def test_it_is_off_until_configured_and_follows_the_configuration():
    async def work(host):
        await host.endpoint.reload(None)
        with pytest.raises(httpx.ConnectError):
            await host.event({"type": "x"})
        with socket.create_server(("127.0.0.1", host.port)):
            await host.endpoint.reload(host.config.events_listen)
            assert f"port {host.port}: Address already in use" in str(host.endpoint.problem)
        await host.endpoint.reload(None)
        assert host.endpoint.problem is None
        await host.endpoint.reload(host.config.events_listen)
        assert await host.event({"type": "x"}) == 200

    on_host(work)


def test_a_port_that_is_taken_is_tried_again(caplog):
    async def work(host):
        await host.endpoint.reload(None)
        with socket.create_server(("127.0.0.1", host.port)):
            await host.endpoint.reload(host.config.events_listen)
        await until(lambda: host.endpoint.problem is None)
        assert await host.event({"type": "x"}) == 200

    on_host(work)
    assert len([record for record in caplog.records if "cannot listen" in record.getMessage()]) == 1


def test_it_listens_on_loopback_only():
    with pytest.raises(OSError, match="not a loopback address"):
        server.listen_tcp(("0.0.0.0", 0))
    with server.listen_tcp(("::1", 0)) as sock:
        assert sock.getsockname()[0] == "::1"


def test_a_peer_that_is_not_of_this_host_is_refused():
    class Outside(asyncio.Transport):
        aborted = False

        def get_extra_info(self, name, default=None):
            return {"peername": peer, "socket": sock}[name]

        def abort(self):
            self.aborted = True

    with socket.socket() as sock:
        for peer in (("192.0.2.1", 5000), None):  # noqa: B007
            outside = Outside()
            server.Server(None, server.LOOPBACK).connection().connection_made(outside)
            assert outside.aborted


def test_who_only_holds_connections_cannot_keep_minds_out():
    async def work(host):
        async def connect():
            return await asyncio.open_connection("127.0.0.1", host.port)

        began = asyncio.get_running_loop().time()
        held = [await connect() for _ in range(server.LOOPBACK.connections)]
        for i, (_, writer) in enumerate(held):
            writer.write(b"POST /api/minds/ann/events HTTP/1.1\r\nHost: x\r\nX-Slow:"[: i % 50])
        reader, over = await connect()
        assert await asyncio.wait_for(reader.read(), 5) == b""  # one more than is allowed is closed at once
        over.close()
        for reader, writer in held:
            assert await asyncio.wait_for(reader.read(), server.LOOPBACK.head_s + 5) == b""
            writer.close()
        assert asyncio.get_running_loop().time() - began < server.LOOPBACK.head_s + 5
        assert await host.event({"type": "x"}) == 200

    on_host(work)


def test_one_request_per_connection():
    async def work(host):
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        body = b'{"type":"x"}'
        writer.write(
            b"POST /api/minds/ann/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
            % (TOKENS["ann"].encode(), len(body), body)
        )
        answer = await asyncio.wait_for(reader.read(), 3)  # to its end: the connection is closed
        assert answer.startswith(b"HTTP/1.1 200")
        writer.close()

    on_host(work)


def test_a_body_that_never_comes_is_given_up_and_may_be_tried_again():
    async def work(host):
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        head = f"POST /api/minds/ann/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['ann']}\r\n"
        writer.write(f"{head}Content-Length: 500\r\n\r\n{{".encode())
        answer = await asyncio.wait_for(reader.read(), volute.BODY_S + 5)
        assert answer.startswith(b"HTTP/1.1 503")
        writer.close()

    on_host(work)
