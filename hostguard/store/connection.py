"""Opens the queue's file: checks and migrates it, and sets aside what is damaged. Blocks."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from hostguard.store import asides, damage, schema, sums, wal
from hostguard.store.damage import is_damage

log = logging.getLogger(__name__)

# For those who are handed a connection: only this package and *_rows.py import sqlite3.
Connection = sqlite3.Connection

# A check reads the whole file: 16 MiB take about a second from an SD card (10 MB/s, class A1).
CHECK_MAX = 16 << 20
# Bytes free, below which the card counts as full: SQLite needs this much to open a file.
ROOM = 64 << 10
# The content of a suspect's mark: a check found nothing, and damage was met again nevertheless.
CHECKED, AGAIN = "checked", "again"
BUSY_MS = 2000  # another process (sqlite3 by hand) may hold the file this long


def suspect_mark(path: Path) -> Path:
    """The file that makes the next start check the whole queue."""
    return path.with_name(path.name + ".suspect")


def suspect(path: Path) -> None:
    """Mark the queue for a check: damage was met. Raises OSError."""
    mark = suspect_mark(path)
    mark.write_text(AGAIN if mark.exists() else "")


def open_database(path: Path) -> tuple[sqlite3.Connection, str | None]:
    """(connection, notice). Raises SchemaTooNew, sqlite3.Error, OSError; moves a damaged file aside.

    The notice is renewed by asides.notice, once a person has moved away what was set aside.
    """
    left = wal.mend(path)
    try:
        db = _open(path, left)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        log.critical("%s is damaged: %s; it is moved aside as %s", path, error, asides.move_file(path))
        suspect_mark(path).unlink(missing_ok=True)
        db = _open(path, False)
    return db, asides.notice(path)


def _open(path: Path, has_wal: bool) -> sqlite3.Connection:
    mark = suspect_mark(path)
    state = mark.read_text(errors="replace") if mark.exists() else CHECKED
    if state == AGAIN:
        raise sqlite3.DatabaseError("malformed, though a check found nothing")
    whole = state != CHECKED or (path.exists() and path.stat().st_size <= CHECK_MAX)
    db = connect(path)
    try:
        if schema.repair(db):
            db.close()
            db = connect(path)
        mended = whole and damage.check(db)
        version = schema.version(db, path)
        if whole and 0 < version < schema.CHECKED and (found := damage.find_old(db)):
            damage.set_aside(db, path, found)
        schema.migrate(db, version)
        db.execute("PRAGMA journal_mode=WAL")
        sums.maintain(db)
        if mended:
            log.critical("%s: its indexes were damaged, and are made anew", path)
        if whole and (found := damage.find(db)):
            mended = bool(damage.set_aside(db, path, found))
        elif mended:
            damage.reindex(db)
        if mended and damage.check(db):
            raise sqlite3.DatabaseError("malformed: its indexes cannot be made anew")
        if has_wal:  # what is behind its last change must not be taken for damage later
            with suppress(sqlite3.OperationalError):  # the card is full
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if state == CHECKED or mended:
            mark.unlink(missing_ok=True)
        else:
            mark.write_text(CHECKED)
    except BaseException:
        db.close()
        raise
    return db


def connect(path: Path) -> sqlite3.Connection:
    """Another connection to the file, which is created if need be. Raises sqlite3.Error, OSError."""
    # To close a file ends this process's locks on it (fcntl(2)). Without them another process that closes the
    # database removes the WAL, and what is written after that is lost with this process.
    if not path.exists():
        # SQLite gives -wal the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
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


def explained(error: Exception, path: Path) -> str:
    """SQLite's message, and the probable reason."""
    with suppress(OSError):
        disk = os.statvfs(path.parent)
        if disk.f_flag & os.ST_RDONLY:
            return f"{error} (its file system is read-only)"
        if disk.f_bavail * disk.f_frsize < ROOM:
            return f"{error} (its file system is full)"
    return str(error)
