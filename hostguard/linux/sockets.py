"""TCP sockets: who listens, and who has the other end of a connection. By /proc, or for one by SockDiag.

Also connections that nftables redirects, and the mark of those that it does not.

/proc/net is that of the guard's own network namespace. Its rows have the user whose a socket is, and the
inode by which a process holds it. A connection that nobody has accepted yet has no inode: those that listen
can still accept it. All but SockDiag reads descriptors of processes or long tables: call it in a thread.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import psutil

from hostguard.core.text import safe
from hostguard.linux.process import home_of

TABLES = Path("/proc/net")
Address = tuple[str, int]

ESTABLISHED, SYN_RECEIVED, LISTEN = "01", "03", "0A"  # include/net/tcp_states.h
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address, that of a dual-stack socket
READS = 3  # of a table: a row can be missed while others before it go
SHOWN = 3  # processes that are named

# For sock_diag(7).
SOCK_DIAG = 4  # NETLINK_SOCK_DIAG of linux/netlink.h, for which Python has no name
BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY of linux/sock_diag.h
REQUEST = 1  # NLM_F_REQUEST
ANY = 0xFFFFFFFF  # in the mask of states, and as a cookie
HEAD = struct.Struct("=IHHIIBBBBI")  # struct nlmsghdr; of struct inet_diag_req_v2 what comes before its id
ID = struct.Struct("!HH16s16sIII")  # struct inet_diag_sockid
# Of an nlmsghdr type and number, of a struct inet_diag_msg uid and inode.
TOLD = struct.Struct("=4xH2xI4x4x48x12xII")

# For connections that are redirected.
MARK = 0x4847  # of the guard's own: the nft table leaves them alone
ORIGINAL_DST = 80  # SO_ORIGINAL_DST of linux/netfilter_ipv4.h, and IP6T_SO_ORIGINAL_DST
SIZE_V4, SIZE_V6 = 16, 28  # of a struct sockaddr_in and sockaddr_in6


@dataclass(frozen=True, slots=True)
class Socket:
    """Whose a socket is. `inode`: 0 if no process holds it."""

    uid: int
    inode: int


Rows = list[tuple[str, str, str, Socket]]


def other_end(local: Address, peer: Address) -> tuple[Socket, ...] | None:
    """The sockets from which the other end of an open connection of this process is, or can be, read.

    None if it is on this host and none is seen. There are none if it was closed, or is on another host or in
    a container with an address of its own: the guard cannot see those.
    """
    if not (ip_address(peer[0].partition("%")[0]).is_loopback or local[0] == peer[0]):
        return ()
    for _ in range(READS):
        for rows in _tables(peer[1]):
            for here, there, state, found in rows:
                if here in _names(*peer) and there in _names(*local):
                    if found.inode or state not in (ESTABLISHED, SYN_RECEIVED):
                        return (found,) if found.inode else ()
                    # Who listens comes first in a table. So if somebody had accepted it since, and somebody
                    # else listened by now, it would be found as accepted.
                    if listening := _listening(rows, peer):
                        return listening
        # Where root leads a port into a container, the other end is there; root listens here in its place.
        if found_here := listening_at(peer):
            return found_here
    return None


def listening_at(address: Address) -> tuple[Socket, ...]:
    """The sockets that get connections to this address of this host."""
    return next(filter(None, (_listening(rows, address) for rows in _tables(address[1]))), ())


def _listening(rows: Rows, address: Address) -> tuple[Socket, ...]:
    """Those of one table, as the kernel chooses: what is bound to the address goes before what is to any."""
    taken = [(here, found) for here, _, state, found in rows if state == LISTEN]
    host, port = address[0].partition("%")[0], address[1]
    anywhere = ("::",) if ip_address(host).version == 6 else ("0.0.0.0", "::")  # noqa: S104
    for names in (_names(host, port), [name for other in anywhere for name in _names(other, port)]):
        if found := tuple(one for here, one in taken if here in names):
            return found
    return ()


def _names(host: str, port: int) -> tuple[str, ...]:
    """How the tables write an address: an IPv4 one also in that of IPv6."""
    packed = ip_address(host.partition("%")[0]).packed
    forms = (packed, _MAPPED + packed) if len(packed) == 4 else (packed,)
    return tuple(f"{_hex(form)}:{port:04X}" for form in forms)


def _hex(packed: bytes) -> str:
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words)


def _tables(port: int) -> Iterator[Rows]:
    """The rows with this own port, of IPv4 and of IPv6: (own address, peer's address, state, socket)."""
    mark = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        try:
            lines = (TABLES / name).read_text().splitlines()[1:]
        except OSError:  # no IPv6
            continue
        fields = [line.split() for line in lines if mark in line]
        yield [(f[1], f[2], f[3], Socket(int(f[7]), int(f[9]))) for f in fields if f[1].endswith(mark)]


def listeners(url: str, pids: Iterable[int] | None = None) -> list[int]:
    """The processes, of `pids` or of all, that listen at the URL."""
    parts = urlsplit(url)
    if not is_own(parts.hostname):
        return []
    found = listening_at((parts.hostname or "", parts.port or 80))
    return holders(found, pids)


def is_own(host: str | None) -> bool:
    """True if the address is one of this host: only such a one can be bound."""
    try:
        family = socket.AF_INET6 if ip_address(host or "").version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except (ValueError, OSError):  # a name, or another host's
        return False
    return True


def holders(sockets: Iterable[Socket], pids: Iterable[int] | None = None) -> list[int]:
    """The processes, of `pids` or of all, that have one of these sockets open."""
    links = {f"socket:[{one.inode}]" for one in sockets}
    if not links:
        return []
    return [pid for pid in (psutil.pids() if pids is None else pids) if _holds(pid, links)]


def _holds(pid: int, links: set[str]) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(os.readlink(entry.path) in links for entry in entries)
    except OSError:
        return False


def described(found: Socket, pids: Iterable[int]) -> str:
    """Whose a socket is, in words: "user eve (pid 812 in session-3.scope)"."""
    user = str(found.uid)
    with suppress(KeyError):
        user = pwd.getpwuid(found.uid).pw_name
    known = [f"pid {pid} in {safe(home.name)}" for pid in pids if (home := home_of(pid)) is not None]
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"user {user}" + (f" ({', '.join(known[:SHOWN])}{more})" if known else "")


def questions() -> socket.socket:
    """A new socket for SockDiag. Raises OSError."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)


class SockDiag:
    """Asks the kernel about one TCP socket of this network namespace at a time.

    This takes as long as to accept a connection, however many sockets there are. To read their table takes a
    thousand times as long once somebody has opened some thousand.
    """

    def __init__(self, netlink: socket.socket, listening: socket.socket) -> None:
        """Ask by `netlink`, see `questions`. A first question is about `listening`.

        It blocks: the kernel may load modules. Raises OSError if it does not answer.
        """
        self._netlink, self._asked = netlink, 0
        netlink.setblocking(False)
        try:
            nobody = "::" if listening.family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104
            if self._ask(listening.getsockname()[:2], (nobody, 0)) is None:
                raise OSError("the kernel has no sock_diag for TCP")
        except OSError:
            self.close()
            raise

    def owner(self, end: Address, other: Address) -> int | None:
        """The uid of whoever made the socket at `end` of a connection to `other`; None: it is closed."""
        try:
            told = self._ask(end, other)
        except OSError:  # no memory
            return None
        uid, inode = told or (0, 0)
        return uid if inode else None  # of a socket that is closed the kernel says that it is root's

    def close(self) -> None:
        """Ask no more."""
        self._netlink.close()

    def _ask(self, end: Address, other: Address) -> tuple[int, int] | None:
        """(uid, inode) of a socket, None if there is none. The answer is there as soon as it is asked."""
        family = socket.AF_INET6 if ":" in end[0] else socket.AF_INET
        hosts = (socket.inet_pton(family, host) for host, _ in (end, other))
        which = ID.pack(end[1], other[1], *hosts, 0, ANY, ANY)
        self._asked += 1
        size = HEAD.size + len(which)
        head = HEAD.pack(size, BY_FAMILY, REQUEST, self._asked, 0, family, socket.IPPROTO_TCP, 0, 0, ANY)
        self._netlink.send(head + which)
        while True:
            type_, number, uid, inode = TOLD.unpack_from(self._netlink.recv(1024).ljust(TOLD.size, b"\0"))
            if number == self._asked:  # others were for a guard that was killed
                return (uid, inode) if type_ == BY_FAMILY else None


def meant(sock: socket.socket) -> Address | None:
    """Where the client of an accepted connection wanted to go; None: here, it was not redirected."""
    v6 = sock.family == socket.AF_INET6
    level, size = (socket.IPPROTO_IPV6, SIZE_V6) if v6 else (socket.IPPROTO_IP, SIZE_V4)
    try:
        raw = sock.getsockopt(level, ORIGINAL_DST, size)
    except OSError:  # the kernel tracks no such connection
        return None
    packed = raw[8:24] if v6 else raw[4:8]
    address = socket.inet_ntop(sock.family, packed), int.from_bytes(raw[2:4], "big")
    return None if address == sock.getsockname()[:2] else address


class Marked:
    """Makes sockets whose connections are not redirected, and knows them if one comes back all the same."""

    def __init__(self) -> None:
        self._made: WeakSet[socket.socket] = WeakSet()
        self._back: WeakSet[socket.socket] = WeakSet()

    def make(self, family: int) -> socket.socket:
        """A new TCP socket with the mark, which takes CAP_NET_RAW. Raises OSError."""
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        except OSError as error:
            sock.close()
            raise OSError(
                error.errno, f"its connection cannot be marked (SO_MARK): {error.strerror}"
            ) from None
        self._made.add(sock)
        return sock

    def take_back(self, address: Any) -> bool:
        """True if one of the sockets that are open has this address: it was redirected all the same."""
        found = [sock for sock in self._made if sock.fileno() >= 0 and sock.getsockname()[:2] == address]
        self._back.update(found)
        return bool(found)

    def came_back(self, sock: socket.socket) -> bool:
        """True if the connection of this socket was taken back."""
        return sock in self._back
