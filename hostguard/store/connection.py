"""Opens the queue's file: checks and migrates it, and moves a damaged one aside. Blocks."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

log = logging.getLogger(__name__)

# For those who are handed a connection: only this package and *_rows.py import sqlite3.
Connection = sqlite3.Connection

SCHEMA = 3
# A check reads the whole file: 16 MiB take about a second from an SD card (10 MB/s, class A1).
CHECK_MAX = 16 << 20
# Bytes free, below which the card counts as full: SQLite needs this much to open a file.
ROOM = 64 << 10
BUSY_MS = 2000  # another process (sqlite3 by hand) may hold the file this long


class SchemaTooNew(Exception):
    """The file was written by a newer hostguard."""


def suspect_mark(path: Path) -> Path:
    """The file that makes the next start check the whole queue."""
    return path.with_name(path.name + ".suspect")


def open_database(path: Path) -> tuple[sqlite3.Connection, str | None]:
    """(connection, notice). Raises SchemaTooNew, sqlite3.Error, OSError; moves a damaged file aside.

    The notice stays until a person has removed the file that was moved aside.
    """
    try:
        db = _open(path)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        log.critical("%s is damaged: %s", path, error)
        _move_aside(path)
        db = _open(path)
    asides = sorted(path.parent.glob(f"{path.name}.damaged-*Z"))
    if not asides:
        return db, None
    return db, (
        f"the queue was damaged and is kept as {asides[-1]}; a new one was begun. What can be read of the"
        f" old one: sqlite3 {asides[-1]} .recover. Move it away to end this notice"
    )


def _open(path: Path) -> sqlite3.Connection:
    check = suspect_mark(path).exists() or (path.exists() and path.stat().st_size <= CHECK_MAX)
    db = connect(path)
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


def connect(path: Path) -> sqlite3.Connection:
    """Another connection to the file, which is created if need be. Raises sqlite3.Error, OSError."""
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
    """Apply the migrations that this file has not had, one transaction each. Raises SchemaTooNew."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise SchemaTooNew(
            f"{path} was written by a newer hostguard (schema {version}, this one knows {SCHEMA}): "
            f"upgrade hostguard, or move the file away to begin with an empty queue"
        )
    steps = {
        int(f.name[:4]): f for f in files("hostguard.store.migrations").iterdir() if f.name[:4].isdigit()
    }
    for step in range(version + 1, upto + 1):
        db.executescript(f"BEGIN; {steps[step].read_text()} PRAGMA user_version={step}; COMMIT;")


def explained(error: Exception, path: Path) -> str:
    """SQLite's message, and the probable reason."""
    with suppress(OSError):
        disk = os.statvfs(path.parent)
        if disk.f_flag & os.ST_RDONLY:
            return f"{error} (its file system is read-only)"
        if disk.f_bavail * disk.f_frsize < ROOM:
            return f"{error} (its file system is full)"
    return str(error)


def is_damage(error: sqlite3.Error) -> bool:
    """True if SQLite takes the file for malformed."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error).startswith("malformed")


def _move_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    suspect_mark(path).unlink(missing_ok=True)
