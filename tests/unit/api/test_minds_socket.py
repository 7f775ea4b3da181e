"""The socket of the minds' endpoint: where it listens, and what it costs to hold it up."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import httpx
import pytest
from minds_endpoint import TOKENS, Host, on_host
from until import until

from hostguard.api import server, volute


def test_it_is_off_until_configured_and_follows_the_configuration():
    async def work(host):
        await host.endpoint.reload(None)
        with pytest.raises(httpx.ConnectError):
            await host.event({"type": "x"})
        with socket.create_server(("127.0.0.1", host.port)):
            await host.endpoint.reload(host.config.events_listen)
            assert f"port {host.port}: it is taken by user" in str(host.endpoint.problem)
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
    with socket.socket() as sock:
        assert server.client_of(sock, ("192.0.2.1", 5000)) is None
        assert server.client_of(sock, ("127.0.0.2", 5000)) == ("127.0.0.2", 5000)


class Client:
    """A connection of a user, as the kernel sees it."""

    def __init__(self, host: Host, uid: int = 0) -> None:
        self.sock = socket.socket()
        os.fchown(self.sock.fileno(), uid, uid)
        self.sock.setblocking(False)
        self._address = "127.0.0.1", host.port

    async def connect(self, sent: bytes = b"") -> Client:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.sock, self._address)
        await loop.sock_sendall(self.sock, sent)
        return self

    async def rest(self) -> bytes:
        """All that comes until the server closes the connection."""
        found = b""
        try:
            while part := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 65536), 10):
                found += part
        except ConnectionResetError:  # it was closed before all that was sent had been read
            pass
        self.sock.close()
        return found


SLOW = (
    f"POST /api/minds/ann/message HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['ann']}\r\n".encode()
)
SLOW += b"Content-Length: 2\r\n\r\n{"


def test_who_only_holds_connections_cannot_keep_minds_out(caplog):
    async def work(host):
        began = asyncio.get_running_loop().time()
        heads = b"POST /api/minds/ann/events HTTP/1.1\r\nHost: x\r\nX-Slow:"
        held = [await Client(host, 1003).connect(heads[: i % 50]) for i in range(server.LOOPBACK.connections)]
        for _ in range(20):
            assert await host.event({"type": "x"}) == 200
            held.append(await Client(host, 1003).connect(b"POST"))
        answers = [await client.rest() for client in held]
        told = [answer for answer in answers if answer]
        assert 20 <= len(told) <= 40
        assert answers == told + [b""] * (
            len(held) - len(told)
        )  # the oldest first, the others when the time is over
        head, _, body = told[0].partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert json.loads(body)["code"] == "unavailable"
        assert asyncio.get_running_loop().time() - began < server.LOOPBACK.head_s + 20
        assert await host.event({"type": "x"}) == 200

    on_host(work)
    [said] = [record.getMessage() for record in caplog.records]
    assert f"all {server.LOOPBACK.connections} connections to port" in said
    assert f"; uid 1003 has {server.LOOPBACK.connections - 1} of them" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives sockets to other users")
def test_a_request_with_a_token_keeps_its_place_and_the_rest_is_shared_by_user():
    async def work(host):
        most = server.LOOPBACK.connections
        slow = [await Client(host, 1001).connect(SLOW) for _ in range(most)]
        idle = [await Client(host, 5000 + number).connect() for number in range(most)]  # each of another user
        assert await host.event({"type": "x"}) == 200
        loop = asyncio.get_running_loop()
        answered = []
        for client in slow:
            try:
                await loop.sock_sendall(client.sock, b"}")
            except OSError:
                continue
            answered.append((await client.rest()).startswith(b"HTTP/1.1 400"))  # a message without a content
        assert sum(answered) == most // 2
        for client in slow + idle:
            client.sock.close()

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
