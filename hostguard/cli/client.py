"""A client of the daemon's HTTP API over its unix socket.

Every failure is a CliError with a fitting exit code. The subset of HTTP/1.1 (RFC 9112) that the daemon uses
is parsed here, because importing http.client takes longer than everything else a verb does.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from hostguard.cli.errors import (
    FAILED,
    UNKNOWN,
    USAGE,
    CliError,
    ConnectionLost,
    NotAccepting,
    NotRunning,
    OnStandby,
    Refused,
)
from hostguard.core import paths

TYPE_CHECKING = False  # typing's own costs its import, which `hostguard status` can do without
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Any

    Params = Mapping[str, Any] | None

CONNECT_S = 5.0
# systemd takes connections for a daemon that does not run. One that runs reads a request at once, whatever
# its disk does, and a slow host needs some seconds to start one.
ACCEPT_S = 15.0
# Longer than the worst stall of a card on record (facts.md: one sync of > 2 min); the daemon answers 503 long
# before.
READ_S = 180.0
CHUNK = 1 << 16  # bytes


class Answer:
    """An answer: the head, and the body, still unread. Raises OSError, and ValueError if this is not HTTP."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        version, _, rest = self._line().partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError("not HTTP")
        self.status = int(rest[:3])
        self.headers: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()

    def chunks(self) -> Iterator[bytes]:
        """The parts of the body as they arrive. Raises CliError."""
        with _reported():
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int(self._line().partition(";")[0], 16):
                    yield self._exactly(size)
                    self._line()
            elif "content-length" in self.headers:
                yield self._exactly(int(self.headers["content-length"]))
            else:
                while chunk := self._file.read1(CHUNK):
                    yield chunk

    def lines(self) -> Iterator[str]:
        """The lines of the body as they arrive. Raises CliError."""
        return lines(self.chunks())

    def _exactly(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) < size:
            raise ValueError("truncated")
        return found

    def _line(self) -> str:
        line = self._file.readline(CHUNK)
        if not line.endswith(b"\n"):
            raise ValueError("truncated")
        return line.rstrip(b"\r\n").decode("latin-1")


def call(method: str, path: str, *, body: Any = None, params: Params = None, read_s: float = READ_S) -> Any:
    """Send a request and return the JSON answer; see `request`. Raises CliError."""
    with request(method, path, body=body, params=params, read_s=read_s) as answer:
        raw = b"".join(answer.chunks())
    try:
        return json.loads(raw)
    except ValueError:
        raise CliError(f"the answer on {paths.SOCKET} is not from hostguard") from None


@contextmanager
def request(
    method: str,
    path: str,
    *,
    body: Any = None,
    params: Params = None,
    headers: Mapping[str, str] | None = None,
    read_s: float | None = None,
) -> Iterator[Answer]:
    """Send a request and return a successful answer; `params` that are None are omitted. Raises CliError.

    `read_s` limits each wait for the answer or a part of it.
    """
    raw = b"" if body is None else json.dumps(body).encode()
    fields = {"Host": "hostguard", "Connection": "close", **(headers or {})}
    if body is not None:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(raw))}
    head = [f"{method} {path}{_query(params)} HTTP/1.1", *map(": ".join, fields.items()), "", ""]
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            _connect(connection)
        except OSError as error:
            raise _unreachable(error) from None
        connection.settimeout(ACCEPT_S)
        with connection.makefile("rb") as file:
            with _reported():
                # The daemon may refuse a request before all of it was sent; its answer has the reason.
                with suppress(BrokenPipeError, ConnectionResetError):
                    _send(connection, "\r\n".join(head).encode("latin-1") + raw, read_s)
                answer = Answer(file)
            if not 200 <= answer.status < 300:
                raise problem(answer.status, b"".join(answer.chunks()), answer.headers.get("retry-after"))
            yield answer


