"""Requests on a connection to a mind: cut apart, with their bytes as they came, by h11. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h11

from hostguard.core.names import MAIN_SESSION, OWN_SESSION, SESSION_MAX
from hostguard.core.payload import REQUEST, compact

HEAD_MAX = 16 << 10  # bytes, as for node
TEXT_MAX = 200  # characters of a sender or a channel


class NotHttp(Exception):
    """The client sends what no server of a mind would take for a request."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes as they came, and what they are: a head, a part of the body, the end of a request."""

    raw: bytes
    head: h11.Request | None = None
    data: bytes = b""
    end: bool = False


class Requests:
    """The requests of one client, one after another."""

    def __init__(self) -> None:
        self._http, self._kept = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX), b""

    def feed(self, data: bytes) -> None:
        """The client sent this."""
        self._kept += data
        self._http.receive_data(data)

    def next(self) -> Piece | None:
        """The next piece; None: the client must send more first. Raises NotHttp."""
        try:
            event = self._http.next_event()
        except (h11.RemoteProtocolError, ValueError) as error:  # ValueError: a number of too many digits
            raise NotHttp(str(error)) from None
        if event is h11.NEED_DATA:
            return None
        raw = self._cut()
        if isinstance(event, h11.Request):
            return Piece(raw, head=event)
        if isinstance(event, h11.Data):
            return Piece(raw, data=bytes(event.data))
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)
        if self._kept:
            self._http.receive_data(self._kept)
        return Piece(raw, end=True)

    def rest(self) -> bytes:
        """What came after the last piece."""
        return self._kept

    def _cut(self) -> bytes:
        left = self._http.trailing_data[0]
        raw, self._kept = self._kept[: len(self._kept) - len(left)], left
        return raw


def is_http(first: bytes) -> bool:
    """True if a connection that begins so may be HTTP/1.1. TLS, for one, is not."""
    return first[:1].isalpha() or first[:1] in (b"\r", b"\n")


def is_message(head: h11.Request) -> bool:
    """True if a mind may take the request for a POST of a message. Minds read `target` as a URL."""
    path = head.target.partition(b"?")[0].partition(b"#")[0].replace(b"\\", b"/")
    return head.method == b"POST" and path.rpartition(b"/")[2] == b"message"


def size_of(head: h11.Request) -> int | None:
    """Bytes of the body, if the head says so."""
    return next((int(value) for name, value in head.headers if name == b"content-length"), None)


def expects_continue(head: h11.Request) -> bool:
    """True if the client waits for 100 Continue before it sends the body."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in head.headers)


def leaves_http(head: h11.Request) -> bool:
    """True if what follows the request may be something else, such as a web socket."""
    return head.method == b"CONNECT" or any(name == b"upgrade" for name, _ in head.headers)


def session_of(body: Mapping[str, Any]) -> str:
    """The session of a message. One whose name the guard cannot have gets another, always the same."""
    name = body.get("session") or body.get("thread") or MAIN_SESSION
    if not isinstance(name, str):
        return MAIN_SESSION
    if len(name) <= SESSION_MAX and name.isprintable() and not name.startswith(OWN_SESSION):
        return name
    return f"session-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:16]}"


def payload_of(body: Mapping[str, Any], session: str, raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The payload to store, and as JSON. Its first field is the request as it came."""
    payload = {
        REQUEST: raw.decode("latin-1"),
        "session": session,
        "channel": _text(body.get("channel")),
        "sender": _text(body.get("sender")),
        "interrupt": body.get("interrupt") is not False,
    }
    return payload, compact(payload)


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or len(value) > TEXT_MAX or not value.isprintable():
        return None
    return value.encode(errors="replace").decode()


def answer(status: str, body: bytes, kind: str = "application/json") -> bytes:
    """An answer after which the connection is closed: no later request can meet a restart of the guard."""
    fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + body


def taken(body: Mapping[str, Any]) -> bytes:
    """The answer to a message, as the mind itself would answer."""
    return answer("200 OK", b'{"event":true}' if body.get("kind") == "event" else b'{"ok":true}')
