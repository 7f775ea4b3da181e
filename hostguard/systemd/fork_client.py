"""The guard's side of fork_server.py: keeps stubs ready and provides one for each turn.

The fork server is a transient service: what the guard forks itself inherits its sandbox, but a turn must run
as if its mind had started it. Only systemd can start a process outside of the sandbox. The server ends with
the guard, so that both always have the same version.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
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
READY = 2  # waiting stubs: as many turns as a small host starts at once
HELD_MAX = 64  # processes for which one stub waits, as in fork_server.py
TAKE_S = 10.0  # a fork takes 1 ms; after this long the host cannot start processes
ANSWER_MAX = 128 << 10  # bytes: each entry of a path that is watched, at most twice


class Stub:
    """A process that waits for a turn to run. `pidfd` becomes readable when it ends."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self._channel = channel

    def alive(self) -> bool:
        """True while the process lives."""
        return not exited(self.pidfd)

    def release(self, spec: dict[str, Any], stdin: bytes, record: Path, output: socket.socket | None) -> None:
        """Let it run the command in `spec`. Raises OSError: then it runs nothing."""
        fds = [_memory("spec", json.dumps(spec).encode()), _memory("payload", stdin)]
        try:
            fds.append(os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
            # The guard's own stream is fine, too: journald looks at the writing process.
            out = sys.stderr.fileno() if output is None else output.fileno()
            socket.send_fds(self._channel, [b"g"], [*fds, out])
        finally:
            for fd in fds:
                os.close(fd)
            self._channel.close()

    def anchor(self, record: Path) -> None:
        """Let it wait for ever, even without the guard. Raises OSError: then it exits."""
        with self._channel, open(os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "ab") as file:
            socket.send_fds(self._channel, [b"a"], [file.fileno()])

    def watch(self, caller: int) -> None:
        """Let it wait, even without the guard, until the process of this pidfd has ended. Raises OSError."""
        with self._channel:
            socket.send_fds(self._channel, [b"w"], [caller])

    def hold(self, processes: Sequence[int]) -> None:
        """Let it wait until the processes of these pidfds, HELD_MAX at most, have ended, or until it is asked
        to end. Raises OSError.
        """
        with self._channel:
            socket.send_fds(self._channel, [b"h"], processes)

    async def look(self, spec: dict[str, Any], content: int, inotify: int | None) -> tuple[bytes, list[int]]:
        """Let it look at a file as a user: its answer, b"" if it was killed, and descriptors. Raises OSError.

        It writes the file to the descriptor `content`.
        """
        given = _memory("spec", json.dumps(spec).encode())
        try:
            more = [] if inotify is None else [inotify]
            socket.send_fds(self._channel, [b"l"], [given, content, *more])
        finally:
            os.close(given)
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._channel, answered.set)
        try:
            await answered.wait()
        finally:
            loop.remove_reader(self._channel)
        answer, fds, _, _ = socket.recv_fds(self._channel, ANSWER_MAX, 1)
        for fd in fds:
            os.set_inheritable(fd, False)
        return answer, fds

    def kill(self) -> None:
        """End it, whatever it does."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def dismiss(self) -> None:
        """Let it exit without running anything."""
        self._channel.close()

    def close(self) -> None:
        """Close our descriptors of it."""
        self._channel.close()
        os.close(self.pidfd)


class ForkClient:
    """Starts the fork server through systemd, and gets stubs from it."""

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd
        self._control: socket.socket | None = None
        self._asked: set[socket.socket] = set()  # the channels of stubs that are still to come
        self._ready: deque[Stub] = deque()
        self._waiting: deque[asyncio.Future[Stub]] = deque()
        self._reviving = asyncio.Lock()

    async def start(self) -> None:
        """Start the fork server, and the first stubs. Raises OSError, SystemdError, SystemdLost."""
        self._loop = asyncio.get_running_loop()
        unit = f"hostguard-spawner-{secrets.token_hex(4)}.service"  # the earlier one may still be there
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
        """Close the connection to the server: it exits, and so do stubs without a turn."""
        if self._control is not None:
            self._control.close()
        for channel in self._asked:
            self._loop.remove_reader(channel)
            channel.close()
        for stub in self._ready:
            stub.close()
        self._asked.clear()
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
            if not exited(self._control.fileno()):
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
        with theirs, suppress(OSError):  # it died just now: `take` times out, and the row is tried again
            socket.send_fds(self._control, [b"f"], [theirs.fileno()], socket.MSG_DONTWAIT)
        ours.setblocking(False)
        self._asked.add(ours)
        self._loop.add_reader(ours, self._on_ready, ours)

    def _on_ready(self, channel: socket.socket) -> None:
        self._loop.remove_reader(channel)
        self._asked.discard(channel)
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


def exited(fd: int) -> bool:
    """True if the process of this pidfd, or at the other end of this silent socket, has ended."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def _memory(name: str, content: bytes) -> int:
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def release(stub: Stub, mind: Mind, work: Work, turn: str, cgroup: Path) -> None:
    """Let the stub run a command as the mind's user. Raises OSError: then it runs nothing."""
    spec = {
        "argv": work.argv,
        "env": dict(work.environment),
        "capture": work.capture,
        "cwd": mind.directory,
        "uid": mind.uid,
        "gid": mind.gid,
        "groups": mind.groups,
        "confined": mind.strict,
        "account": account_files(cgroup),
    }
    output = journal.stream(mind.name, units.turn_unit(mind.name, turn))
    try:
        stub.release(spec, work.stdin, record_path(turn), output)
    finally:
        if output is not None:
            output.close()


def anchor(stub: Stub, turn: str) -> None:
    """Let the stub hold the scope of a resident mind's turn. Raises OSError: then it exits."""
    stub.anchor(record_path(turn))
