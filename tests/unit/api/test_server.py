"""The server on its socket: it keeps descriptors free for turns, whoever connects."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hostguard.api.server import CONNECTIONS_MAX, listen, make_server

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def test_connections_are_bounded_and_a_free_place_is_given_again(tmp_path):
    async def ask(reader, writer):
        writer.write(REQUEST)
        return await reader.readline()

    async def main():
        async def hello(request):
            return PlainTextResponse("hello")

        server = make_server(Starlette(routes=[Route("/", hello)]))
        serving = asyncio.create_task(server.serve(sockets=[listen(tmp_path / "sock")]))
        open_ = [await asyncio.open_unix_connection(tmp_path / "sock") for _ in range(CONNECTIONS_MAX)]
        assert b"200" in await ask(*open_[-1])
        reader, writer = await asyncio.open_unix_connection(tmp_path / "sock")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        open_.pop()[1].close()
        await asyncio.sleep(0.1)
        last = await asyncio.open_unix_connection(tmp_path / "sock")
        assert b"200" in await ask(*last)
        for _, writer in [*open_, last]:
            writer.close()
        server.end()
        await serving

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * CONNECTIONS_MAX, limits[1]))
    try:
        asyncio.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_websocket_handshake_imports_nothing(tmp_path):
    upgrade = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")

    async def main():
        async def hello(request):
            return PlainTextResponse("hello")

        server = make_server(Starlette(routes=[Route("/", hello)]))
        serving = asyncio.create_task(server.serve(sockets=[listen(tmp_path / "sock")]))
        loaded = set(sys.modules)
        reader, writer = await asyncio.open_unix_connection(tmp_path / "sock")
        writer.write(upgrade)
        assert (await reader.readline()).startswith(b"HTTP/1.1 ")  # older ones: 400; newer ones serve it
        assert not {name for name in set(sys.modules) - loaded if name.startswith(("ws", "uvicorn"))}
        writer.close()
        server.end()
        await serving

    asyncio.run(main())


def test_the_daemon_goes_without_what_it_never_uses_of_uvicorn():
    """Which others find as it is."""
    program = (
        "import sys, hostguard.daemon; print({'click', 'logging.config', 'multiprocessing'} & {*sys.modules});"
        " import click, logging.config; click.Command, logging.config.dictConfig"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"
