"""Serving with uvicorn: the API on a unix socket, knowing who calls; the minds' endpoint on loopback TCP."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio._backends._asyncio  # noqa: F401  # else the first streamed answer imports it, on the event loop

from hostguard.api import lean
from hostguard.api.lean import H11Protocol

GROUP = "hostguard"  # its members may use the socket
FIRST_FD = 3  # sd_listen_fds(3)
SOCKET_UNIT = "hostguard.socket"
# Of the 1024 descriptors that a service has by default the rest is for turns, which must start and end.
CONNECTIONS_MAX = 600
MINDS_CONNECTIONS_MAX = 100
HEAD_S = 5.0  # on loopback a whole request comes at once: longer, and somebody only holds the connection


class PeerProtocol(H11Protocol):
    """Puts the peer's pid and uid (SO_PEERCRED) where ASGI has the client's address.

    A unix socket has no address, and ASGI no place for credentials: ("uid=<uid>", pid).
    """

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.client = (f"uid={uid}", pid)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()


class LoopbackProtocol(H11Protocol):
    """Takes one request per connection, from this host, whose head comes within HEAD_S."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")  # None: it left already
        if len(self.connections) > MINDS_CONNECTIONS_MAX or peer is None or not is_loopback(peer[0]):
            transport.abort()
        else:
            self._timer = self.loop.call_later(HEAD_S, self._no_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _no_head(self) -> None:
        if self.cycle is None:
            self.transport.abort()


def is_loopback(address: str) -> bool:
    """Whether an IP address is of this host only."""
    return ipaddress.ip_address(address).is_loopback


class Server(lean.Server):
    """uvicorn without its signal handlers, since the daemon has its own, and without its ticks."""

    def __init__(self, config: lean.Config) -> None:
        super().__init__(config)
        self.server_state.default_headers = config.encoded_headers  # uvicorn's own ticks would set them
        self._ended = asyncio.Event()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn's own looks ten times a second."""
        await self._ended.wait()
        # Not before: told so while it starts, uvicorn would leave its socket open.
        self.should_exit = self.force_exit = True

    def end(self) -> None:
        """Stop serving, without waiting for connections that stay open."""
        self._ended.set()

    def install_signal_handlers(self) -> None:
        """Older uvicorn."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Newer uvicorn."""
        yield


def make_server(app: Any, protocol: type[H11Protocol] = PeerProtocol) -> Server:
    """A server to `await serve(sockets=[...])`."""
    config = lean.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # nobody may say for another who calls
        server_header=False,
        date_header=False,
        headers=[("Connection", "close")] if protocol is LoopbackProtocol else [],
    )
    config.load()  # its imports, now and not on the event loop
    return Server(config)


def handed_over(name: str) -> socket.socket | None:
    """The socket of this name that systemd gave us at our start, to be taken once: sd_listen_fds(3)."""
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or name not in names:
        return None
    fd = FIRST_FD + names.index(name)
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def listen(path: Path) -> socket.socket:
    """The socket that systemd handed us, or a new one at `path`, for root and the group.

    Raises OSError.
    """
    given = handed_over(SOCKET_UNIT)
    if given is not None:
        return given
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)  # safe: we hold the gate lock, so it is nobody else's
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    with contextlib.suppress(KeyError, PermissionError):
        os.chown(path, -1, grp.getgrnam(GROUP).gr_gid)
        os.chmod(path, 0o660)
    sock.listen(128)
    return sock


def listen_tcp(address: tuple[str, int]) -> socket.socket:
    """A socket on a loopback address and port. Raises OSError."""
    host, _ = address
    if not is_loopback(host):
        raise OSError(errno.EADDRNOTAVAIL, f"{host} is no loopback address")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server(address, family=family, backlog=128)
