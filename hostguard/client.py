"""The daemon's HTTP API over its unix socket, for the command line.

Every failure is a CliError with the exit code that fits. It is built on the standard library's http.client,
because to import httpx takes longer than all else that a verb does.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib import parse

from hostguard import paths
from hostguard.cli.errors import FAILED, UNKNOWN, USAGE, CliError, ConnectionLost, NotRunning

CONNECT_S = 5.0
# Longer than a card's worst stall that was seen (facts.md: one sync of > 2 min): the daemon answers 503
# by itself long before.
READ_S = 180.0
CHUNK = 1 << 16  # bytes


class _Connection(HTTPConnection):
    """One connection to the daemon's socket; `timeout` in seconds bounds each wait for it, None: none."""

    def connect(self) -> None:
        """Connect. Raises CliError."""
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            self.sock.settimeout(CONNECT_S)
            self.sock.connect(str(paths.SOCKET))
        except OSError as error:
            raise _unreachable(error) from None
        self.sock.settimeout(self.timeout)


def call(
    method: str,
    path: str,
    *,
    body: Any = None,
    params: Mapping[str, Any] | None = None,
    read_s: float = READ_S,
) -> Any:
    """The JSON answer to one request; `params` that are None are left out. Raises CliError."""
    with closing(_Connection("hostguard", timeout=read_s)) as connection:
        response = _ask(connection, method, path, body, params, {})
        with _told():
            raw = response.read()
    try:
        return json.loads(raw)
    except ValueError:
        raise CliError(f"what answers on {paths.SOCKET} is not hostguard") from None


@contextmanager
def stream(
    method: str,
    path: str,
    *,
    body: Any = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    read_s: float | None = None,
) -> Iterator[Iterator[str]]:
    """The lines of an answer as they come; `read_s` bounds the silence between them. Raises CliError."""
    with closing(_Connection("hostguard", timeout=read_s)) as connection:
        yield lines(_chunks(_ask(connection, method, path, body, params, headers or {})))


def _ask(
    connection: _Connection,
    method: str,
    path: str,
    body: Any,
    params: Mapping[str, Any] | None,
    headers: Mapping[str, str],
) -> HTTPResponse:
    """The answer, its body not yet read, if it is no refusal. Raises CliError."""
    wanted = {key: value for key, value in (params or {}).items() if value is not None}
    # What is no UTF-8 on the command line is no name that the daemon knows: it says so.
    query = "?" + parse.urlencode(wanted, errors="surrogateescape") if wanted else ""
    raw = None if body is None else json.dumps(body).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    with _told():
        # Refused before all of it was sent: the answer tells why.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path + query, raw, {**headers, **kind})
        response = connection.getresponse()
        if not 200 <= response.status < 300:
            raise _refusal(response.status, response.read(), response.getheader("retry-after"))
    return response


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    while True:
        with _told():
            chunk = response.read1(CHUNK)
        if not chunk:
            return
        yield chunk


@contextmanager
def _told() -> Iterator[None]:
    """A failure of the connection as a CliError."""
    try:
        yield
    except TimeoutError:
        raise ConnectionLost(
            f"hostguard does not answer on {paths.SOCKET}: systemctl status hostguard tells why"
        ) from None
    except (OSError, HTTPException):
        raise ConnectionLost() from None


def quote(text: str) -> str:
    """`text` as one segment of a path."""
    return parse.quote(text, safe="", errors="surrogateescape")


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines, without their ends, from a stream of bytes; a last line without an end is dropped."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r").decode(errors="replace")


def server_sent(stream_lines: Iterable[str]) -> Iterator[Any]:
    """The data, which is JSON, of each server-sent event."""
    data: list[str] = []
    for line in stream_lines:
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield json.loads("\n".join(data))
            data = []


def problem(status: int, answer: Any, retry_after: str | None) -> CliError:
    """The error for a refusal; `answer` is its problem document (RFC 9457), or None if it had none."""
    document = answer if isinstance(answer, dict) else {}
    code = document.get("code")
    message = (
        document.get("detail") or document.get("title") or f"hostguard answered with HTTP status {status}"
    )
    if retry_after is not None:
        message += f"; try again in {retry_after} s"
    if isinstance(code, str) and code.startswith("unknown_"):
        return CliError(message, UNKNOWN)
    return CliError(message, USAGE if status == 400 else FAILED)


def _refusal(status: int, raw: bytes, retry_after: str | None) -> CliError:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    return problem(status, answer, retry_after)


def _unreachable(error: OSError) -> CliError:
    if isinstance(error, PermissionError):
        return CliError(
            f"you may not use {paths.SOCKET}: use sudo, or join the group hostguard "
            "(adduser USER hostguard) and log in again"
        )
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return NotRunning()
    return CliError(f"cannot connect to {paths.SOCKET}: {error.strerror or error}")
