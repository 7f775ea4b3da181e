"""The durable queue: one SQLite file, one writing thread with group commit, one reading thread.

The event loop never touches the file. A write is a function of the connection; writes that arrive
while a commit is under way share the next one, so that many callers cost one fsync. A write is
durable (fsync) before its caller is told, unless it says that it need not be.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue as stdqueue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)

SCHEMA = 3
BATCH_MAX = 500  # writes per commit: bounds what one failed commit takes with it
RETRY_S = 1.0  # pause after a failed commit, for writes that must not be lost
# A check reads the whole file: 16 MiB take about a second from an SD card (10 MB/s, class A1).
CHECK_MAX = 16 << 20
# The card is full, read-only or gone; https://sqlite.org/rescode.html
NO_WRITES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
# Bytes; with less room the card is full: SQLite takes this much to open a file, a turn's end hardly more.
ROOM = 64 << 10
BUSY_MS = 2000  # another process (sqlite3 by hand) may hold the file this long


class QueueError(Exception):
    """The queue cannot take this now; nothing was stored."""


class Unavailable(QueueError):
    """The database did not take the write: disk full, I/O error, or a stalled device."""


class Locked(Unavailable):
    """Another process holds the file: no write of the batch could do better alone."""


class SchemaTooNew(QueueError):
    """The file was written by a newer hostguard."""


class Refused(Exception):
    """Raised by a write, before it changed anything: this write is refused, its batch goes on."""


@dataclass(eq=False)
class Write(Generic[T]):
    """One write on its way to the writing thread."""

    op: Callable[[sqlite3.Connection], T]
    future: asyncio.Future[T]
    durable: bool
    keep: bool  # try again until it succeeds
    state: str = field(default="waiting")  # waiting -> taken, or waiting -> withdrawn


Done = tuple[Write[object], object, Exception | None]


class Queue:
    """The database of deliveries and settings. `path` is its file; the folder must exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notice: str | None = None  # what a person must know about the file
        self.on_damage: Callable[[str], None] = log.critical
        # Why the file takes no writes, until it takes ROOM bytes: it is tried again every RETRY_S.
        self.trouble: str | None = None
        self.on_trouble: Callable[[], None] = lambda: None  # told on the loop when `trouble` comes or goes
        self._inbox: stdqueue.SimpleQueue[Write[object] | None] = stdqueue.SimpleQueue()
        self._lock = threading.Lock()  # guards Write.state
        self._synchronous = ""
        self._reader_pool = ThreadPoolExecutor(1, "queue-reader")
        self._thread = threading.Thread(target=self._work, name="queue-writer", daemon=True)

    async def open(self) -> None:
        """Open or create the file and bring its schema up to date.

        A damaged file is moved aside, never deleted, and `notice` says where. Raises SchemaTooNew,
        Unavailable.
        """
        self._loop = asyncio.get_running_loop()
        self._db, self.notice = await self._loop.run_in_executor(self._reader_pool, open_database, self.path)
        self._reader = await self._loop.run_in_executor(self._reader_pool, _connect, self.path)
        self._thread.start()

    async def close(self) -> None:
        """Finish what was handed in, then close."""
        self._inbox.put(None)
        await self._loop.run_in_executor(self._reader_pool, self._thread.join)
        await self._loop.run_in_executor(self._reader_pool, self._reader.close)
        self._reader_pool.shutdown()

    def submit(
        self, op: Callable[[sqlite3.Connection], T], *, durable: bool = True, keep: bool = False
    ) -> Write[T]:
        """Hand in a write; await its `future`. With `keep` it is tried until it succeeds."""
        write: Write[T] = Write(op, self._loop.create_future(), durable, keep)
        self._inbox.put(write)  # type: ignore[arg-type]
        return write

    async def write(
        self, op: Callable[[sqlite3.Connection], T], *, durable: bool = True, keep: bool = False
    ) -> T:
        """Hand in a write and wait for its commit. Raises Unavailable, or what `op` refuses with."""
        return await self.submit(op, durable=durable, keep=keep).future

    def withdraw(self, write: Write[T]) -> bool:
        """Take a waiting write back. False if its commit has begun: it may still succeed."""
        with self._lock:
            if write.state == "waiting":
                write.state = "withdrawn"
            return write.state == "withdrawn"

    async def read(self, op: Callable[[sqlite3.Connection], T]) -> T:
        """Run `op` on the reading connection. Raises Unavailable."""
        return await self._loop.run_in_executor(self._reader_pool, self._read, op)

    def _read(self, op: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return op(self._reader)
        except sqlite3.Error as error:
            self._suspect(error)
            raise Unavailable(f"{self.path}: {self.trouble or error}") from error

    # -- the writing thread

    def _work(self) -> None:
        kept: list[Write[object]] = []
        stop = False
        while not (stop and not kept):
            batch, stop = self._take(kept, stop)
            kept = []
            done = self._try_commit(batch)
            failed = isinstance(done, Exception)
            if isinstance(done, Exception):
                # Alone, each fails or succeeds for what it is itself.
                failure, done = done, []
                for write in batch:
                    lone = len(batch) == 1 or isinstance(failure, Locked)
                    alone = failure if lone else self._try_commit([write])
                    if not isinstance(alone, Exception):
                        done += alone
                    elif write.keep:
                        kept.append(write)
                    else:
                        done.append((write, None, alone))
            self._resolve(done)
            if batch and self.trouble is not None and not failed:
                failed = isinstance(self._try_commit([]), Exception)
            if not failed:
                self._set_trouble(None)
            if kept and stop:
                log.error("%d writes to %s are lost: the guard stops", len(kept), self.path)
                break
            if kept:
                time.sleep(RETRY_S)
        self._db.close()

    def _take(self, kept: list[Write[object]], stop: bool) -> tuple[list[Write[object]], bool]:
        batch = list(kept)
        while len(batch) < BATCH_MAX:
            try:
                block = not batch and not stop
                write = self._inbox.get(block, RETRY_S if self.trouble is not None else None)
            except stdqueue.Empty:
                break
            if write is None:
                stop = True
                continue
            with self._lock:
                if write.state == "withdrawn":
                    continue
                write.state = "taken"
            batch.append(write)
        return batch, stop

    def _try_commit(self, batch: list[Write[object]]) -> list[Done] | Unavailable:
        if not batch and self.trouble is None:
            return []
        wanted = "FULL" if not batch or any(write.durable for write in batch) else "NORMAL"
        try:
            if wanted != self._synchronous:
                self._db.execute(f"PRAGMA synchronous={wanted}")
                self._synchronous = wanted
            return self._commit(batch)
        except Exception as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in NO_WRITES:
                self._set_trouble(_explained(error, self.path))
            elif isinstance(error, sqlite3.Error):
                log.error("cannot write to %s: %s", self.path, error)
                self._suspect(error)
            else:
                log.exception("a write to %s is wrong", self.path)
            with suppress(sqlite3.Error):
                self._db.rollback()
            return (Locked if code == sqlite3.SQLITE_BUSY else Unavailable)(f"{self.path}: {error}")

    def _commit(self, batch: list[Write[object]]) -> list[Done]:
        """With nothing to write, see if there is room: a full card takes what fits into the last block."""
        if not batch:
            self._db.execute("REPLACE INTO settings VALUES ('room', ?)", (json.dumps(" " * ROOM),))
            self._db.execute("DELETE FROM settings WHERE name = 'room'")
            return []
        done: list[Done] = []
        self._db.execute("BEGIN IMMEDIATE")
        for write in batch:
            try:
                done.append((write, write.op(self._db), None))
            except Refused as refusal:
                done.append((write, None, refusal))
        self._db.execute("COMMIT")
        return done

    def _resolve(self, done: list[Done]) -> None:
        def resolve() -> None:
            for write, value, error in done:
                if write.future.cancelled():
                    continue
                if error is not None:
                    write.future.set_exception(error)
                else:
                    write.future.set_result(value)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(resolve)

    def _set_trouble(self, trouble: str | None) -> None:
        """Said once, however often a write is tried again."""
        before, self.trouble = self.trouble, trouble
        if trouble is not None and trouble != before:
            log.error("cannot write to %s: %s; it is tried again every %g s", self.path, trouble, RETRY_S)
        if trouble is None and before is not None:
            log.warning("%s takes writes again", self.path)
        if (trouble is None) != (before is None):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.on_trouble)

    def _suspect(self, error: sqlite3.Error) -> None:
        """Report damage. Not on the event loop: it touches the disk.

        While the card fails it is none: what cannot be read, as on a file system that has shut down, SQLite
        takes for malformed, too.
        """
        if self.trouble is None and _is_damage(error):
            with suppress(OSError):  # a card that fails is read-only soon
                suspect_mark(self.path).touch()
            self._loop.call_soon_threadsafe(self.on_damage, f"{self.path} is damaged: {error}")


