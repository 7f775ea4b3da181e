"""The minds' routes.json files: held in memory, read again when they change, each by itself.

inotify watches every folder on the path to a file, so a file that does not exist yet, one that is replaced
and a folder that is swapped are all noticed. A mount over a folder is not; a reload reads all files again.
Until a mind's file is read the first time, its messages wait: they are not those of a mind without routes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from dataclasses import dataclass, field, replace
from typing import Protocol

from hostguard.core.model import Mind
from hostguard.core.ports import Configured
from hostguard.core.signals import RoutesChanged, RoutesRead, Signal
from hostguard.core.tasks import Tasks
from hostguard.delivery.routes import ROUTES_MAX, Routes, Unread, instructions, parse_routes
from hostguard.linux import inotify
from hostguard.linux.inotify import Inotify
from hostguard.systemd.file_reader import GONE, Seen, Stamp

log = logging.getLogger(__name__)

SETTLE_S = 0.05  # one write of a file makes several changes
SHARE, REST_MAX_S = 10, 5.0  # a pause is this many times as long as the work before it, in s at most
# A start or a reload waits this long for all files together, so that usually none is unread when it is over.
LOAD_S = 0.25
AGAIN_S, AGAIN_MAX_S = 5.0, 300.0  # pauses after a fault that may pass; each is twice the one before


class Reader(Protocol):
    """Looks at files as the users of minds: systemd.file_reader.FileReader."""

    async def look(
        self, mind: Mind, path: str, most: int, stamp: Stamp | None, watch: Inotify | None
    ) -> tuple[Seen, Inotify | None]:
        """What is there, and the inotify instance that watches it."""

    def close(self) -> None:
        """Let go of what is not answered."""


@dataclass(eq=False)
class _File:
    """One mind's file. It is listened to, waits for the timer, or a task looks at it.

    `stamp` is that of the version read last, valid or not. `fault` was logged.
    """

    path: str
    uid: int
    found: Routes | Unread | None
    known: asyncio.Event = field(default_factory=asyncio.Event)  # it is no longer Unread
    stamp: Stamp | None = None
    watch: Inotify | None = None
    entries: frozenset[tuple[int, str]] = frozenset()  # each watch with the folder entry that matters
    due: bool = False
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    rests_until: float = 0  # by the monotonic clock
    again_s: float = 0
    fault: str | None = None
    blind: bool = False  # not every folder could be watched, and this was logged


class RouteFiles:
    """Routes by mind. `changed` reports each mind whose routes differ, `read` each when it is read first."""

    def __init__(
        self, policy: Configured, reader: Reader, changed: Signal[RoutesChanged], read: Signal[RoutesRead]
    ) -> None:
        self._policy = policy
        self._reader = reader
        self._changed, self._read = changed, read
        self._files: dict[str, _File] = {}
        self._tasks = Tasks()
        self._loading: set[asyncio.Task[None]] = set()
        self._load_until = 0.0

    def reload(self) -> None:
        """Follow the configuration, and begin to look at every file."""
        minds = self._policy.config.minds
        wanted = {name: mind.routes for name, mind in minds.items() if mind.routes is not None}
        for name in self._files.keys() - wanted.keys():
            file = self._files.pop(name)
            self._let_go(file)
            file.known.set()
            self._report(name, file.found, None)
        for name, path in wanted.items():
            known, uid = self._files.get(name), minds[name].uid
            if known is None:
                self._files[name] = _File(path, uid, Unread(f"{path} is being read"))
            elif (known.path, known.uid) != (path, uid):  # the old routes hold until the new ones are read
                self._let_go(known)
                self._files[name] = _File(path, uid, known.found, known.known)
        self._loading = {self._look(name, file) for name, file in self._files.items()}
        self._load_until = time.monotonic() + LOAD_S

    async def loaded(self) -> None:
        """Wait until the last `reload` has looked at every file, at most LOAD_S since it began."""
        if self._loading:
            await asyncio.wait(self._loading, timeout=max(0.0, self._load_until - time.monotonic()))
        self._loading = set()

    async def close(self) -> None:
        """Stop watching. What is being read is not waited for."""
        for file in self._files.values():
            self._let_go(file)
        await self._tasks.settled(LOAD_S)
        self._reader.close()

    # -- questions

    def get(self, mind: str) -> Routes | Unread | None:
        """The mind's routes; None if it has no file of them."""
        file = self._files.get(mind)
        if file is not None:
            return file.found
        config = self._policy.config.minds.get(mind)  # a reload has just brought it
        return None if config is None or config.routes is None else Unread(f"{config.routes} is being read")

    def unread(self, mind: str) -> str:
        """Why the mind's routes could not be read yet; "" if they were, or it has none."""
        found = self.get(mind)
        return found.why if isinstance(found, Unread) else ""

    async def read(self, mind: str) -> None:
        """Wait until the mind's routes are read, or it has none."""
        file = self._files.get(mind)
        if file is not None and isinstance(file.found, Unread):
            await file.known.wait()

    def instructions(self, mind: str, session: str) -> str | None:
        """The instructions that the mind's routes have for the session; None if there are none."""
        routes = self.get(mind)
        return instructions(routes, session) if isinstance(routes, Routes) else None

    # -- changes

    def _listen(self, name: str, file: _File) -> None:
        if file.watch is not None:
            asyncio.get_running_loop().add_reader(file.watch.fd, self._on_change, name, file)

    def _look_in(self, seconds: float, name: str, file: _File) -> None:
        file.timer = asyncio.get_running_loop().call_later(seconds, self._rested, name, file)

    def _rested(self, name: str, file: _File) -> None:
        if file.due:
            self._look(name, file)
        else:
            self._listen(name, file)

    def _interrupt(self, file: _File) -> None:
        """Neither listen nor wait any more."""
        if file.watch is not None:
            asyncio.get_running_loop().remove_reader(file.watch.fd)
        if file.timer is not None:
            file.timer.cancel()

    def _let_go(self, file: _File) -> None:
        self._interrupt(file)
        if file.task is not None and not file.task.done():
            file.task.cancel()
        if file.watch is not None:
            file.watch.close()
            file.watch = None

    def _on_change(self, name: str, file: _File) -> None:
        begun = time.monotonic()
        assert file.watch is not None
        watches = {watch for watch, _ in file.entries}
        for change in file.watch.read():
            lost = change.mask & inotify.OVERFLOW or (
                change.mask & inotify.IGNORED and change.watch in watches
            )
            file.due |= bool(lost) or (change.watch, change.name) in file.entries
        # A pause after changes that do not matter, too: a mind may make thousands of them a second.
        now = time.monotonic()
        self._interrupt(file)
        self._look_in(max(SETTLE_S, SHARE * (now - begun), file.rests_until - now), name, file)

    def _look(self, name: str, file: _File) -> asyncio.Task[None]:
        file.due = True
        if file.task is None or file.task.done():
            self._interrupt(file)  # what changes meanwhile stays in the kernel until the watches are known
            file.task = self._tasks.start(self._look_while_due(name, file))
        return file.task

    async def _look_while_due(self, name: str, file: _File) -> None:
        begun = time.monotonic()
        passing = False
        while file.due:
            file.due = False
            passing = await self._look_once(name, file)
        now = time.monotonic()
        file.rests_until = now + min(SHARE * (now - begun), REST_MAX_S)
        self._listen(name, file)
        file.again_s = min(2 * file.again_s or AGAIN_S, AGAIN_MAX_S) if passing else 0
        if passing:
            file.due = True
            self._look_in(file.again_s, name, file)

    async def _look_once(self, name: str, file: _File) -> bool:
        """True if it has a fault that may pass by itself."""
        mind = self._policy.config.minds.get(name)
        if mind is None:  # a reload is about to let it go
            return False
        seen = Seen(fault=f"cannot be read: {mind.broken}", passing=True)
        if not mind.broken:
            seen, file.watch = await self._reader.look(mind, file.path, ROUTES_MAX, file.stamp, file.watch)
        if seen.watches is not None:
            self._note_watches(file, seen)
        routes, fault = None, seen.fault
        if seen.raw is not None:
            routes, fault = await asyncio.to_thread(_parsed, seen.raw, seen.owner)
        if fault is not None:
            _note_fault(name, file, fault)
            file.stamp = file.stamp if seen.stamp is None else seen.stamp
        elif seen.stamp != file.stamp:
            self._take_over(name, file, seen.stamp, routes)
        return seen.passing

    def _note_watches(self, file: _File, seen: Seen) -> None:
        assert seen.watches is not None
        if file.watch is not None:
            for watch in {watch for watch, _ in file.entries} - {watch for watch, _ in seen.watches}:
                file.watch.unwatch(watch)
        file.entries = seen.watches
        if seen.blind is not None and seen.fault is None and not file.blind:
            log.warning("%s: changes take effect only at a reload: %s", file.path, _mend(seen.blind))
        file.blind = seen.blind is not None and seen.fault is None

    def _take_over(self, name: str, file: _File, stamp: Stamp | None, routes: Routes | None) -> None:
        if stamp == GONE and file.stamp is None:
            log.info("%s: the file does not exist yet; %s gets every message until it does", file.path, name)
        elif routes != file.found:
            log.info("%s: %s", file.path, "routes are read" if routes is not None else "is gone")
        before, file.found, file.stamp, file.fault = file.found, routes, stamp, None
        file.known.set()
        self._report(name, before, routes)

    def _report(self, name: str, before: Routes | Unread | None, now: Routes | None) -> None:
        unread = isinstance(before, Unread)
        if (None if unread else before) != now:
            self._changed.send(RoutesChanged(name))
        if unread:
            self._read.send(RoutesRead(name))


def _note_fault(name: str, file: _File, fault: str) -> None:
    """Log a fault once. Routes that were read before stay in effect."""
    if isinstance(file.found, Unread):
        file.found = Unread(f"{file.path}: {fault}")
    if fault != file.fault:
        waits = f"{name} gets its messages once it can be used"
        none = f"{name} still gets every message"
        kept = "the earlier routes stay in effect" if isinstance(file.found, Routes) else none
        log.warning("%s: %s; %s", file.path, fault, waits if isinstance(file.found, Unread) else kept)
    file.fault = fault


def _mend(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "there are too many watches: raise fs.inotify.max_user_watches with sysctl"
    if error.errno == errno.EMFILE:
        return "its user has too many: raise fs.inotify.max_user_instances with sysctl"
    return f"{error.filename} cannot be watched: {error.strerror}"


def _parsed(raw: bytes, owner: int) -> tuple[Routes | None, str | None]:
    """The routes, or what is wrong. In a thread: a large file takes a while."""
    try:
        return replace(parse_routes(raw.decode()), owner=owner), None
    except UnicodeDecodeError:
        return None, "it is not UTF-8"
    except ValueError as error:
        return None, str(error)
