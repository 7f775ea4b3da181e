"""Between minds and their guard: records what the minds post, and passes it on."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any

from fakemodel import Server


@dataclass
class Event:
    """An event as a mind posted it."""

    at: float  # time.time() when it came
    mind: str
    session: str | None
    type: str
    body: dict[str, Any]
    status: int | None = None  # of the guard's answer, once it is there; 502 if the guard did not answer


class Posted:
    """A context manager: listens on `port` of 127.0.0.1 and asks the guard on `guard_port`. Any path, any method.

    While `guarded` is False, as without a guard, it takes each event itself.
    """

    def __init__(self, port: int, guard_port: int) -> None:
        self.port, self.guard_port, self.guarded = port, guard_port, True
        self._events: list[Event] = []

    def __enter__(self) -> Posted:
        self._server = Server(("127.0.0.1", self.port), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def events(self, mind: str, *types: str, session: str | None = None) -> list[Event]:
        """What that mind posted so far, of these types or all, in order of arrival."""
        return [
            event
            for event in self._events
            if event.mind == mind and (not types or event.type in types) and session in (None, event.session)
        ]

    def clear(self) -> None:
        """Forget what was posted."""
        self._events.clear()

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Pass a request on to the guard; record it if it is an event."""
        event = _event(path, body) if method == "POST" else None
        if event:
            self._events.append(event)
        if not self.guarded:
            return (200, b'{"ok":true}') if event else (404, b"{}")
        connection = http.client.HTTPConnection("127.0.0.1", self.guard_port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            status, said = answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            status, said = 502, b"{}"
        finally:
            connection.close()
        if event:
            event.status = status
        return status, said


def _event(path: str, body: bytes) -> Event | None:
    parts = path.removeprefix("/api/").removeprefix("v1/").split("/")
    if parts[0] != "minds" or parts[-1] != "events":
        return None
    said = json.loads(body)
    return Event(time.time(), parts[1], said.get("session"), said["type"], said)


def _handler(posted: Posted) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            status, answer = posted.ask(self.command, self.path, body, headers)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