def suspect_mark(path: Path) -> Path:
    """The file that asks the next start for a whole check."""
    return path.with_name(path.name + ".suspect")


def open_database(path: Path) -> tuple[sqlite3.Connection, str | None]:
    """(connection, notice). Raises SchemaTooNew, Unavailable; moves a damaged file aside.

    The notice stays until a person has taken the file that was moved aside away.
    """
    try:
        try:
            db = _open(path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            log.critical("%s is damaged: %s", path, error)
            _move_aside(path)
            db = _open(path)
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(f"cannot open {path}: {_explained(error, path)}") from error
    asides = sorted(path.parent.glob(f"{path.name}.damaged-*Z"))
    if not asides:
        return db, None
    return db, (
        f"the queue was damaged and is kept as {asides[-1]}; a new one was begun. What can be read of the"
        f" old one: sqlite3 {asides[-1]} .recover. Move it away to end this notice"
    )


def _open(path: Path) -> sqlite3.Connection:
    check = suspect_mark(path).exists() or (path.exists() and path.stat().st_size <= CHECK_MAX)
    db = _connect(path)
    try:
        if check:
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {found}")
            suspect_mark(path).unlink(missing_ok=True)
        migrate(db, path)
        db.execute("PRAGMA journal_mode=WAL")
    except BaseException:
        db.close()
        raise
    return db


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite gives -wal the same mode
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)
    try:
        # Of a new file: a commit writes whole pages, so half the bytes per turn of the default 4096.
        db.execute("PRAGMA page_size=1024")
        db.execute("PRAGMA wal_autocheckpoint=4000")  # pages: 4 MiB, as with the default page
        db.execute("PRAGMA temp_store=MEMORY")
        db.execute(f"PRAGMA journal_size_limit={4 << 20}")
    except BaseException:
        db.close()
        raise
    return db


def migrate(db: sqlite3.Connection, path: Path, upto: int = SCHEMA) -> None:
    """Apply the steps in hostguard/sql/ that this file has not seen, one transaction each."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise SchemaTooNew(
            f"{path} was written by a newer hostguard (schema {version}, this one knows {SCHEMA}): "
            f"upgrade hostguard, or move the file away to begin with an empty queue"
        )
    steps = {int(f.name[:4]): f for f in files("hostguard.sql").iterdir() if f.name[:4].isdigit()}
    for step in range(version + 1, upto + 1):
        db.executescript(f"BEGIN; {steps[step].read_text()} PRAGMA user_version={step}; COMMIT;")


def _explained(error: Exception, path: Path) -> str:
    """SQLite's words, and what may be the reason."""
    with suppress(OSError):
        disk = os.statvfs(path.parent)
        if disk.f_flag & os.ST_RDONLY:
            return f"{error} (its file system is read-only)"
        if disk.f_bavail * disk.f_frsize < ROOM:
            return f"{error} (its file system is full)"
    return str(error)


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error).startswith("malformed")


def _move_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    suspect_mark(path).unlink(missing_ok=True)
