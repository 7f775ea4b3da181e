"""The web endpoint on a real socket: who may ask, what an answer lets a browser do, and who may act."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import httpx
import pytest
from onqueue import policy
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.api import web
from hostguard.api.http import Budget, on
from hostguard.api.volute import token_hash
from hostguard.api.web import WebEndpoint, check_token, foreign
from hostguard.core.model import Config
from hostguard.systemd.notify import Notifier

TOKEN = "a token"


def headers(**given: str) -> Headers:
    return Headers(given)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:4300", "localhost:8080", "[::1]:4300", "localhost"])
def test_loopback_names_are_its_own(host: str) -> None:
    assert foreign(headers(host=host)) is None
    assert foreign(headers(host=host, origin=f"http://{host}")) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:4300", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil",
        "192.168.0.7", "0.0.0.0", "127.0.0.1:", "127.0.0.1:4300\n", "", "LOCALHOST.", "[::1", "::1", "127.1",
    ],
)  # fmt: skip
def test_a_name_that_was_bent_to_loopback_is_not(host: str) -> None:
    assert foreign(headers(host=host)) is not None


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://127.0.0.1:4300",
        "http://127.0.0.1:80",
        "http://localhost:4300",
        "null",
        "",
    ],
)
def test_another_origin_is_refused(origin: str) -> None:
    assert foreign(headers(host="127.0.0.1:4300", origin=origin)) is not None


def test_a_page_may_link_here_and_not_have_it_as_an_image() -> None:
    def asked(site: str, mode: str) -> str | None:
        return foreign(Headers({"host": "localhost", "sec-fetch-site": site, "sec-fetch-mode": mode}))

    assert asked("cross-site", "navigate") is None
    assert asked("none", "navigate") is None
    assert asked("same-origin", "cors") is None
    assert asked("cross-site", "no-cors") is not None
    assert asked("same-site", "no-cors") is not None  # another port of this host


def test_two_hosts_are_none() -> None:
    assert foreign(Headers(raw=[(b"host", b"localhost"), (b"host", b"evil")])) is not None
    assert foreign(Headers(raw=[])) is not None


# -- on a socket


def on_endpoint(
    work: Callable[[httpx.AsyncClient, list[str]], Awaitable[None]], token: str | None = TOKEN
) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        config = Config(web_token=token and token_hash(token))
        told = policy(config)
        did: list[str] = []

        class Handlers:
            @on("GET", "/")
            async def look(self, request: Request) -> Response:
                did.append("look")
                return JSONResponse({"ok": True})

            @on("POST", "/act")
            async def act(self, request: Request) -> Response:
                check_token(request, told)
                did.append("act")
                return JSONResponse({"ok": True})

        def load() -> None:
            did.append("load")

        notifier = Notifier()
        endpoint = WebEndpoint(notifier, Budget(), Handlers())
        await endpoint.start(None)
        assert did == []
        with patch.object(web, "_load_page", load):
            await endpoint.reload(("127.0.0.1", port))
        assert did == ["load"]
        did.clear()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                await asyncio.wait_for(work(client, did), 60)
        finally:
            await endpoint.close()
            notifier._socket.close()

    asyncio.run(main())


def test_each_answer_forbids_what_a_browser_need_not_do() -> None:
    async def work(client: httpx.AsyncClient, did: list[str]) -> None:
        for answer in (await client.get("/"), await client.get("/nowhere"), await client.post("/act")):
            assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert answer.headers["cache-control"] == "no-store"
            assert not [name for name in answer.headers if name.startswith("access-control-")]

    on_endpoint(work)


def test_a_foreign_page_is_refused_before_anything_is_done() -> None:
    async def work(client: httpx.AsyncClient, did: list[str]) -> None:
        right = {"Authorization": f"Bearer {TOKEN}"}
        for wrong in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            for answer in (
                await client.get("/", headers=wrong),
                await client.post("/act", headers={**right, **wrong}),
                await client.options("/act", headers=wrong),
            ):
                assert answer.status_code == 403
                assert answer.json()["code"] == "not_allowed"
        assert did == []

    on_endpoint(work)


def test_only_who_has_the_token_acts() -> None:
    async def work(client: httpx.AsyncClient, did: list[str]) -> None:
        for wrong in (
            {},
            {"Authorization": "Bearer no"},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer"},
        ):
            assert (await client.post("/act", headers=wrong)).status_code == 401
        assert did == []
        assert (await client.post("/act", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200
        assert did == ["act"]

    on_endpoint(work)


def test_without_a_configured_token_nobody_acts() -> None:
    async def work(client: httpx.AsyncClient, did: list[str]) -> None:
        for token in ("x", TOKEN, "None"):
            answer = await client.post("/act", headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
        assert did == []

    on_endpoint(work, None)
