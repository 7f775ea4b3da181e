"""The minds' routes.json files: read in a thread, held in memory, read again when they change.

inotify watches every folder on the path to a file, so a file that does not exist yet, one that is replaced
and a folder that is swapped are all noticed. A mount over a folder is not; a reload reads all files again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hostguard.core.model import Config
from hostguard.core.signals import RoutesChanged, Signal
from hostguard.core.tasks import Tasks
from hostguard.delivery.routes import ROUTES_MAX, Routes, instructions, parse_routes
from hostguard.linux import inotify
from hostguard.linux.inotify import Inotify

log = logging.getLogger(__name__)

SETTLE_S = 0.05  # one write of a file makes several changes
LOAD_S = 10.0  # the guard starts without routes that cannot be read within this

Stamp = tuple[int, ...]
GONE: Stamp = ()  # of a file that does not exist


@dataclass(eq=False)
class _File:
    """One mind's file. `stamp` is that of the version read last, valid or not."""

    path: str
    stamp: Stamp | None = None
    routes: Routes | None = None
    watches: frozenset[tuple[int, str]] = frozenset()  # each with the folder entry that matters
    blind: bool = False  # not every folder could be watched, and this was logged


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of checking a file. `stamp` None: it has not changed."""

    watches: frozenset[tuple[int, str]]
    blind: OSError | None = None
    stamp: Stamp | None = None
    routes: Routes | None = None
    fault: str | None = None


class RouteFiles:
    """Routes by mind. `changed` reports each mind whose routes differ from before."""

    def __init__(self, changed: Signal[RoutesChanged]) -> None:
        self._changed = changed
        self._files: dict[str, _File] = {}
        self._inotify: Inotify | None = None
        self._index: dict[tuple[int, str], set[str]] = {}  # (watch, entry) -> minds
        self._due: set[str] = set()  # minds whose file is to be looked at
        self._tasks = Tasks()
        self._work: asyncio.Task[None] | None = None
        self._settling: asyncio.TimerHandle | None = None

    async def start(self, config: Config) -> None:
        """Read all files, and watch them; after LOAD_S this goes on in the background."""
        try:
            self._inotify = Inotify()
        except OSError as error:
            log.warning("changes of routes take effect only at a reload: inotify: %s", error.strerror)
        else:
            asyncio.get_running_loop().add_reader(self._inotify.fd, self._on_inotify)
        await self.reload(config)

    async def reload(self, config: Config) -> None:
        """Apply a new configuration, and read every file that changed."""
        wanted = {name: mind.routes for name, mind in config.minds.items() if mind.routes is not None}
        for name in self._files.keys() - wanted.keys():
            if self._files.pop(name).routes is not None:
                self._changed.send(RoutesChanged(name))
        for name, path in wanted.items():
            known = self._files.get(name)
            if known is None or known.path != path:  # the old routes hold until the new ones are read
                self._files[name] = _File(path, routes=known.routes if known is not None else None)
        self._reindex()
        self._due.update(wanted)
        work = self._look()
        await asyncio.wait([work], timeout=LOAD_S)
        if not work.done():
            log.warning("the device does not answer: routes are read once it does")

    async def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
        if self._settling is not None:
            self._settling.cancel()
        if self._work is not None:
            self._work.cancel()
        if self._inotify is not None and (self._work is None or self._work.done()):
            self._inotify.close()  # else a thread still uses it, and the process ends soon

    def get(self, mind: str) -> Routes | None:
        """The mind's routes; None if it has no file of them."""
        file = self._files.get(mind)
        return file.routes if file is not None else None

    def instructions(self, mind: str, session: str) -> str | None:
        """The instructions that the mind's routes have for the session; None if there are none."""
        routes = self.get(mind)
        return instructions(routes, session) if routes is not None else None

    # -- changes

    def _on_inotify(self) -> None:
        assert self._inotify is not None
        for change in self._inotify.read():
            if change.mask & inotify.OVERFLOW:
                self._due |= self._files.keys()
            elif change.mask & inotify.IGNORED:
                self._due.update(*(minds for key, minds in self._index.items() if key[0] == change.watch))
            else:
                self._due |= self._index.get((change.watch, change.name), set())
        if self._due and self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_S, self._look)

    def _look(self) -> asyncio.Task[None]:
        self._settling = None
        if self._work is None or self._work.done():
            self._work = self._tasks.start(self._look_at_due())
        return self._work

    async def _look_at_due(self) -> None:
        while self._due:
            due, self._due = self._due, set()
            files = [(name, file) for name in sorted(due) if (file := self._files.get(name)) is not None]
            stamps = [(file.path, file.stamp) for _, file in files]
            looks = await asyncio.to_thread(_look_at, self._inotify, stamps)
            changed = [
                name
                for (name, file), look in zip(files, looks, strict=True)
                if self._files.get(name) is file and _take_over(name, file, look)
            ]
            self._reindex()
            for name in changed:
                self._changed.send(RoutesChanged(name))

    def _reindex(self) -> None:
        before = {watch for watch, _ in self._index}
        self._index = {}
        for name, file in self._files.items():
            for key in file.watches:
                self._index.setdefault(key, set()).add(name)
        if self._inotify is not None:
            for watch in before - {watch for watch, _ in self._index}:
                self._inotify.unwatch(watch)