def _connect(connection: socket.socket) -> None:
    """Connect to the daemon, in at most CONNECT_S. Raises OSError."""
    connection.setblocking(False)
    try:
        connection.connect(str(paths.SOCKET))
        return
    except BlockingIOError:  # many connect: the kernel has those wait in turn who block
        from struct import pack
    connection.setblocking(True)
    limit = pack("ll", *divmod(int(CONNECT_S * 1_000_000), 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        connection.connect(str(paths.SOCKET))
    except BlockingIOError as error:
        text = f"too many connect at the same time, so that this could not within {CONNECT_S:g} s"
        raise TimeoutError(error.errno, text) from None


def _send(connection: socket.socket, request: bytes, read_s: float | None) -> None:
    """Send a request, and wait for the begin of the answer as long as nobody reads the request.

    Raises NotAccepting, OSError.
    """
    first = ACCEPT_S if read_s is None else min(ACCEPT_S, read_s)
    try:
        connection.sendall(request)
        connection.settimeout(first)
        connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        if _unread(connection):
            raise NotAccepting(
                f"hostguard takes no requests on {paths.SOCKET}, so nothing was done; it may be starting: see"
                " systemctl status hostguard"
            ) from None
        if read_s == first:
            raise
    connection.settimeout(read_s)


def _unread(connection: socket.socket) -> bool:
    """True if the other end has not read all that was sent."""
    from array import array
    from fcntl import ioctl
    from termios import TIOCOUTQ  # the same as SIOCOUTQ: see unix(7)

    left = array("i", [0])
    ioctl(connection, TIOCOUTQ, left)
    return left[0] > 0


def _query(params: Params) -> str:
    wanted = {key: value for key, value in (params or {}).items() if value is not None}
    if not wanted:
        return ""
    from urllib.parse import urlencode

    # The daemon rejects names that are not UTF-8 on the command line.
    return "?" + urlencode(wanted, errors="surrogateescape")


@contextmanager
def _reported() -> Iterator[None]:
    """Turn a failure of the connection into a CliError."""
    try:
        yield
    except TimeoutError:
        raise ConnectionLost(
            f"hostguard does not answer on {paths.SOCKET}: see systemctl status hostguard"
        ) from None
    except (OSError, ValueError):
        raise ConnectionLost() from None


def quote(text: str) -> str:
    """The name or id `text` as one segment of a path. Raises CliError if it is empty."""
    from urllib.parse import quote

    if not text:
        raise CliError("the name is empty", USAGE)
    return quote(text, safe="", errors="surrogateescape")


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines in a stream of bytes, without line ends; an incomplete last line is dropped."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r").decode(errors="replace")


def server_sent(stream_lines: Iterable[str]) -> Iterator[Any]:
    """The JSON data of each server-sent event."""
    data: list[str] = []
    for line in stream_lines:
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield json.loads("\n".join(data))
            data = []


def problem(status: int, raw: bytes, retry_after: str | None) -> CliError:
    """The error for a failed request; `raw` may be a problem document (RFC 9457)."""
    document = {}
    with suppress(ValueError):
        answer = json.loads(raw)
        document = answer if isinstance(answer, dict) else {}
    code = document.get("code")
    message = (
        document.get("detail") or document.get("title") or f"hostguard answered with HTTP status {status}"
    )
    if retry_after is not None:
        message += f"; try again in {retry_after} s"
    exit_code = USAGE if status == 400 else FAILED
    if isinstance(code, str) and code.startswith("unknown_"):
        exit_code = UNKNOWN
    return (OnStandby if code == "standby" else Refused)(message, exit_code, status, document)


def _unreachable(error: OSError) -> CliError:
    if isinstance(error, PermissionError):
        return CliError(
            f"no permission to use {paths.SOCKET}: use sudo, or join the group hostguard "
            "(usermod -aG hostguard USER) and log in again"
        )
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return NotRunning()
    return CliError(f"cannot connect to {paths.SOCKET}: {error.strerror or error}")
