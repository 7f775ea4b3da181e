"""Whose the other end of a TCP connection within this host is: sock_diag(7).

One question takes as long as to accept a connection, however many sockets there are. To read /proc/net/tcp
takes a thousand times as long once somebody has opened some thousand.
"""

from __future__ import annotations

import socket
import struct

SOCK_DIAG = 4  # NETLINK_SOCK_DIAG of linux/netlink.h, for which Python has no name
BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY of linux/sock_diag.h
REQUEST = 1  # NLM_F_REQUEST
ANY = 0xFFFFFFFF  # in the mask of states, and as a cookie
HEAD = struct.Struct("=IHHIIBBBBI")  # struct nlmsghdr; of struct inet_diag_req_v2 what comes before its id
ID = struct.Struct("!HH16s16sIII")  # struct inet_diag_sockid
TOLD = struct.Struct(
    "=4xH2xI4x4x48x12xII"
)  # of an nlmsghdr type and number, of an inet_diag_msg uid and inode
Address = tuple[str, int]


def questions() -> socket.socket:
    """A new socket for SockDiag. Raises OSError."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)


class SockDiag:
    """Asks the kernel about the TCP sockets of this network namespace."""

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
