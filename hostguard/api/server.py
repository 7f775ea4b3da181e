"""Where the guard listens: the API's unix socket, which knows who calls, and endpoints on loopback TCP.

The server is h11 on asyncio (connection.py). By its public interface no general server can bound connections,
the time for a head, and clients that do not read. h11 is also the smallest: Python 3.11 with Starlette and it
takes 25 MiB; with uvicorn 28, with hypercorn 29, with aiohttp.web 37. It takes the least time to import, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Iterator
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.requests import Request

from hostguard.api.connection import KEEP, Address, Connection
from hostguard.api.http import Seldom, problem
from hostguard.api.places import Fair, Limits, Places
from hostguard.core.errors import Problem, not_allowed, unavailable
from hostguard.core.tasks import Tasks
from hostguard.linux.sockets import FIRST_FD, SockDiag, described, holders, listening_at
from hostguard.systemd.notify import Notifier

log = logging.getLogger(__name__)

GROUP = "hostguard"  # its members may use the socket
SOCKET_UNIT = "hostguard.socket"
# Who connects waits there until it is accepted. If it is full, a TCP client is heard a second later.
BACKLOG = 1024
AT_ONCE = 32  # are accepted in one turn of the loop: the requests of those before them are read first
ACCEPT_AGAIN_S = 1.0  # after the host had no more descriptors, or no memory
RETRY_S = 5.0  # after an address that could not be had
# Of the 1024 descriptors that a service has by default the rest is for turns, which must start and end.
# A caller may be slow: it runs on the host whose disk stalls.
LOCAL = Limits(connections=600, head_s=60, idle_s=5, stall_s=None)
# On loopback a whole request comes at once: longer, and somebody only holds the connection.
LOOPBACK = Limits(connections=256, head_s=5, idle_s=0, stall_s=30)
TASKS_PART = 2  # so many times as many connections may be worked for: some are closed before that ends


class Server:
    """Serves an ASGI app on a socket."""

    def __init__(self, app: Any, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._places: Places[Connection] = Places(limits.connections)
        self._fair = Fair()
        self._tasks = Tasks()
        self._malformed, self._full = Seldom(log), Seldom(log)
        self._sock: socket.socket | None = None
        self._own: Any = None  # its address
        self._diag: SockDiag | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serve on this socket, which `end` closes."""
        if sock.family != socket.AF_UNIX:
            try:
                self._diag = await asyncio.to_thread(SockDiag)
            except OSError as error:
                log.warning("connections are not shared by user, as their users are not known: %s", error)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._sock, self._own = sock, sock.getsockname()
        self._listen()

    def end(self) -> None:
        """Take no more requests. Those that are being answered go on."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None
        if self._diag is not None:
            self._diag.close()
            self._diag = None
        for place in self._places:
            place.holder.end()

    def _listen(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().add_reader(self._sock, self._accept, self._sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or no memory: it stays readable
                self._full.warn(f"cannot accept connections: {error.strerror}")
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            client = client_of(sock, address)
            if client is None:
                sock.close()
            else:
                self._enter(sock, client)

    def _enter(self, sock: socket.socket, client: Address) -> None:
        """Give a client a place, and tell whoever has none."""
        sock.setblocking(False)
        new = Connection(
            self._app, self._limits, sock, client, self._places, self._fair, self._tasks, self._malformed,
            None if self._diag is None else self._whose,
        )  # fmt: skip
        place, places, own = new.place, self._places, self._own
        if isinstance(own, str):
            place.owner = int(client[0].removeprefix("uid="))
            place.first = place.owner == 0
        elif self._diag is not None and places.scarce:
            place.owner = self._whose(new)
            for other in places.unknown():
                places.know(other, self._whose(other.holder))
        overdue = len(self._tasks) >= TASKS_PART * self._limits.connections and not place.first
        loser = place if overdue else places.take(place)
        if loser is not None:
            whose = "" if loser.owner is None else f"; uid {loser.owner} has {places.of(loser.owner)} of them"
            where = f"port {own[1]}" if isinstance(own, tuple) else own
            self._full.warn(f"all {self._limits.connections} connections to {where} are taken{whose}")
            loser.holder.oust(REFUSED if loser is place else OUSTED)
        if loser is not place:
            new.wait()

    def _whose(self, connection: Connection) -> int | None:
        """The uid of a client, None if it is not known, as of one that has left."""
        if connection.place.owner is None and self._diag is not None:
            return self._diag.owner(connection.client, self._own[:2])
        return connection.place.owner


def _raw(error: Problem) -> bytes:
    """The answer for a Problem, as bytes, before any request was read."""
    answer = problem(error)
    head = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode(), b"connection: close"]
    return b"\r\n".join([*head, *map(b": ".join, answer.raw_headers), b"", answer.body])


_ALL_TAKEN = "all connections are taken; nothing was done"
OUSTED = _raw(unavailable(f"{_ALL_TAKEN}: send the request again, at once and as a whole", retry_after=1))
REFUSED = _raw(unavailable(f"{_ALL_TAKEN}: close some of your user, or try again", retry_after=1))


def client_of(sock: socket.socket, address: Any) -> Address | None:
    """Who is at the other end, in place of ASGI's client address; None if it may not connect.

    A unix socket has no address, and ASGI no place for credentials (SO_PEERCRED): ("uid=<uid>", pid).
    """
    if not isinstance(address, tuple):
        pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"uid={uid}", pid
    return address[:2] if is_loopback(address[0]) else None


def peer(request: Request) -> tuple[int, int]:
    """(pid, uid) of the caller, as client_of has them. Raises Problem."""
    client = request.client
    if client is None or not client.host.startswith("uid="):
        raise not_allowed("only a local caller on the unix socket can do this")
    return client.port, int(client.host.removeprefix("uid="))


def token_shown(request: Request) -> None:
    """The request has shown a valid token, so its connection keeps its place until it is answered."""
    request.scope.get(KEEP, int)()


@lru_cache(maxsize=16)
def is_loopback(address: str) -> bool:
    """True if an IP address is of this host only."""
    return ipaddress.ip_address(address).is_loopback


def activated() -> bool:
    """True if systemd passes the API's socket, so that no other guard's is in its place."""
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    return os.environ.get("LISTEN_PID") == str(os.getpid()) and SOCKET_UNIT in names


def handed_over(name: str) -> socket.socket | None:
    """The first socket of this name that systemd gave us at our start, to be taken once: sd_listen_fds(3)."""
    return next(all_handed_over(name), None)


def all_handed_over(name: str) -> Iterator[socket.socket]:
    """All sockets of this name, as `handed_over`."""
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        for fd in [FIRST_FD + number for number, one in enumerate(names) if one == name]:
            os.set_inheritable(fd, False)
            yield socket.socket(fileno=fd)


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
    sock.listen(BACKLOG)
    return sock


def listen_tcp(address: Address) -> socket.socket:
    """A socket on a loopback address and port. Raises OSError."""
    host, _ = address
    if not is_loopback(host):
        raise OSError(errno.EADDRNOTAVAIL, f"{host} is not a loopback address")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server(address, family=family, backlog=BACKLOG)


def _taken_by(address: Address) -> str:
    """Who listens there, in words; "" if nobody does."""
    found = listening_at(address)
    return f"it is taken by {described(found[0], holders(found))}" if found else ""


class Listener:
    """Serves `app` on loopback TCP as `what`, where and as long as the configuration's `key` says.

    `problem` says why it does not, and with `loss` what that means. The service manager keeps the socket,
    under the name `stored`, while the guard restarts: nobody else can take the port and collect tokens.
    """

    def __init__(self, app: Any, what: str, key: str, loss: str, stored: str, notifier: Notifier) -> None:
        self.problem: str | None = None
        self._app = app
        self._what, self._key, self._loss, self._stored = what, key, loss, stored
        self._notifier = notifier
        self._address: Address | None = None
        self._server: Server | None = None
        self._retry = Tasks()

    async def start(self, address: Address | None) -> None:
        """Serve there, None: nowhere. An address that cannot be had is tried again and again."""
        self._address = address
        given = handed_over(self._stored)
        if given is not None and given.getsockname()[:2] == address:
            await self._serve(given)
            return
        if given is not None:
            given.close()
            self._forget()
        await self._open()

    async def reload(self, address: Address | None) -> None:
        """Serve there from now on; connections stay if that is the same."""
        if address != self._address:
            await self.close()
            self._forget()
            self._address = address
            await self._open()

    async def close(self) -> None:
        """Stop serving."""
        self._address = self.problem = None
        self._retry.cancel()
        if self._server is not None:
            self._server.end()
            self._server = None

    async def _open(self, pause: float = 0) -> None:
        await asyncio.sleep(pause)
        if self._address is None:
            return
        host, port = self._address
        try:
            sock = listen_tcp(self._address)
        except OSError as error:
            if self.problem is None:
                why = await asyncio.to_thread(_taken_by, self._address) or error.strerror
                self.problem = (
                    f"{self._what} cannot listen on {host} port {port}: {why}; {self._loss}."
                    f" Free the port, or set {self._key} to another one"
                )
                log.error("%s", self.problem)
            self._retry.start(self._open(RETRY_S))
            return
        self._notifier.keep(self._stored, sock)
        await self._serve(sock)

    def _forget(self) -> None:
        self._notifier.forget(self._stored)

    async def _serve(self, sock: socket.socket) -> None:
        self.problem = None
        self._server = Server(self._app, LOOPBACK)
        await self._server.start(sock)
        log.info("%s listens on %s port %d", self._what, *sock.getsockname()[:2])
