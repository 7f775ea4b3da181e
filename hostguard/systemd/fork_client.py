"""The guard's side of fork_server.py: keeps stubs ready, and hands one out for each turn.

The fork server is a transient service of its own: what the guard forked itself would inherit its sandbox, and
a turn is to run as if its mind had started it. systemd alone can start a process outside of it. The server
ends with the guard, so that both are always of one version.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import select
import socket
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from hostguard.core import units
from hostguard.core.model import Mind, Work
from hostguard.core.paths import record_path
from hostguard.linux.cgroup import account_files
from hostguard.systemd import journal
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost

log = logging.getLogger(__name__)

STUB = Path(__file__).with_name("fork_server.py")
READY = 2  # stubs that wait: as many turns as a small host starts at once
TAKE_S = 10.0  # a fork takes a millisecond; longer, and the host cannot start processes


class Stub:
    """A process that waits for the word to run a turn. `pidfd` becomes readable at its end."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self._channel = channel

    def alive(self) -> bool:
        """Whether the process lives."""
        return not exited(self.pidfd)

    def release(self, spec: dict[str, Any], stdin: bytes, record: Path, output: socket.socket | None) -> None:
        """Let it run. Raises OSError: it runs nothing then."""
        fds = [_memory("spec", json.dumps(spec).encode()), _memory("payload", stdin)]
        try:
            fds.append(os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
            # The guard's own stream serves as well: journald goes by the process that writes.
            out = sys.stderr.fileno() if output is None else output.fileno()
            socket.send_fds(self._channel, [b"g"], [*fds, out])
        finally:
            for fd in fds:
                os.close(fd)
            self._channel.close()

    def anchor(self, record: Path) -> None:
        """Have it wait for ever, whatever becomes of the guard. Raises OSError: it leaves then."""
        try:
            fd = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                socket.send_fds(self._channel, [b"a"], [fd])
            finally:
                os.close(fd)
        finally:
            self._channel.close()

    def dismiss(self) -> None:
        """Make it leave without running anything."""
        self._channel.close()

    def close(self) -> None:
        """Forget it."""
        self._channel.close()
        os.close(self.pidfd)


class ForkClient:
    """Has systemd start the fork server, and asks it for stubs."""

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd
        self._control: socket.socket | None = None
        self._ready: deque[Stub] = deque()
        self._waiting: deque[asyncio.Future[Stub]] = deque()
        self._reviving = asyncio.Lock()

    async def start(self) -> None:
        """Start the fork server, and the first stubs. Raises OSError, SystemdError, SystemdLost."""
        self._loop = asyncio.get_running_loop()
        unit = f"hostguard-spawner-{secrets.token_hex(4)}.service"  # an earlier one may not be gone yet
        properties = units.spawner_properties([sys.executable, "-I", "-S", str(STUB)])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                await self._systemd.start_service(unit, properties, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._control = ours
        for _ in range(READY):
            self._ask()

    def close(self) -> None:
        """Let go of the server; it leaves, and so do stubs without a turn."""
        if self._control is not None:
            self._control.close()
        for stub in self._ready:
            stub.close()
        self._ready.clear()

    async def take(self) -> Stub:
        """A waiting stub; another takes its place. Raises OSError."""
        await self._revive()
        self._ask()
        while self._ready:
            stub = self._ready.popleft()
            if stub.alive():
                return stub
            stub.close()
            self._ask()
        future: asyncio.Future[Stub] = self._loop.create_future()
        self._waiting.append(future)
        try:
            return await asyncio.wait_for(future, TAKE_S)
        except TimeoutError:
            raise OSError("no process could be started") from None

    async def _revive(self) -> None:
        async with self._reviving:
            assert self._control is not None
            if not _readable(self._control.fileno()):  # it says nothing: readable is its end
                return
            log.error("the fork server ended; starting another")
            before = self._control
            try:
                await self.start()
            except (SystemdError, SystemdLost) as error:
                raise OSError(f"the fork server cannot be started: {error}") from error
            before.close()

    def _ask(self) -> None:
        assert self._control is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, suppress(OSError):  # it died just now: `take` times out and the row is tried again
            socket.send_fds(self._control, [b"f"], [theirs.fileno()], socket.MSG_DONTWAIT)
        ours.setblocking(False)
        self._loop.add_reader(ours, self._on_ready, ours)

    def _on_ready(self, channel: socket.socket) -> None:
        self._loop.remove_reader(channel)
        try:
            stub = Stub(int(channel.recv(32)), channel)
        except (OSError, ValueError):
            channel.close()
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(stub)
                return
        self._ready.append(stub)


def exited(pidfd: int) -> bool:
    """Whether the process behind the pidfd has ended."""
    return _readable(pidfd)


def _readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def _memory(name: str, content: bytes) -> int:
    fd = os.memfd_create(name)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def release(stub: Stub, mind: Mind, work: Work, turn: str, cgroup: Path) -> None:
    """Let the stub run a command as the mind's user. Raises OSError: it runs nothing then."""
    spec = {
        "argv": work.argv,
        "env": dict(work.environment),
        "capture": work.capture,
        "cwd": mind.directory,
        "uid": mind.uid,
        "gid": mind.gid,
        "groups": mind.groups,
        "account": account_files(cgroup),
    }
    output = journal.stream(mind.name, units.turn_unit(mind.name, turn))
    try:
        stub.release(spec, work.stdin, record_path(turn), output)
    finally:
        if output is not None:
            output.close()


def anchor(stub: Stub, turn: str) -> None:
    """Let the stub hold the scope of a resident mind's turn. Raises OSError: it leaves then."""
    stub.anchor(record_path(turn))
