"""Standby: the guard cannot start, stays up, answers every request with the reason, and tries again.

To end instead would have systemd start it again and again: after its pause, and at once for each connection
in the backlog of the socket, even a dead one. That takes half of a small host's CPU, and answers nobody.

Nothing is started, stopped or read from turns meanwhile. Those that live are only counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from starlette.responses import JSONResponse

from hostguard.api.http import problem
from hostguard.api.server import LOCAL, Server, activated, listen
from hostguard.core import paths
from hostguard.core.clock import AGAIN_S, CHECK_S
from hostguard.core.errors import ConfigError, standby
from hostguard.core.model import Config
from hostguard.core.text import cut
from hostguard.core.units import SLICE
from hostguard.linux import cgroup, inotify
from hostguard.linux.files import lock_for_life
from hostguard.linux.inotify import Inotify
from hostguard.store.schema import SchemaTooNew
from hostguard.store.writer import Unavailable, Unreadable
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.systemd.notify import Notifier
from hostguard.telemetry.headlines import turns

log = logging.getLogger(__name__)

LOCK_S = 5.0  # a daemonless `hostguard run` holds the lock while it starts its scope
SETTLE_S = 0.2  # one change of a file makes several events
AFRESH_S = 120.0  # until a start that only a new process can make is tried again
LINE_MAX = 500  # characters of the status line
RELOAD = ("POST", "/v1/reload")


class Stopped(Exception):
    """The guard was told to stop before it could start."""


class Rival(Exception):
    """Another guard runs on this host."""


class NoFolder(Exception):
    """The folder for the state cannot be used. If it comes back, it is not in the sandbox of this process."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the guard cannot start, and what to do, in lines; it is tried again after `again_s` seconds."""

    text: str
    again_s: float


def claim() -> None:
    """Have the folders, and be the only guard on this host. Blocks. Raises OSError, NoFolder, Rival."""
    paths.RUNTIME.mkdir(mode=0o755, parents=True, exist_ok=True)
    paths.RUNTIME.chmod(0o755)
    paths.TURNS.mkdir(mode=0o700, exist_ok=True)
    try:
        paths.STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        leads = f", which leads to {paths.STATE.resolve()}" if paths.STATE.is_symlink() else ""
        where = f"{paths.STATE}{leads}"
        raise NoFolder(f"{where}, cannot be the directory of the queue: {error.strerror}") from None
    if not lock_for_life(paths.LOCK, LOCK_S):
        raise Rival(f"another hostguardd runs on this host (it holds {paths.LOCK})")


def obstacle(error: Exception) -> Obstacle:
    """What keeps the guard from starting, by the error that the start met."""
    match error:
        case ConfigError():
            return Obstacle(f"the configuration is invalid (hostguard config check):\n{error}", CHECK_S)
        case SchemaTooNew() | Unreadable():
            return Obstacle(str(error), CHECK_S)
        case SystemdError() | SystemdLost():
            return Obstacle(f"systemd cannot be used: {error}; see systemctl status dbus", AGAIN_S)
        case Unavailable() | Rival() | NoFolder():
            return Obstacle(str(error), AGAIN_S)
        case OSError(filename=str() as file, strerror=str() as why):  # str(error) begins with its number
            return Obstacle(f"{file} cannot be used: {why}", AGAIN_S)
        case OSError():
            return Obstacle(str(error), AGAIN_S)
    # Its text may hold what a mind was sent.
    *_, frame = traceback.extract_tb(error.__traceback__, -1) or [None]
    place = f" in {Path(frame.filename).name}, line {frame.lineno}" if frame else ""
    return Obstacle(f"an error in hostguard itself: {type(error).__name__}{place}; please report it", CHECK_S)


