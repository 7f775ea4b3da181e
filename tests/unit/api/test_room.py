"""The budget of bytes in flight: who gets room, who waits, and that all of it comes back."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from until import until

from hostguard.api.app import make_app
from hostguard.api.http import (
    ALL_MAX,
    ANSWER,
    OWN_MAX,
    ROOT,
    SMALL,
    Budget,
    Room,
    json_object,
    on,
    room_to_answer,
)
from hostguard.api.server import LOCAL, LOOPBACK, Server, listen, listen_tcp
from hostguard.core.errors import Problem, conflict

SOON = 0.02


async def taken(room: Room, owner: str, size: int) -> bool:
    try:
        await room.take(owner, size, SOON)
    except Problem as problem:
        assert (problem.status, problem.code) == (429, "busy")
        assert owner in problem.detail
        assert str(size) in problem.detail
        return False
    return True


def test_an_owner_has_so_much_and_all_have_so_much() -> None:
    async def main() -> None:
        room = Room()
        assert await taken(room, "a", OWN_MAX)
        assert not await taken(room, "a", 1)
        assert await taken(room, "b", OWN_MAX - 1)
        assert await taken(room, "c", 1)
        assert ALL_MAX == 2 * OWN_MAX
        assert not await taken(room, "c", 1)
        assert await taken(room, ROOT, OWN_MAX), "root has room where all others have none"
        assert not await taken(room, ROOT, 1)
        room.give("a", OWN_MAX)
        room.give(ROOT, OWN_MAX)
        assert await taken(room, "c", OWN_MAX - 1)

    asyncio.run(main())


def test_what_is_larger_than_all_goes_alone() -> None:
    async def main() -> None:
        room = Room()
        assert await taken(room, "a", 9 * ALL_MAX)
        assert not await taken(room, "b", 1)
        room.give("a", 9 * ALL_MAX)
        assert await taken(room, "b", 1)
        assert not await taken(room, "a", 9 * ALL_MAX)

    asyncio.run(main())


def test_those_with_the_least_are_served_first_and_each_in_order() -> None:
    async def main() -> None:
        room, got = Room(), []

        async def wait(owner: str, size: int) -> None:
            await room.take(owner, size, 10)
            got.append((owner, size))

        for _ in range(2):
            await room.take("greedy", OWN_MAX // 2, 1)
        await room.take("other", OWN_MAX, 1)
        wanted = [("greedy", 3), ("greedy", 2), ("modest", 7), ("greedy", 1)]
        waiting = [asyncio.ensure_future(wait(*one)) for one in wanted]
        await asyncio.sleep(0)
        room.give("greedy", OWN_MAX // 2)
        await asyncio.gather(*waiting)
        assert got == [("modest", 7), ("greedy", 3), ("greedy", 2), ("greedy", 1)]

    asyncio.run(main())


def test_who_gives_up_leaves_nothing_behind() -> None:
    async def main() -> None:
        room = Room()
        await room.take("a", OWN_MAX, 1)
        gone, at_once = (asyncio.ensure_future(room.take("a", 5, 10)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        room.give("a", OWN_MAX)
        at_once.cancel()  # when it had its room already
        await asyncio.wait([at_once])
        if not at_once.cancelled():  # Python 3.11 leaves it to the caller
            room.give("a", 5)
        assert await taken(room, "a", OWN_MAX)

    asyncio.run(main())


class Host:
    """A server whose handlers a test holds."""

    def __init__(self, path: Path) -> None:
        self.path, self.budget, self.go_on, self.inside = path, Budget(), asyncio.Event(), 0
        self.app = make_app(self.budget, self)

    @on("POST", "/hold")
    async def hold(self, request: Request) -> Response:
        body = await json_object(request, OWN_MAX, within=0.3)
        self.inside += 1
        await self.go_on.wait()
        self.inside -= 1
        if "refuse" in body:
            raise conflict("no")
        return JSONResponse(len(str(body)))

    @on("GET", "/large", reads=True)
    async def large(self, request: Request) -> Response:
        self.inside += 1
        await self.go_on.wait()
        return JSONResponse("x" * (OWN_MAX // 2))

    @on("GET", "/late")
    async def late(self, request: Request) -> Response:
        await room_to_answer(request)
        return JSONResponse("x" * SMALL * 2)

    async def ask(self, raw: bytes, read: bool = True) -> tuple[asyncio.StreamWriter, int, bytes]:
        reader, writer = await asyncio.open_unix_connection(str(self.path), limit=1 << 24)
        writer.write(raw)
        if not read:
            return writer, 0, b""
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        writer.close()
        return writer, int(head[9:12]), body

    def free(self) -> bool:
        return not any(room._used or room._waiting for room in (self.budget.bodies, self.budget.answers))


def on_host(path: Path, work: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        host = Host(path / "sock")
        server = Server(host.app, LOCAL)
        await server.start(listen(host.path))
        await asyncio.wait_for(work(host), 30)
        await until(host.free)
        server.end()

    asyncio.run(main())


def posted(body: bytes, length: int | None = None) -> bytes:
    return b"POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body) if length is None else length, body,
    )  # fmt: skip


def sized(size: int, **more: Any) -> bytes:
    return json.dumps({"x": "y" * (size - 100), **more}).encode()


def test_a_small_body_never_waits_for_large_ones(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        large = [asyncio.ensure_future(host.ask(posted(sized(OWN_MAX // 3)))) for _ in range(6)]
        await until(lambda: host.inside == 3)
        small = asyncio.ensure_future(host.ask(posted(sized(SMALL))))
        await until(lambda: host.inside == 4)
        host.go_on.set()
        assert {answer[1] for answer in await asyncio.gather(small, *large)} == {200}

    on_host(tmp_path, work)


@pytest.mark.parametrize(
    "body", [sized(SMALL * 2, refuse=1), b"[" * SMALL * 2, b'"' + b"x" * SMALL * 2 + b'"']
)
def test_a_refused_body_gives_its_room_back(tmp_path: Path, body: bytes) -> None:
    async def work(host: Host) -> None:
        host.go_on.set()
        for _ in range(3):
            assert (await host.ask(posted(body)))[1] in (400, 409)
        await until(host.free)

    on_host(tmp_path, work)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        _, status, said = await host.ask(posted(b"", OWN_MAX + 1))
        assert (status, json.loads(said)["detail"]) == (
            413,
            f"the body has more than {OWN_MAX} bytes, which is the most",
        )
        chunked = posted(b"")[: -len("Content-Length: 0\r\n\r\n")] + b"Transfer-Encoding: chunked\r\n\r\n"
        assert (await host.ask(chunked + b"%x\r\n" % (OWN_MAX + 1) + bytes(OWN_MAX + 1)))[1] == 413

    on_host(tmp_path, work)


def test_an_unfinished_body_has_its_room_for_a_while(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        raw = posted(sized(OWN_MAX))[:-1]
        halves = [asyncio.ensure_future(host.ask(raw)) for _ in range(3)]
        host.go_on.set()
        whole = await host.ask(posted(sized(OWN_MAX)))
        assert whole[1] == 200, "it had room once those before it did not come"
        for _, status, said in await asyncio.gather(*halves):
            assert (status, json.loads(said)["detail"]) == (503, "the body did not come within 0.3 s")

    on_host(tmp_path, work)


def test_few_large_answers_are_made_at_a_time_and_kept_until_they_are_read(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        get = b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n"
        deaf = [(await host.ask(get, read=False))[0] for _ in range(8)]
        await until(lambda: host.inside == OWN_MAX // ANSWER)
        host.go_on.set()
        await until(lambda: host.budget.answers._used.total() >= OWN_MAX)
        assert host.inside == OWN_MAX // ANSWER
        for writer in deaf:
            writer.transport.abort()
        assert (await host.ask(get))[1] == 200
        assert (await host.ask(b"GET /late HTTP/1.1\r\nHost: h\r\n\r\n"))[1] == 200

    on_host(tmp_path, work)


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives sockets to other users")
def test_callers_of_an_endpoint_are_told_apart_by_user_and_not_by_address(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(tmp_path)
        server, listening = Server(host.app, LOOPBACK), listen_tcp(("127.0.0.1", 0))
        await server.start(listening)

        def ask(uid: int, source: str) -> socket.socket:
            sock = socket.socket()
            sock.bind((source, 0))
            os.fchown(sock.fileno(), uid, uid)
            sock.connect(listening.getsockname())
            sock.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
            return sock

        many = [ask(1001, f"127.0.0.{number}") for number in range(1, 9)]
        await until(lambda: host.inside == OWN_MAX // ANSWER)
        many += [ask(uid, "127.0.0.1") for uid in (1002, 0)]
        await until(lambda: host.inside == OWN_MAX // ANSWER + 2)
        assert {*host.budget.answers._used} == {"uid=1001", "uid=1002", "uid=0"}
        for sock in many:
            sock.close()
        host.go_on.set()
        await until(host.free)
        server.end()

    asyncio.run(asyncio.wait_for(main(), 30))
