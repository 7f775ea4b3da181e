"""TCP sockets of this network namespace: who listens, and who has an end of a connection. By sock_diag(7).

Also connections that nftables redirects, and the mark of those that it does not.

The kernel names the user of a socket, and the inode by which processes hold it. A connection that nobody has
accepted yet has no inode: those that listen can still accept it.
"""

from __future__ import annotations

import itertools
import os
import pwd
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import psutil

from hostguard.core.text import safe
from hostguard.linux.process import home_of

Address = tuple[str, int]

ESTABLISHED, SYN_RECEIVED, LISTEN = 1, 3, 10  # include/net/tcp_states.h
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address, that of a dual-stack socket
SHOWN = 3  # processes that are named
# The socket unit is that of an earlier version. It cannot be restarted beside its service.
NOT_PASSED_FIX = "run: systemctl stop hostguard.socket hostguard; systemctl start hostguard"
NO_MODULE_FIX = "run: modprobe tcp_diag"

FIRST_FD = 3  # sd_listen_fds(3)
SOCK_DIAG = 4  # NETLINK_SOCK_DIAG of linux/netlink.h, for which Python has no name
BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY of linux/sock_diag.h
ERROR, DONE = 2, 3  # NLMSG_ERROR, NLMSG_DONE
REQUEST, DUMP = 1, 0x300  # NLM_F_REQUEST, NLM_F_DUMP
ANY = 0xFFFFFFFF  # in the mask of states, and as a cookie
READ = 64 << 10  # bytes of answers: the kernel sends no more at a time
HEAD = struct.Struct("=IHHIIBBBBI")  # struct nlmsghdr; of struct inet_diag_req_v2 what comes before its id
ID = struct.Struct("!HH16s16sIII")  # struct inet_diag_sockid
ANSWER = struct.Struct("=IH2xI4x")  # struct nlmsghdr: length, type, number
CODE = struct.Struct("=i")  # of NLMSG_ERROR and NLMSG_DONE
TOLD = struct.Struct("=BB2x4x16s28x12xII")  # struct inet_diag_msg: family, state, own host, uid, inode

# All ask by the one socket that systemd passes, also from threads.
_asking = threading.Lock()
_numbers = itertools.count(int.from_bytes(os.urandom(3), "big"))  # answers may be for a guard that was killed


# For connections that are redirected.
MARK = 0x4847  # of the guard's own: the nft table leaves them alone
ORIGINAL_DST = 80  # SO_ORIGINAL_DST of linux/netfilter_ipv4.h, and IP6T_SO_ORIGINAL_DST
SIZE_V4, SIZE_V6 = 16, 28  # of a struct sockaddr_in and sockaddr_in6


@dataclass(frozen=True, slots=True)
class Socket:
    """Whose a socket is. `inode`: 0 if no process holds it."""

    uid: int
    inode: int


def listeners(url: str, pids: Iterable[int] | None = None) -> list[int]:
    """The processes, of `pids` or of all, that listen at the URL; none if the kernel does not tell."""
    parts = urlsplit(url)
    if not is_own(parts.hostname):
        return []
    return holders(listening_at((parts.hostname or "", parts.port or 80)), pids)


def is_near(local: Address, peer: Address) -> bool:
    """True if the other end of a connection from `local` is on this host, or is led on from here."""
    return ip_address(peer[0].partition("%")[0]).is_loopback or local[0] == peer[0]


def is_own(host: str | None) -> bool:
    """True if the address is one of this host: only such a one can be bound."""
    try:
        family = socket.AF_INET6 if ip_address(host or "").version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except (ValueError, OSError):  # a name, or another host's
        return False
    return True


def listening_at(address: Address) -> tuple[Socket, ...]:
    """The sockets that get connections to this address of this host; none if the kernel does not tell."""
    with suppress(OSError), SockDiag() as diag:
        return diag.listening_at(address)
    return ()


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


@dataclass(frozen=True, slots=True)
class _Found:
    state: int
    host: bytes  # its own address
    socket: Socket


