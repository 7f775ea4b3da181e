"""Reads files that minds control. Each is opened by a short-lived process that is the mind's user.

So a link leads nowhere that the user may not go, and a file that never answers (on a FUSE, say) costs that
process alone, which is killed. The guard itself opens nothing below a mind's folder.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from hostguard.core.model import Mind
from hostguard.linux import inotify
from hostguard.linux.inotify import Inotify
from hostguard.systemd.fork_client import Stub

LOOK_S = 10  # for one file; a card that stalls takes seconds
AT_ONCE = 4  # processes: a small host has no room for many
PATIENCE_S = 0.5  # after this a process only waits, and another may start
PERMANENT = {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}  # until something is changed

_Key = tuple[str, str]  # mind, path
Stamp = tuple[int, ...]
GONE: Stamp = ()  # of a file that does not exist


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a file found.

    `watches`: each with the folder entry that matters; None: there was no answer. `blind`: why not every
    folder is watched. `raw`: the content; None if it is as it was, or there is a `fault`. `passing`: the
    fault may go without a change that is seen.
    """

    watches: frozenset[tuple[int, str]] | None = None
    blind: OSError | None = None
    stamp: Stamp | None = None
    raw: bytes | None = None
    owner: int = 0  # of the file
    fault: str | None = None
    passing: bool = False


class Forks(Protocol):
    """Starts processes. systemd.fork_client.ForkClient does."""

    async def take(self) -> Stub:
        """A process that waits for what to do. Raises OSError."""


class FileReader:
    """Looks at files as the users of minds."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._turnstile = asyncio.Semaphore(AT_ONCE)
        self._leaving: dict[_Key, tuple[Stub, asyncio.Future[None]]] = {}  # processes that were killed

    def close(self) -> None:
        """Forget the processes that were killed, and may not be gone yet."""
        for key in [*self._leaving]:
            self._gone(key)

    async def look(
        self, mind: Mind, path: str, most: int, stamp: Stamp | None, watch: Inotify | None
    ) -> tuple[Seen, Inotify | None]:
        """Look at a file of at most `most` bytes, and watch the way to it. `stamp`: of the version known.

        Returns the inotify instance, too. It is the user's, and made by the first look.
        """
        key = mind.name, path
        if key in self._leaving:
            _, gone = self._leaving[key]
            await asyncio.wait([gone], timeout=PATIENCE_S)
            if not gone.done():
                return Seen(fault="does not answer, and its reader cannot be ended", passing=True), watch
        spec = {
            "path": path, "most": most, "stamp": stamp, "seconds": LOOK_S,
            "uid": mind.uid, "gid": mind.gid, "groups": mind.groups,
            "mask": inotify.ENTRIES | inotify.ATTRIB | inotify.FLAGS,
            "last_mask": inotify.ENTRIES | inotify.ATTRIB | inotify.CLOSE_WRITE | inotify.FLAGS,
        }  # fmt: skip
        content = os.memfd_create("file")
        try:
            async with self._in_turn():
                answer, fds = await self._ask(key, spec, content, watch)
            if fds:
                watch = Inotify(fds[0])
            return _seen(answer, os.pread(content, most, 0), stamp), watch
        except OSError as error:
            return Seen(fault=f"cannot be read: {error.strerror or error}", passing=True), watch
        finally:
            os.close(content)

    async def _ask(
        self, key: _Key, spec: dict[str, Any], content: int, watch: Inotify | None
    ) -> tuple[dict[str, Any], list[int]]:
        """The process's answer. Raises OSError."""
        stub = await self._forks.take()
        try:
            async with asyncio.timeout(LOOK_S):
                raw, fds = await stub.look(spec, content, None if watch is None else watch.fd)
        except TimeoutError:
            raise OSError(f"no answer within {LOOK_S} s") from None
        finally:
            stub.kill()
            loop = asyncio.get_running_loop()
            self._leaving[key] = stub, loop.create_future()
            loop.add_reader(stub.pidfd, self._gone, key)
        if not raw:
            raise OSError("its reader was killed")
        return json.loads(raw), fds

    def _gone(self, key: _Key) -> None:
        stub, gone = self._leaving.pop(key)
        asyncio.get_running_loop().remove_reader(stub.pidfd)
        stub.close()
        gone.set_result(None)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Wait for a place. A process that takes long, as that of a trap, keeps none."""
        await self._turnstile.acquire()
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self._turnstile.release()

        timer = asyncio.get_running_loop().call_later(PATIENCE_S, leave)
        try:
            yield
        finally:
            timer.cancel()
            leave()


def _seen(answer: dict[str, Any], raw: bytes, known: Stamp | None) -> Seen:
    watches = frozenset((watch, entry) for watch, entry in answer["watches"])
    blind = None
    if answer["blind"] is not None:
        code, folder = answer["blind"]
        blind = OSError(code, os.strerror(code), folder)
    code, fault = answer["errno"], answer["fault"]
    if code in (errno.ENOENT, errno.ENOTDIR):
        return Seen(watches, blind, GONE)
    if code == errno.EWOULDBLOCK:
        fault = "another process holds a lease on it"
    elif code:
        fault = f"cannot be read: {os.strerror(code)}"
    stamp = tuple(answer["stamp"]) if answer["stamp"] is not None else None
    if fault is not None:
        return Seen(watches, blind, stamp, fault=fault, passing=bool(code) and code not in PERMANENT)
    return Seen(watches, blind, stamp, None if stamp == known else raw, answer["owner"])
