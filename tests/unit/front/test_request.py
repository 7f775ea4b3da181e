"""Requests are cut apart, their bytes stay as they came, and what a mind may take for a message is seen."""

from __future__ import annotations

import json

import h11
import pytest

from hostguard.core import payload
from hostguard.front.request import (
    NotHttp,
    Requests,
    is_http,
    is_message,
    leaves_http,
    payload_of,
    session_of,
    size_of,
    taken,
)

PLAIN = b'POST /message HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n{"a":1}'
CHUNKED = b"POST /message HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def pieces(*sent: bytes) -> tuple[list[bytes], list[bytes], bytes]:
    """(the bytes of each request, its body, what came after the last)."""
    requests, raw, whole, bodies, body = Requests(), b"", [], [], b""
    for data in sent:
        requests.feed(data)
        while (piece := requests.next()) is not None:
            raw, body = raw + piece.raw, body + piece.data
            if piece.end:
                whole.append(raw)
                bodies.append(body)
                raw = body = b""
    return whole, bodies, requests.rest()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_requests_are_cut_apart_however_they_come(size: int) -> None:
    sent = PLAIN + GET + CHUNKED + PLAIN
    parts = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert pieces(*parts) == ([PLAIN, GET, CHUNKED, PLAIN], [b'{"a":1}', b"", b"{}\n", b'{"a":1}'], b"")


def test_what_follows_an_upgrade_is_left() -> None:
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    requests = Requests()
    requests.feed(upgrade + b"\x81\x05hello")
    head = requests.next()
    assert head is not None
    assert head.head is not None
    assert leaves_http(head.head)
    end = requests.next()
    assert end is not None
    assert end.end
    assert requests.rest() == b"\x81\x05hello"


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /message\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 70_000,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_no_request(sent: bytes) -> None:
    with pytest.raises(NotHttp):
        pieces(sent)


@pytest.mark.parametrize(
    ("method", "target", "is_one"),
    [
        ("POST", "/message", True),
        ("POST", "/message?x=1", True),
        ("POST", "http://127.0.0.1:4100/message", True),  # Node's URL() takes the path of it
        ("POST", "/./message", True),
        ("POST", "/x/..\\message", True),
        ("GET", "/message", False),
        ("POST", "/messages", False),
        ("POST", "/control", False),
        ("POST", "/?x=/message", False),
    ],
)
def test_a_message_is_what_a_mind_takes_for_one(method: str, target: str, is_one: bool) -> None:
    assert is_message(h11.Request(method=method, target=target, headers=[("Host", "x")])) is is_one


def test_only_what_may_be_http_is_read_as_http() -> None:
    assert is_http(b"POST")
    assert is_http(b"\r\nPOST")  # node leaves empty lines before a request aside
    assert not is_http(b"\x16\x03\x01")  # TLS


def test_the_size_is_what_the_head_says() -> None:
    head = h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "12")])
    assert size_of(head) == 12
    assert size_of(h11.Request(method="POST", target="/", headers=[("Host", "x")])) is None


@pytest.mark.parametrize(
    ("body", "session"),
    [
        ({}, "main"),
        ({"session": ""}, "main"),
        ({"session": "#x"}, "#x"),
        ({"thread": "t"}, "t"),
        ({"session": 5}, "main"),
    ],
)
def test_the_session_is_the_one_that_volute_chose(body: dict[str, object], session: str) -> None:
    assert session_of(body) == session


@pytest.mark.parametrize("name", ["$script:x", "x" * 101, "a\nb"])
def test_a_session_that_the_guard_cannot_have_gets_another_name(name: str) -> None:
    other = session_of({"session": name})
    assert other.startswith("session-")
    assert other == session_of({"session": name}) != session_of({"session": f"{name}2"})


def test_the_payload_has_the_request_byte_for_byte() -> None:
    raw = PLAIN + bytes(range(256)) + '"ü\ud83d"'.encode(errors="surrogatepass")
    stored = payload_of({"sender": "bob", "channel": "\ud800", "interrupt": False}, "s", raw)[1]
    assert payload.request(stored) == raw
    told = json.loads(stored)
    assert (told["sender"], told["channel"], told["session"], told["interrupt"]) == ("bob", None, "s", False)


def test_another_payload_has_no_request() -> None:
    assert payload.request(payload.compact({"content": "x", "request": "y"})) is None


def test_it_is_answered_as_a_mind_would() -> None:
    assert taken({}).endswith(b'\r\n\r\n{"ok":true}')
    assert taken({"kind": "event"}).endswith(b'\r\n\r\n{"event":true}')
    assert b"Connection: close\r\n" in taken({})


@pytest.mark.parametrize(("raw", "content"), [(b'{"content":"hi"}', "hi"), (b"5\r\n{}", None), (b"[]", None)])
def test_a_person_reads_the_content_of_a_request(raw: bytes, content: str | None) -> None:
    shown = payload.shown(payload_of({}, "main", b"POST /message HTTP/1.1\r\n\r\n" + raw)[1])
    assert (shown.get("content"), shown["session"]) == (content, "main")
    assert "request" not in shown
