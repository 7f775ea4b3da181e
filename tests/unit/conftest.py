"""Fixtures of the unit tests."""

from __future__ import annotations

import json
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from searches import sized
from standin import StandIn

settings.register_profile("sized", max_examples=sized(33))
settings.load_profile("sized")


@pytest.fixture
def away() -> Iterator[StandIn]:
    """A runtime folder without a daemon."""
    with tempfile.TemporaryDirectory(prefix="hg") as folder:
        Path(folder).chmod(0o755)
        yield StandIn(Path(folder))


@pytest.fixture
def daemon(away: StandIn) -> Iterator[StandIn]:
    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            away.asked.append((f"{self.command} {self.path}", body))
            path = self.path.partition("?")[0]
            status, headers, raw = away.answers.get(
                f"{self.command} {path}", (404, {}, b'{"code": "unknown_delivery", "detail": "not there"}')
            )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PATCH = do_DELETE = respond

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(away.folder / "hostguard.sock"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield away
        server.shutdown()
        thread.join()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Makes a file in a folder of its own."""

    def make(text: str | bytes, name: str = "hostguard.toml") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    return make