class Standby:
    """Serves the API's socket while the guard cannot start. The socket stays open, as `listener`."""

    def __init__(self, notifier: Notifier, stop: asyncio.Event) -> None:
        self.listener: socket.socket | None = None
        self._notifier, self._stop = notifier, stop
        self._obstacle: Obstacle | None = None
        self._server: Server | None = None
        self._again = asyncio.Event()
        self._asked: list[asyncio.Future[Config | Obstacle]] = []  # by callers of /v1/reload

    async def until(self, prepare: Callable[[], Awaitable[Config]]) -> Config:
        """Prepare the start, however often. Raises Stopped; OSError and Rival if the API cannot be served."""
        with _Changes(self._again) as changes:
            while True:
                self._again.clear()
                await asyncio.to_thread(changes.watch)  # first, so that a change after the reading is seen
                asked, self._asked = self._asked, []
                try:
                    config = await prepare()
                except Exception as error:
                    found = obstacle(error)
                    if isinstance(error, Rival) and not activated():
                        raise  # the socket's path belongs to the other guard
                    await self._serve(found)
                    _answer(asked, found)
                    if isinstance(error, NoFolder):
                        await self.afresh(error, _nothing_in_the_way)
                    await self._wait(found.again_s)
                else:
                    if self._server is not None:
                        log.warning("the guard can start now")
                        _answer([*asked, *self._asked], config)
                        self._server.end()
                        self._server = None
                    return config

    async def afresh(self, error: Exception, chance: Callable[[], bool] = lambda: True) -> Never:
        """Stay, as only a new process can start, until that has a chance; then raise the error, to end here.

        Raises Stopped instead if the guard is to stop.
        """
        found = obstacle(error)
        with _Changes(self._again) as changes:
            while True:
                self._again.clear()
                await asyncio.to_thread(changes.watch)
                await self._serve(found)
                await self._wait(AFRESH_S)
                asked, self._asked = self._asked, []
                _answer(asked, found)
                if await asyncio.to_thread(chance):
                    break
        self._end()
        await asyncio.sleep(SETTLE_S)  # they get their answers
        raise error

    def try_again(self) -> None:
        """Try again now; without effect unless the guard is on standby."""
        self._again.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        assert self._obstacle is not None
        found: Config | Obstacle = self._obstacle
        if (scope["method"], scope["path"]) == RELOAD:
            asked: asyncio.Future[Config | Obstacle] = asyncio.get_running_loop().create_future()
            self._asked.append(asked)
            self.try_again()
            found = await asked
        if isinstance(found, Config):
            await JSONResponse({"sources": list(found.sources)})(scope, receive, send)
        else:
            await problem(standby(said(found, live_turns(cgroup.of_manager()))))(scope, receive, send)

    async def _serve(self, found: Obstacle) -> None:
        if self._obstacle is None or found.text != self._obstacle.text:
            log.critical("on standby, as the guard cannot start: %s", found.text)
        self._obstacle = found
        if self._server is None:
            self.listener = self.listener or listen(paths.SOCKET)
            self._server = Server(self, LOCAL)
            await self._server.start(self.listener.dup())
            self._notifier.send("READY=1")
        live, text = turns(live_turns(cgroup.of_manager())), " ".join(found.text.split())
        self._notifier.status(cut(f"on standby, {live} in progress: {text}", LINE_MAX))

    async def _wait(self, seconds: float) -> None:
        """Until it is to try again, or the time is over. Raises Stopped."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._stop, self._again)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self._stop.is_set():
            self._end()
            raise Stopped

    def _end(self) -> None:
        assert self._server is not None
        assert self.listener is not None
        self._server.end()
        self.listener.close()


def _nothing_in_the_way() -> bool:
    """False if the folder for the state is a file, or a link that leads nowhere."""
    return paths.STATE.is_dir() or not os.path.lexists(paths.STATE)


class _Changes:
    """Sets `changed` soon after a file of the configuration, or the queue's, was replaced."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._inotify: Inotify | None = None
        self._watches: set[tuple[int, str]] = set()  # each with the entry that matters, "": all

    def __enter__(self) -> _Changes:
        with suppress(OSError):  # too many watches: it is tried again all the same
            self._inotify = Inotify()
            asyncio.get_running_loop().add_reader(self._inotify.fd, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()

    def watch(self) -> None:
        """Watch the folders that there are now. Blocks."""
        if self._inotify is None:
            return
        for folder in (paths.CONFIG.parent, *paths.DROP_INS):
            self._add(folder, inotify.ENTRIES | inotify.CLOSE_WRITE, "")
        self._add(paths.STATE, inotify.ENTRIES, paths.DATABASE.name)  # each attempt writes to it

    def _add(self, folder: Path, mask: int, entry: str) -> None:
        while not folder.exists():
            folder, entry = folder.parent, folder.name
        with suppress(OSError):
            assert self._inotify is not None
            self._watches.add((self._inotify.watch(str(folder), mask), entry))

    def _read(self) -> None:
        assert self._inotify is not None
        for change in self._inotify.read():
            if not self._watches.isdisjoint({(change.watch, ""), (change.watch, change.name)}):
                asyncio.get_running_loop().call_later(SETTLE_S, self._changed.set)


def _answer(asked: list[asyncio.Future[Config | Obstacle]], found: Config | Obstacle) -> None:
    for future in asked:
        if not future.done():
            future.set_result(found)


def said(found: Obstacle, live: int) -> str:
    """What a caller is told, in lines."""
    until = "Until this is corrected, nothing is accepted or started"
    return f"{found.text}\n{until}; {turns(live)} in progress"


def live_turns(manager: Path) -> int:
    """How many turns live: scopes with processes in our slices. `manager`: the service manager's cgroup."""
    place = manager / SLICE
    scopes = (*place.glob("*.scope"), *place.glob("*.slice/*.scope"))
    return sum(cgroup.populated(scope) for scope in scopes)
