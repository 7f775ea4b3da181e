"""The schema of the queue's file: which one it has, and the steps to the newest."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hostguard.store import sums

log = logging.getLogger(__name__)

SCHEMA = 7
CHECKED = 4  # from this schema on, rows have checksums
NEAR = 4  # bytes in which a damaged definition may differ from the right one

# What is in a schema, as it is stored: type, name, table and SQL of each object.
Item = tuple[bytes | None, ...]
_ITEMS = "SELECT CAST(type AS BLOB), CAST(name AS BLOB), CAST(tbl_name AS BLOB), CAST(sql AS BLOB)"


class SchemaTooNew(Exception):
    """The file was written by a newer hostguard."""


class WrongSchema(sqlite3.DatabaseError):
    """The file's tables are not those of any hostguard."""


def repair(db: sqlite3.Connection) -> bool:
    """Set right definitions of the newest schema that differ from it in a few bytes. Raises sqlite3.Error.

    True if there were any: open the file again. The rows are left to their checksums.
    """
    db.execute("PRAGMA writable_schema=ON")  # or SQLite reads nothing of a schema with an error
    try:
        found = db.execute(f"{_ITEMS}, rowid FROM main.sqlite_master").fetchall()
        spare = [row for row in found if row[:-1] not in _expected(SCHEMA)]
        missing = _expected(SCHEMA) - {row[:-1] for row in found}
        mended = [(item, rowid) for item in missing for *row, rowid in spare if _near(item, row)]
        if not missing or len(mended) != len(missing):
            return False
        db.execute("BEGIN IMMEDIATE")
        for item, rowid in mended:
            texts = [None if part is None else part.decode() for part in item]
            sql = "UPDATE main.sqlite_master SET type = ?, name = ?, tbl_name = ?, sql = ? WHERE rowid = ?"
            db.execute(sql, (*texts, rowid))
            log.critical("the definition of %s was damaged, and is set right", texts[1])
        db.execute("COMMIT")
        return True
    finally:
        db.execute("PRAGMA writable_schema=OFF")


def _near(item: Item, row: Sequence[Any]) -> bool:
    one, other = (b"\0".join(part or b"" for part in parts) for parts in (item, row))
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) <= NEAR


def version(db: sqlite3.Connection, path: Path) -> int:
    """The version of the file's schema, 0 for a new one. Raises SchemaTooNew, WrongSchema.

    The tables decide, not the number beside them: that is in the file's header, which may be damaged, too.
    """
    stated = int(db.execute("PRAGMA user_version").fetchone()[0])
    if stated == 0 and not _items(db):
        return 0
    layout = _layout(db)
    newest = _expected(SCHEMA) <= _items(db)
    for known in range(SCHEMA, 0, -1):
        want = _expected_layout(known)
        same = want == layout if stated > SCHEMA else want <= layout
        if same and (known < SCHEMA or newest):
            if known != stated:
                log.critical("%s: its schema is %d, but its header says %d", path, known, stated)
                db.execute(f"PRAGMA user_version={known}")
            return known
    if stated > SCHEMA:
        raise SchemaTooNew(
            f"{path} was written by a newer hostguard (schema {stated}, this one knows {SCHEMA}): "
            f"upgrade hostguard, or move the file away to begin with an empty queue"
        )
    raise WrongSchema(f"its tables are not those of schema {stated}")


def migrate(db: sqlite3.Connection, begun: int, upto: int = SCHEMA) -> None:
    """Apply the steps after `begun`, one transaction each. Raises sqlite3.Error."""
    sums.register(db)
    steps = {
        int(f.name[:4]): f for f in files("hostguard.store.migrations").iterdir() if f.name[:4].isdigit()
    }
    for step in range(begun + 1, upto + 1):
        try:
            db.executescript(f"BEGIN; {steps[step].read_text()} PRAGMA user_version={step}; COMMIT;")
        except sqlite3.Error:
            if db.in_transaction:
                db.rollback()
            raise


def _items(db: sqlite3.Connection) -> frozenset[Item]:
    return frozenset(db.execute(f"{_ITEMS} FROM main.sqlite_master"))


def _layout(db: sqlite3.Connection) -> frozenset[tuple[Any, ...]]:
    """The names of tables, columns and indexes: ALTER TABLE's SQL depends on SQLite's version."""
    return frozenset(
        (kind, name, *(row[1] for row in db.execute(f'PRAGMA main.table_info("{name}")')))
        for kind, name in db.execute("SELECT type, name FROM main.sqlite_master").fetchall()
    )


@cache
def _expected(known: int) -> frozenset[Item]:
    with closing(_memory(known)) as db:
        return _items(db)


@cache
def _expected_layout(known: int) -> frozenset[tuple[Any, ...]]:
    with closing(_memory(known)) as db:
        return _layout(db)


def _memory(known: int) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db, 0, known)
    return db
