"""The durable queue: one SQLite file, one writing thread with group commit, one reading thread.

The event loop never touches the file. A write is a function of the connection; writes that arrive during a
commit share the next one, so many callers cost one fsync. A write is durable (fsync) before it is
acknowledged, unless it asks for less.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue as stdqueue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from hostguard.core.errors import named
from hostguard.core.signals import QueueDamaged, QueueTrouble, RowsSetAside, Signal
from hostguard.store import asides, damage
from hostguard.store.connection import ROOM, connect, explained, open_database, suspect
from hostguard.store.damage import is_damage
from hostguard.store.history import History
from hostguard.store.sums import Damaged, Row

T = TypeVar("T")
log = logging.getLogger(__name__)

BATCH_MAX = 500  # writes per commit: bounds what one failed commit takes with it
RETRY_S = 1.0  # until a failed commit is tried again, for writes that must not be lost
# The card is full, read-only or gone; https://sqlite.org/rescode.html
NO_WRITES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
# What passes, too: another process holds the file, or memory is short. All else is the fault of the write.
PASSING = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
)  # fmt: skip


class Unavailable(Exception):
    """The database did not take the write: disk full, I/O error, or a stalled device."""


class Locked(Unavailable):
    """Another process holds the file: no write of the batch would succeed alone."""


class Unreadable(Unavailable):
    """The file has content that can neither be read nor set aside: an error in hostguard."""


class Faulty(Exception):
    """The write itself is wrong, by a bug, and changed nothing. To try it again is of no use.

    The text is the type of the error and its place: what else it says may quote a message.
    """


class Refused(Exception):
    """Raised by a write before it changes anything: it is refused, and the rest of its batch goes on."""


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
        self.notice: str | None = None  # for a person: what was damaged and set aside
        self.damaged = Signal[QueueDamaged]()
        self.rows_set_aside = Signal[RowsSetAside]()
        self.trouble_changed = Signal[QueueTrouble]()
        # Why the file takes no writes; tried every RETRY_S, and None again once it takes ROOM bytes.
        self.trouble: str | None = None
        self.faults: dict[str, int] = {}  # how many changes were given up, by the bug: see Faulty
        self._inbox: stdqueue.SimpleQueue[Write[object] | None] = stdqueue.SimpleQueue()
        self._lock = threading.Lock()  # guards Write.state
        self._synchronous = ""
        self._history = History()
        self._reader_pool = ThreadPoolExecutor(1, "queue-reader")
        self._thread = threading.Thread(target=self._work, name="queue-writer", daemon=True)

    async def open(self) -> None:
        """Open or create the file and bring its schema up to date.

        A damaged file is moved aside, never deleted, and `notice` says where. Raises SchemaTooNew,
        Unavailable.
        """
        self._loop = asyncio.get_running_loop()
        self._db, self.notice = await self._loop.run_in_executor(self._reader_pool, _open, self.path)
        self._reader = await self._loop.run_in_executor(self._reader_pool, connect, self.path)
        self._history.watch(self._db)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """True once `open` succeeded."""
        return self._thread.ident is not None

    async def close(self) -> None:
        """Finish the submitted writes, then close."""
        self._inbox.put(None)
        await self._loop.run_in_executor(self._reader_pool, self._thread.join)
        await self._loop.run_in_executor(self._reader_pool, self._reader.close)
        self._reader_pool.shutdown()

    async def renew_notice(self) -> None:
        """Look whether a person has moved away what was set aside. Raises OSError."""
        self.notice = await self._loop.run_in_executor(self._reader_pool, asides.notice, self.path)

    def keep_history(self, rows: int) -> None:
        """Keep this many ended rows, the newest, now and from now on."""
        self.submit(lambda db: self._history.keep(db, rows), durable=False, keep=True)

    async def count_some(self, after: int) -> int | None:
        """Count what large messages take, for the limits: see quota.count_some. Raises Unavailable."""
        return await self.write(lambda db: self._history.count_some(db, after), durable=False)

    def submit(
        self, op: Callable[[sqlite3.Connection], T], *, durable: bool = True, keep: bool = False
    ) -> Write[T]:
        """Submit a write; await its `future`. With `keep` it is tried until it succeeds, or is Faulty."""
        write: Write[T] = Write(op, self._loop.create_future(), durable, keep)
        self._inbox.put(write)  # type: ignore[arg-type]
        return write

    async def write(
        self, op: Callable[[sqlite3.Connection], T], *, durable: bool = True, keep: bool = False
    ) -> T:
        """Submit a write and wait for its commit. Raises Unavailable, Faulty, or the Refused of `op`."""
        return await self.submit(op, durable=durable, keep=keep).future

    def withdraw(self, write: Write[T]) -> bool:
        """Withdraw a waiting write. False if its commit has begun: it may still succeed."""
        with self._lock:
            if write.state == "waiting":
                write.state, write.op = "withdrawn", _nothing  # what it would store is not kept in memory
            return write.state == "withdrawn"

    async def read(self, op: Callable[[sqlite3.Connection], T]) -> T:
        """Run `op` on the reading connection, again once damaged rows are set aside. Raises Unavailable."""
        for rows in (None, ()):  # first those that it met, then all that are damaged
            try:
                return await self._reading(self._read, op)
            except Damaged as found:
                met = found.rows if rows is None else rows
                await self.write(lambda db, met=met: damage.recheck(db, met))  # type: ignore[misc]
        return await self._reading(self._read_at_last, op)

    def _reading(self, read: Callable[[Any], T], op: Any) -> asyncio.Future[T]:
        try:
            return self._loop.run_in_executor(self._reader_pool, read, op)
        except RuntimeError as error:  # `close` was called
            raise Unavailable("the guard stops") from error

    def _read_at_last(self, op: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._read(op)
        except Damaged as error:
            raise Unreadable(f"{self.path}: {error}") from None

    def _read(self, op: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return op(self._reader)
        except sqlite3.Error as error:
            if damage.undecodable(error):
                raise Damaged from None
            self._suspect(error)
            raise Unavailable(f"{self.path}: {self.trouble or error}") from error

    # -- the writing thread

    def _work(self) -> None:
        again: list[Write[object]] = []
        stop = False
        while not (stop and not again):
            batch, stop = self._take(again, stop)
            again = []
            done = self._try_commit(batch)
            failed = isinstance(done, Exception)
            if isinstance(done, Exception):
                # Tried alone, each write fails only for its own reasons.
                failure, done = done, []
                for write in batch:
                    lone = len(batch) == 1 or isinstance(failure, Locked)
                    alone = failure if lone else self._try_commit([write])
                    if not isinstance(alone, Exception):
                        done += alone
                    elif isinstance(alone, Faulty | Unreadable):
                        self._note_fault(str(alone))
                        done.append((write, None, Faulty(str(alone)) if write.keep else alone))
                    elif write.keep:
                        again.append(write)
                    else:
                        done.append((write, None, alone))
            self._resolve(done)
            if batch and self.trouble is not None and not failed:
                failed = isinstance(self._try_commit([]), Exception)
            if not failed:
                self._set_trouble(None)
            if again and stop:
                log.error("%d writes to %s are lost: the guard stops", len(again), self.path)
                break
            if again:
                time.sleep(RETRY_S)
        self._db.close()

    def _take(self, again: list[Write[object]], stop: bool) -> tuple[list[Write[object]], bool]:
        batch = list(again)
        if self._history.due:
            batch.append(Write(self._history.trim, self._loop.create_future(), durable=False, keep=True))
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

    def _try_commit(self, batch: list[Write[object]]) -> list[Done] | Unavailable | Faulty:
        if not batch and self.trouble is None:
            return []
        wanted = "FULL" if not batch or any(write.durable for write in batch) else "NORMAL"
        try:
            if wanted != self._synchronous:
                self._db.execute(f"PRAGMA synchronous={wanted}")
                self._synchronous = wanted
            return self._commit_without_damage(batch)
        except Unavailable as error:
            log.error("%s", error)
            return error
        except Exception as error:
            with suppress(sqlite3.Error):
                self._db.rollback()
            return self._failure(error)

    def _failure(self, error: Exception) -> Unavailable | Faulty:
        """What the error of a commit means for its writes; logs what is the file's, not theirs."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in NO_WRITES:
            self._set_trouble(explained(error, self.path))
        elif isinstance(error, sqlite3.Error) and (code in PASSING or is_damage(error)):
            log.error("cannot write to %s: %s", self.path, error)
            self._suspect(error)
        else:
            return Faulty(named(error))
        return (Locked if code == sqlite3.SQLITE_BUSY else Unavailable)(f"{self.path}: {error}")

    def _commit_without_damage(self, batch: list[Write[object]]) -> list[Done]:
        """Commit the writes, again if damaged rows had to be set aside. Raises sqlite3.Error, Unavailable."""
        for rows in (None, ()):
            try:
                return self._commit(batch)
            except (Damaged, sqlite3.OperationalError) as error:
                if not isinstance(error, Damaged) and not damage.undecodable(error):
                    raise
                self._db.rollback()
                met = error.rows if isinstance(error, Damaged) and rows is None else ()
                self._set_aside(met or damage.find(self._db))
        try:
            return self._commit(batch)
        except Damaged as error:
            self._db.rollback()
            raise Unreadable(f"{self.path}: {error}") from None

    def _set_aside(self, rows: Sequence[Row]) -> None:
        try:
            gone = damage.set_aside(self._db, self.path, rows)
        except OSError as error:
            raise Unavailable(f"{self.path}: damaged rows cannot be set aside: {error}") from None
        self.notice = asides.notice(self.path)
        ids = tuple(key for table, key in gone if table == "deliveries" and isinstance(key, int))
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.rows_set_aside.send, RowsSetAside(ids))

    def _commit(self, batch: list[Write[object]]) -> list[Done]:
        """Commit the writes; without any, test for room: a full card still takes what fits its last block."""
        if not batch:
            self._db.execute(
                "REPLACE INTO settings (name, value) VALUES ('room', ?)", (json.dumps(" " * ROOM),)
            )
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
                    if write.keep:
                        write.future.exception()  # the journal has it, and not each of these is awaited
                else:
                    write.future.set_result(value)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(resolve)

    def _note_fault(self, bug: str) -> None:
        """Report a bug once, however many changes it costs."""
        if bug not in self.faults:
            log.error("a change is given up, its rows stay as they are stored: a bug in hostguard: %s", bug)
        self.faults[bug] = self.faults.get(bug, 0) + 1

    def _set_trouble(self, trouble: str | None) -> None:
        """Log a trouble once, however often a write is tried again."""
        before, self.trouble = self.trouble, trouble
        if trouble is not None and trouble != before:
            log.error("cannot write to %s: %s; trying again every %g s", self.path, trouble, RETRY_S)
        if trouble is None and before is not None:
            log.warning("%s accepts writes again", self.path)
        if (trouble is None) != (before is None):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.trouble_changed.send, QueueTrouble(trouble))

    def _suspect(self, error: sqlite3.Error) -> None:
        """Report damage. Not on the event loop: this touches the disk.

        While the card fails nothing is reported: SQLite takes a file that it cannot read for malformed, too.
        """
        if self.trouble is None and is_damage(error):
            with suppress(OSError):  # a card that fails is read-only soon
                suspect(self.path)
            fact = QueueDamaged(f"{self.path} is damaged: {error}")
            self._loop.call_soon_threadsafe(self.damaged.send, fact)


def _nothing(_: sqlite3.Connection) -> Any:
    """In place of a write that was withdrawn."""


def once_stored(future: asyncio.Future[T], then: Callable[[T], None]) -> None:
    """Call `then` with the result of a write once it is stored, which may be never."""

    def done(future: asyncio.Future[T]) -> None:
        if not future.cancelled() and future.exception() is None:
            then(future.result())

    future.add_done_callback(done)


def _open(path: Path) -> tuple[sqlite3.Connection, str | None]:
    try:
        return open_database(path)
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(f"cannot open {path}: {explained(error, path)}") from error
