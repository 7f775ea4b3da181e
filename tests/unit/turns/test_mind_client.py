"""One POST to a mind's server, a real one on loopback that answers as no good one does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hostguard.core.model import Delivery, Kind, Mind, State
from hostguard.turns import mind_client
from hostguard.turns.mind_client import MindClient, Outcome, Posted

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n"
ROW = Delivery(
    id=7, mind="m", session="s", state=State.QUEUED, kind=Kind.MESSAGE, key=None, sender=None, channel=None,
    created_at=1000, not_before=0, expires_at=0, attempts=0, turn=None, started_at=0, ended_at=0, result={},
)  # fmt: skip


def post(*answer: bytes, pause: float = 0.0, then: float = 0.0) -> Posted:
    """What comes of a POST whose answer is sent in these pieces, `pause` s apart, and is cut `then` s later."""

    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in answer:
                writer.write(piece)
                await asyncio.sleep(pause)
            await asyncio.sleep(then)
        finally:
            writer.close()
            await writer.wait_closed()

    async def main() -> Posted:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = MindClient()
        try:
            mind = Mind("m", url=f"http://127.0.0.1:{port}")
            return await asyncio.wait_for(client.post(mind, ROW, {"content": "hi"}, "7"), 30)
        finally:
            await client.close()
            server.close()
            for task in filter(None, serving):
                task.cancel()
            await asyncio.gather(*filter(None, serving), return_exceptions=True)

    return asyncio.run(main())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a second in place of minutes."""
    monkeypatch.setattr(mind_client, "POST_S", 1.0)
    monkeypatch.setattr(mind_client, "BODY_S", 1.0)


def test_the_status_tells_what_came_of_it() -> None:
    assert post(HEAD + b'{"ok":true}') == Posted(Outcome.TAKEN)
    assert post(b"HTTP/1.1 500 No\r\n\r\nout  of\nwords") == Posted(Outcome.REFUSED, "HTTP 500: out of words")
    assert post().outcome is Outcome.REFUSED


def test_what_was_taken_is_taken_whatever_becomes_of_the_body(hasty: None) -> None:
    assert post(HEAD + b"{") == Posted(Outcome.TAKEN), "cut"
    assert post(HEAD + b"{", then=3) == Posted(Outcome.TAKEN), "it does not come"


def test_nor_does_it_matter_that_the_connection_took_long(
    hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = asyncio.BaseEventLoop.create_connection

    async def slowly(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.4)  # longer than anyio waits before it tries another address
        return await connect(*args, **kwargs)

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", slowly)
    assert post(HEAD + b"{", then=3) == Posted(Outcome.TAKEN)
    assert post(HEAD[:15], then=3) == Posted(Outcome.REFUSED, "no answer within 1 s")


def test_an_answer_that_trickles_in_has_one_limit_for_all_of_it(hasty: None) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\n", *(b"X-%d: y\r\n" % i for i in range(10))]
    assert post(*pieces, pause=0.4) == Posted(Outcome.REFUSED, "no answer within 1 s")
    assert post(b"HTTP/1.1 500 No\r\n\r\n", *[b"no "] * 10, pause=0.4).text.startswith("HTTP 500: no no")


def test_nobody_listens() -> None:
    async def main() -> Posted:
        client = MindClient()
        try:
            return await client.post(Mind("m", url="http://127.0.0.1:9"), ROW, {}, "7")
        finally:
            await client.close()

    posted = asyncio.run(main())
    assert posted.outcome is Outcome.DOWN
    assert "http://127.0.0.1:9 accepts no connections" in posted.text


def test_a_client_is_made_once_and_closed() -> None:
    async def main() -> None:
        client = MindClient()
        await client.close()  # none was made: the host has no resident mind
        client.open()
        made = client._client
        client.open()
        assert client._client is made
        assert made is not None
        assert not made.is_closed
        await client.close()
        assert made.is_closed

    asyncio.run(main())


@pytest.mark.parametrize("url", ["http://xn--a:4100", "http://\udc80:1", "http://[::1", "ftp://a"])
def test_a_url_that_cannot_be_posted_to_is_refused(url: str) -> None:
    """httpx raises what it likes there, such as a UnicodeError of idna."""

    async def main() -> Posted:
        client = MindClient()
        try:
            return await client.post(Mind("m", url=url), ROW, {"content": "hi"}, "7")
        finally:
            await client.close()

    assert asyncio.run(main()).outcome is Outcome.REFUSED