def _take_over(mind: str, file: _File, look: _Look) -> bool:
    """True if the mind's routes changed."""
    file.watches = look.watches
    if look.blind is not None and not file.blind:
        log.warning("%s: changes take effect only at a reload: %s", file.path, _mend(look.blind))
    file.blind = look.blind is not None
    if look.stamp is None:
        return False
    if file.stamp is None and look.stamp == GONE:
        log.info("%s: the file does not exist yet; %s gets every message until it does", file.path, mind)
    file.stamp = look.stamp
    if look.fault is not None:
        kept = "the earlier routes stay in effect" if file.routes is not None else f"{mind} has no routes"
        log.warning("%s: %s; %s", file.path, look.fault, kept)
        return False
    if look.routes == file.routes:
        return False
    file.routes = look.routes
    log.info("%s: %s", file.path, "routes are read" if look.routes is not None else "is gone")
    return True


def _mend(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "there are too many watches: raise fs.inotify.max_user_watches with sysctl"
    return f"{error.filename} cannot be watched: {error.strerror}"


# -- in a thread: all of this may wait for the disk


def _look_at(notifier: Inotify | None, files: Sequence[tuple[str, Stamp | None]]) -> list[_Look]:
    return [_look_at_one(notifier, path, stamp) for path, stamp in files]


def _look_at_one(notifier: Inotify | None, path: str, stamp: Stamp | None) -> _Look:
    watches, blind = _watch(notifier, path)  # first, so that a change after the reading is seen
    try:
        found, raw, owner = _read(path, stamp)
    except (FileNotFoundError, NotADirectoryError):
        return _Look(watches, blind, GONE)
    except OSError as error:
        # Logged once for each kind of fault, as the stamp shows.
        return _Look(watches, blind, *_fault((error.errno or 0,), stamp, f"cannot be read: {error.strerror}"))
    except ValueError as error:
        return _Look(watches, blind, *_fault((-1,), stamp, str(error)))
    if raw is None:
        return _Look(watches, blind)
    try:
        return _Look(watches, blind, found, replace(parse_routes(raw.decode()), owner=owner))
    except UnicodeDecodeError:
        return _Look(watches, blind, found, fault="it is not UTF-8")
    except ValueError as error:
        return _Look(watches, blind, found, fault=str(error))


def _fault(now: Stamp, before: Stamp | None, text: str) -> tuple[Stamp | None, None, str | None]:
    return (None, None, None) if now == before else (now, None, text)


def _read(path: str, stamp: Stamp | None) -> tuple[Stamp, bytes | None, int]:
    """(stamp, content, owner); no content if the file is as it was. Raises OSError, ValueError."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)  # opens nothing: a FIFO would wait, a device may act
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ValueError("is not a regular file")
        found = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        if found == stamp:
            return found, None, info.st_uid
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            raw = file.read(ROUTES_MAX + 1)
    finally:
        os.close(fd)
    if len(raw) > ROUTES_MAX:
        raise ValueError(f"is larger than {ROUTES_MAX} bytes")
    return found, raw, info.st_uid


def _watch(notifier: Inotify | None, path: str) -> tuple[frozenset[tuple[int, str]], OSError | None]:
    """Watch all folders on the path to the file, from the root on, and on the path that its links lead to."""
    if notifier is None:
        return frozenset(), None
    watches: set[tuple[int, str]] = set()
    for way in dict.fromkeys((path, os.path.realpath(path))):
        for folder, entry, last in _way(way):
            try:
                watch = notifier.watch(folder, inotify.ENTRIES | (inotify.CLOSE_WRITE if last else 0))
            except (FileNotFoundError, NotADirectoryError):
                break  # the folder above reports when it appears
            except OSError as error:
                return frozenset(watches), error
            watches.add((watch, entry))
    return frozenset(watches), None


def _way(path: str) -> Iterator[tuple[str, str, bool]]:
    """(folder, its entry on the path, whether that is the file) from the root on."""
    entries = [entry for entry in path.split("/") if entry]
    for number, entry in enumerate(entries):
        yield "/" + "/".join(entries[:number]), entry, number == len(entries) - 1
