"""The daemon's HTTP API over its unix socket, for the command line.

Every failure is a CliError with the exit code that fits. httpx is imported on first use: `--help` and the
verbs that need no daemon do without.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib import parse

from hostguard import paths
from hostguard.cli.errors import FAILED, UNKNOWN, USAGE, CliError, ConnectionLost, NotRunning

if TYPE_CHECKING:
    import httpx

CONNECT_S = 5.0
# Longer than a card's worst stall that was seen (facts.md: one sync of > 2 min): the daemon answers 503
# by itself long before.
READ_S = 180.0


def call(
    method: str,
    path: str,
    *,
    body: Any = None,
    params: Mapping[str, Any] | None = None,
    read_s: float = READ_S,
) -> Any:
    """The JSON answer to one request; `params` that are None are left out. Raises CliError."""
    wanted = {key: value for key, value in (params or {}).items() if value is not None}
    with _connection(read_s) as http:
        response = http.request(method, path, json=body, params=wanted)
        if not response.is_success:
            raise _refusal(response)
        try:
            return response.json()
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
    with (
        _connection(read_s) as http,
        http.stream(method, path, json=body, params=params, headers=headers) as response,
    ):
        if not response.is_success:
            response.read()
            raise _refusal(response)
        yield lines(response.iter_raw())


def quote(text: str) -> str:
    """`text` as one segment of a path."""
    return parse.quote(text, safe="")


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines, without their ends, from a stream of bytes; a last line without an end is dropped."""
    # httpx's own iter_lines keeps line ends up to 0.23 and drops them later.
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


def _refusal(response: httpx.Response) -> CliError:
    try:
        answer = response.json()
    except ValueError:
        answer = None
    return problem(response.status_code, answer, response.headers.get("retry-after"))


@contextmanager
def _connection(read_s: float | None) -> Iterator[httpx.Client]:
    try:
        paths.SOCKET.stat()
    except OSError as error:  # the common case, told without the cost of importing httpx
        raise _unreachable(error) from None
    import httpx

    # No certificates and no proxy settings: they cost start-up time and mean nothing on a unix socket.
    transport = httpx.HTTPTransport(uds=str(paths.SOCKET), verify=False, trust_env=False)
    timeout = httpx.Timeout(read_s, connect=CONNECT_S)
    try:
        with httpx.Client(
            transport=transport, base_url="http://hostguard", timeout=timeout, trust_env=False
        ) as http:
            yield http
    except httpx.ConnectError as error:
        raise _unreachable(_os_error(error)) from None
    except httpx.TimeoutException:
        raise ConnectionLost(
            f"hostguard does not answer on {paths.SOCKET}: systemctl status hostguard tells why"
        ) from None
    except httpx.TransportError:
        raise ConnectionLost() from None


def _unreachable(error: OSError | None) -> CliError:
    if isinstance(error, PermissionError):
        return CliError(
            f"you may not use {paths.SOCKET}: use sudo, or join the group hostguard "
            "(adduser USER hostguard) and log in again"
        )
    if error is None or isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return NotRunning()
    return CliError(f"cannot connect to {paths.SOCKET}: {error.strerror or error}")


def _os_error(error: BaseException | None) -> OSError | None:
    """The operating system's error behind httpx's and httpcore's wrappings."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
