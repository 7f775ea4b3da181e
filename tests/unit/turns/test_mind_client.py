"""One POST to a mind's server, a real one on loopback that answers as no good one does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from hostguard.core.model import Delivery, Kind, Mind, State
from hostguard.linux.sockets import Marked
from hostguard.turns import mind_transport
from hostguard.turns.mind_client import MindClient, Outcome, Posted
from hostguard.turns.mind_listener import MindListeners, Unseen

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n"
ROW = Delivery(
    id=7, mind="m", session="s", state=State.QUEUED, kind=Kind.MESSAGE, key=None, sender=None, channel=None,
    created_at=1000, not_before=0, expires_at=0, attempts=0, turn=None, started_at=0, ended_at=0, result={},
)  # fmt: skip


class Manager:
    control_group = ""


def posted_to(url: str) -> Coroutine[Any, Any, Posted]:
    return MindClient(Manager(), Marked()).post(Mind("m", url=url), ROW, {"content": "hi"}, "7")


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
        try:
            return await asyncio.wait_for(posted_to(f"http://127.0.0.1:{port}"), 30)
        finally:
            server.close()
            for task in filter(None, serving):
                task.cancel()
            await asyncio.gather(*filter(None, serving), return_exceptions=True)

    return asyncio.run(main())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a second in place of minutes."""
    monkeypatch.setattr(mind_transport, "POST_S", 1.0)
    monkeypatch.setattr(mind_transport, "BODY_S", 1.0)


def test_the_status_tells_what_came_of_it() -> None:
    assert post(HEAD + b'{"ok":true}') == Posted(Outcome.TAKEN)
    assert post(b"HTTP/1.1 500 No\r\n\r\nout  of\nwords") == Posted(Outcome.REFUSED, "HTTP 500: out of words")
    assert post().outcome is Outcome.REFUSED


def test_what_was_taken_is_taken_whatever_becomes_of_the_body(hasty: None) -> None:
    assert post(HEAD + b"{") == Posted(Outcome.TAKEN), "cut"
    assert post(HEAD + b"{", then=3) == Posted(Outcome.TAKEN), "it does not come"


def test_an_answer_that_trickles_in_has_one_limit_for_all_of_it(hasty: None) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\n", *(b"X-%d: y\r\n" % i for i in range(10))]
    assert post(*pieces, pause=0.4) == Posted(Outcome.REFUSED, "no answer within 1 s")
    assert post(b"HTTP/1.1 500 No\r\n\r\n", *[b"no "] * 10, pause=0.4).text.startswith("HTTP 500: no no")


def test_nobody_listens() -> None:
    posted = asyncio.run(posted_to("http://127.0.0.1:9"))
    assert posted.outcome is Outcome.DOWN
    assert "http://127.0.0.1:9 accepts no connections" in posted.text


@pytest.mark.parametrize("url", ["http://xn--a:4100", "http://\udc80:1", "http://[::1", "ftp://a"])
def test_a_url_that_cannot_be_posted_to_is_refused(url: str) -> None:
    """The library raises what it likes there, such as a UnicodeError of idna. A name may be unknown."""
    assert asyncio.run(posted_to(url)).outcome in (Outcome.REFUSED, Outcome.DOWN)


# -- what a mind may send


def test_interim_answers_are_bounded_in_number() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert post(interim * mind_transport.INTERIM_MAX + HEAD + b"{}").outcome is Outcome.TAKEN
    assert post(interim * 100_000, then=3) == Posted(
        Outcome.REFUSED, "the connection broke: more than 8 interim answers (100), and no other"
    )
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    assert "more than 8 interim answers (103)" in post(early * 9, then=3).text


def test_heads_are_bounded_in_bytes_and_time(hasty: None) -> None:
    line = b"X: " + b"y" * 1000 + b"\r\n"
    assert post(b"HTTP/1.1 200 OK\r\n" + line * 10 + b"\r\n").outcome is Outcome.TAKEN
    for answer in (b"HTTP/1.1 200 OK\r\n" + line * 40, b"HTTP/1.1 200 " + b"O" * 40_000):
        assert post(answer, then=3).outcome is Outcome.REFUSED
        assert post(answer, then=3).text != "no answer within 1 s"
    several = (b"HTTP/1.1 100 Continue\r\n" + line * 5 + b"\r\n") * 5
    assert "has more than 16 KiB" in post(several, then=3).text, "all of them together"
    assert post(b"HTTP/1.1 100 Continue\r\n\r\n", *[b"HTTP/1.1 100 C\r\n\r\n"] * 6, pause=0.3).text == (
        "no answer within 1 s"
    )


def test_a_body_is_read_only_as_far_as_it_is_shown() -> None:
    assert post(b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 1_000_000).text == "HTTP 500: " + "x" * 200
    assert post(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000).text == (
        "HTTP 500: " + "x" * 200
    )


def test_an_answer_that_is_none() -> None:
    assert post(b"hello\r\n\r\n").outcome is Outcome.REFUSED
    assert post(b"HTTP/1.1 101 Switching\r\n\r\n", then=1).outcome is Outcome.REFUSED


def test_the_event_loop_goes_on_meanwhile() -> None:
    """An endless answer must not be read without a pause for others."""
    longest = 0.0

    async def main() -> None:
        nonlocal longest
        server = await asyncio.start_server(endless, "127.0.0.1", 0)
        watching = asyncio.ensure_future(watch())
        await posted_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        watching.cancel()
        server.close()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000)
            await writer.drain()
        writer.close()

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    asyncio.run(main())
    assert longest < 0.2, "seconds of CPU between two turns of the loop"


# -- whom it is sent to


@pytest.mark.parametrize("found", ["user eve (pid 5 in session-3.scope)", None, Unseen("it is left")])
def test_nothing_is_sent_before_it_is_known_who_listens(
    monkeypatch: pytest.MonkeyPatch, found: str | Exception | None
) -> None:
    got = bytearray()
    asked: list[Any] = []

    def stranger(self: MindListeners, mind: Mind, local: Any, peer: Any) -> str | None:
        time.sleep(0.1)
        asked.append((mind.name, local, peer, bytes(got)))
        if isinstance(found, Exception):
            raise found
        return found

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.read(1000))
        asked.append(writer.get_extra_info("peername"))
        writer.write(HEAD + b'{"ok":true}')
        writer.close()

    async def main() -> Posted:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            return await posted_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        finally:
            await asyncio.sleep(0.05)
            server.close()

    monkeypatch.setattr(MindListeners, "stranger", stranger)
    posted = asyncio.run(main())
    name, local, (host, port), before = asked[0]
    assert (name, host, before) == ("m", "127.0.0.1", b"")
    assert local == asked[1], "this very connection"
    if found is None:
        assert posted == Posted(Outcome.TAKEN)
        assert b"hi" in got
    else:
        assert got == b""
        assert posted.outcome is (Outcome.STRANGER if isinstance(found, str) else Outcome.DOWN)
        assert posted.text.startswith(f"its port {port} is taken by user eve") is isinstance(found, str)