class SockDiag:
    """Asks the kernel about TCP sockets: in less than a millisecond, however many connections there are.

    It is to be closed, and may be used from threads.
    """

    def __init__(self) -> None:
        """It blocks: the kernel may load modules. Raises OSError, which says what to do."""
        try:
            self._netlink = _passed() or socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)
        except OSError as error:
            raise OSError(f"{error.strerror}; {NOT_PASSED_FIX}") from None
        self._netlink.setblocking(False)
        with _asking, suppress(BlockingIOError):
            while self._netlink.recv(READ):  # answers to a guard that was killed
                pass
        try:
            self._listening(socket.AF_INET, 1)
        except OSError as error:
            self.close()
            why = f"the kernel has no sock_diag for TCP ({error.strerror})"
            raise OSError(f"{why}; {NO_MODULE_FIX}") from None

    def __enter__(self) -> SockDiag:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ask no more."""
        self._netlink.close()

    def owner(self, end: Address, other: Address) -> int | None:
        """The uid of whoever made the socket at `end` of a connection to `other`; None: it is closed."""
        try:
            found = self._one(end, other)
        except OSError:  # no memory
            return None
        # Of a socket that is closed the kernel says that it is root's.
        return found.socket.uid if found is not None and found.socket.inode else None

    def other_end(self, local: Address, peer: Address) -> tuple[Socket, ...] | None:
        """The sockets from which the other end of an open connection of this process is, or can be, read.

        None if none is seen. There are none if it was closed. Raises OSError.
        """
        # Before the connection: who listens only later cannot accept it, so it would be found as accepted.
        listening = self.listening_at(peer)
        found = self._one(peer, local)
        if found is not None and (found.socket.inode or found.state not in (ESTABLISHED, SYN_RECEIVED)):
            return (found.socket,) if found.socket.inode else ()
        # Where root leads a port into a container, the other end is there; root listens here in its place.
        return listening or None

    def listening_at(self, address: Address) -> tuple[Socket, ...]:
        """The sockets that get connections to this address of this host. Raises OSError."""
        families = (socket.AF_INET, socket.AF_INET6)
        found = [one for family in families for one in self._listening(family, address[1])]
        # What is bound to the address goes before what is to any.
        own = ip_address(address[0].partition("%")[0]).packed
        bound = (own, _MAPPED + own, bytes(4), bytes(16)) if len(own) == 4 else (own, bytes(16))
        at = (tuple(one.socket for one in found if one.host == host) for host in bound)
        return next(filter(None, at), ())

    def _listening(self, family: int, port: int) -> list[_Found]:
        return self._ask(family, 1 << LISTEN, ID.pack(port, 0, b"", b"", 0, ANY, ANY), DUMP)

    def _one(self, end: Address, other: Address) -> _Found | None:
        """The socket at one end of a connection, None if there is none."""
        family = socket.AF_INET6 if ":" in end[0] else socket.AF_INET
        hosts, scope = [], 0
        for host, _, name in (one[0].partition("%") for one in (end, other)):
            hosts.append(socket.inet_pton(family, host))
            scope = socket.if_nametoindex(name) if name else scope
        which = ID.pack(end[1], other[1], *hosts, socket.htonl(scope), ANY, ANY)
        try:
            [found] = self._ask(family, ANY, which)
        except FileNotFoundError:
            return None
        return None if found.state == LISTEN else found  # in place of a connection that is over

    def _ask(self, family: int, states: int, which: bytes, how: int = 0) -> list[_Found]:
        """What the kernel answers: it has done so once it is asked. Raises OSError."""
        found: list[_Found] = []
        with _asking:
            asked = next(_numbers)
            size = HEAD.size + len(which)
            head = (size, BY_FAMILY, REQUEST | how, asked, 0, family, socket.IPPROTO_TCP, 0, 0, states)
            self._netlink.send(HEAD.pack(*head) + which)
            while True:
                answers, at = self._netlink.recv(READ), 0
                while at < len(answers):
                    length, type_, number = ANSWER.unpack_from(answers, at)
                    body, at = answers[at + ANSWER.size : at + length], at + length
                    if number != asked:
                        continue
                    if type_ in (ERROR, DONE):
                        if code := CODE.unpack_from(body)[0]:
                            raise OSError(-code, os.strerror(-code))
                        return found
                    found.append(_found(body))
                    if not how:
                        return found


def _found(body: bytes) -> _Found:
    family, state, host, uid, inode = TOLD.unpack_from(body)
    return _Found(state, host[: 4 if family == socket.AF_INET else 16], Socket(uid, inode))


def _passed() -> socket.socket | None:
    """The socket of netlink(7) that systemd gave us at our start: the sandbox lets the guard make none."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    for fd in range(FIRST_FD, FIRST_FD + int(os.environ.get("LISTEN_FDS", 0))):
        with suppress(OSError):  # taken, and closed
            one = socket.socket(fileno=os.dup(fd))
            if one.family == socket.AF_NETLINK and one.proto == SOCK_DIAG:
                return one
            one.close()
    return None


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
