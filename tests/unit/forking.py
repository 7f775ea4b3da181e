"""A fork server, and processes from it, without systemd."""

import socket
import subprocess
import sys

from hostguard.systemd.fork_client import STUB, Stub


class Server:
    """The fork server. `take` has it fork, as that of the guard's client does."""

    def __init__(self):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([sys.executable, "-I", "-S", str(STUB)], stdin=theirs)

    def stub(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self.control, [b"f"], [theirs.fileno()])
        return Stub(int(ours.recv(32)), ours)

    async def take(self):
        stub = self.stub()
        stub._channel.setblocking(False)
        return stub

    def end(self):
        """As when the guard is killed."""
        self.control.close()
        assert self.process.wait(10) == 0
