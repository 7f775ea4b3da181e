"""Damaged content of the queue's file: the one place that says what is damaged, and sets it aside.

A row whose checksum does not match is moved into a file beside the database, a line of JSON each; a file
whose structure is damaged is moved aside whole. Either is reported until a person has moved it away.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from hostguard.core.model import Kind, Schedule, State
from hostguard.store import asides, sums
from hostguard.store.schema import WrongSchema
from hostguard.store.sums import Damaged, Row

log = logging.getLogger(__name__)

IDS_SHOWN = 10
SOME = 500  # rows that are checked at once while the guard works
LEAP = 1_000  # an id that is so far above the others is no id
FLOOR = "ids.above"  # the setting that keeps the id of a row set aside from being given again

# Python's, about a text that is not UTF-8: read by it, or given to the function row_sum.
_UNDECODABLE = ("Could not decode", "user-defined function raised exception")
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
# Lines of integrity_check about rows and indexes, not about the structure of the file.
_OF_ROWS = re.compile(r"(NULL|NUMERIC|INTEGER|REAL|TEXT|BLOB|non-\w+) value in |CHECK constraint failed in ")
_OF_INDEX = re.compile(
    r"row \d+ missing from index |wrong # of entries in index |non-unique entry in index "
    r"|row \d+ of index \w+ |rowid not at end-of-record for row |values of row "
)


def is_damage(error: sqlite3.Error) -> bool:
    """True if SQLite takes the file for malformed."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in _DAMAGE or isinstance(error, WrongSchema) or str(error).startswith("malformed")


def undecodable(error: Exception) -> bool:
    """True if this is about a text that is not UTF-8: its message may have the text."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith(_UNDECODABLE)


def check(db: sqlite3.Connection) -> bool:
    """Check the structure of the file. True if only its indexes are wrong. Raises sqlite3.Error."""
    lines = [str(row[0]) for row in db.execute("PRAGMA main.integrity_check(100)")]
    wrong = [line for line in lines if line != "ok" and not _OF_ROWS.match(line)]
    if structural := [line for line in wrong if not _OF_INDEX.match(line)]:
        raise sqlite3.DatabaseError(f"malformed: {structural[0]}")
    return bool(wrong)


def reindex(db: sqlite3.Connection) -> None:
    """Make the indexes anew. Raises sqlite3.Error."""
    try:
        db.execute("REINDEX")
    except sqlite3.IntegrityError as error:  # two rows have the same name or key by now
        raise sqlite3.DatabaseError(f"malformed: {error}") from None


def find(db: sqlite3.Connection) -> list[Row]:
    """The damaged rows of a file with checksums. Reads the whole file."""
    bad: list[Row] = [(table, rowid) for table in sums.tables(db) for rowid in _wrong(db, table)]
    # Rows without a message, and messages without a row: it is lost, or it names another message.
    bare = "SELECT id FROM deliveries WHERE payload NOT IN (SELECT id FROM payloads)"
    lost = "SELECT id FROM payloads EXCEPT SELECT payload FROM deliveries"
    for table, sql in (("deliveries", bare), ("payloads", lost)):
        bad += [(table, id_) for (id_,) in db.execute(sql)]
    return list(dict.fromkeys(bad))


def check_some(db: sqlite3.Connection, table: str, after: int) -> int | None:
    """Check the next SOME rows of a table, in order of their rowid. Raises Damaged.

    Returns after which rowid to go on; None at the end of the table.
    """
    sql = f"SELECT rowid FROM main.{table} WHERE rowid > ? ORDER BY rowid LIMIT 1 OFFSET ?"  # noqa: S608
    last = db.execute(sql, (after, SOME - 1)).fetchone()
    upto = (1 << 63) - 1 if last is None else last[0]
    if bad := _wrong(db, table, "WHERE rowid > ? AND rowid <= ?", after, upto):
        raise Damaged(*((table, rowid) for rowid in bad))
    return None if last is None else upto


def _wrong(db: sqlite3.Connection, table: str, where: str = "", *values: int) -> list[int]:
    """The rowids of rows whose checksum is wrong."""
    sql = f"SELECT rowid, * FROM main.{table} {where}"  # noqa: S608
    try:  # as most are, and twice as fast
        return [row[0] for row in db.execute(sql, values) if sums.row_sum(*row[1:-1]) != row[-1]]
    except sqlite3.OperationalError as error:
        if not undecodable(error):
            raise
    rows = _rows(db, table, where, *values)
    return [row[0] for row in rows if sums.row_sum(*row[1:-1]) != row[-1]]


def recheck(db: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Raise Damaged if one of these rows still is; without any, if any row is."""
    bad = [] if rows else find(db)
    for table, key in rows:
        values = next(_rows(db, table, "WHERE rowid = ?", key), None)
        if values is None:
            continue
        fine = sums.row_sum(*values[1:-1]) == values[-1]
        if not fine or (table == "deliveries" and not _has_payload(db, key)):
            bad.append((table, key))
    if bad:
        raise Damaged(*bad)


def _has_payload(db: sqlite3.Connection, id_: int | str) -> bool:
    sql = "SELECT EXISTS (SELECT 1 FROM payloads p JOIN deliveries d ON p.id = d.payload WHERE d.id = ?)"
    return bool(db.execute(sql, (id_,)).fetchone()[0])


def find_old(db: sqlite3.Connection) -> list[Row]:
    """The rows of an earlier schema, which has no checksums, that the checked one cannot have."""
    names = {name for (name,) in db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")}
    bad: list[Row] = []
    for table in sorted(names & _OLD.keys()):
        columns = [row[1:4] for row in db.execute(f"PRAGMA main.table_info({table})")]
        for key, *values in _rows(db, table):
            row = dict(zip((name for name, _, _ in columns), values, strict=True))
            fits = all(_fits(row[name], kind, bool(needed)) for name, kind, needed in columns)
            if not fits or not _OLD[table](row):
                bad.append((table, key))
    return bad


def _fits(value: Any, kind: str, needed: bool) -> bool:
    if value is None:
        return not needed
    if isinstance(value, str):
        return kind == "TEXT" and not any("\ud800" <= char <= "\udfff" for char in value)
    return type(value) is {"INTEGER": int, "BLOB": bytes}.get(kind)


def _is_json(text: Any) -> bool:
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def _is_setting(row: dict[str, Any]) -> bool:
    """True if it has the keys without which every start would fail."""
    if not _is_json(row["value"]):
        return False
    value = json.loads(row["value"])
    for prefix, (needed, known) in _SETTINGS.items():
        if row["name"].startswith(prefix):
            return isinstance(value, dict) and needed <= value.keys() and (not known or value.keys() <= known)
    return True


# The keys that a setting needs, and those that it may have if others are a fault.
_SETTINGS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "limit.": (frozenset({"value", "boot"}), frozenset()),
    "sleep.mind.": (frozenset({"since", "until"}), frozenset()),
    "fired.": (frozenset({"seen", "last", "of"}), frozenset()),
    "schedule.": (frozenset({"mind"}), frozenset(item.name for item in fields(Schedule))),
}
_STATES, _KINDS = frozenset(map(str, State)), frozenset(map(str, Kind))
# What the constraints of the checked schema demand of rows.
_OLD: dict[str, Callable[[dict[str, Any]], bool]] = {
    "deliveries": lambda row: (
        row["state"] in _STATES and row["kind"] in _KINDS and row["attempts"] >= 0 and row["id"] > 0
        and _is_json(row["result"])
    ),
    "payloads": lambda row: row["id"] > 0 and _is_json(row["body"]),
    "settings": _is_setting,
    "points": lambda row: 0 <= row["level"] <= 2,
    "incidents": lambda row: 0 <= row["level"] <= 2,
}  # fmt: skip


def set_aside(db: sqlite3.Connection, path: Path, rows: Sequence[Row]) -> list[Row]:
    """Move these rows into a file, and the deliveries of these payloads. Raises sqlite3.Error, OSError.

    Returns all that were moved.
    """
    taken = dict.fromkeys(rows)
    for table, key in rows:
        if table == "payloads":
            found = db.execute("SELECT id FROM deliveries WHERE payload = ?", (key,))
            taken |= dict.fromkeys(("deliveries", id_) for (id_,) in found)
    gone = {row: record for row in sorted(taken, key=str) if (record := _record(db, *row)) is not None}
    if not gone:
        return []
    file = asides.keep_rows(path, gone.values())
    db.execute("BEGIN IMMEDIATE")
    try:
        # Or SQLite misses the entry of a damaged row in an index, and takes the whole file for malformed.
        db.execute("PRAGMA writable_schema=ON")
        for table, key in gone:
            where, value = _where(key)
            db.execute(f"DELETE FROM {table} {where}", (value,))  # noqa: S608
        if "keys" in sums.tables(db):  # of rows that are gone
            db.execute(
                "DELETE FROM keys WHERE left_at IS NULL AND delivery NOT IN (SELECT id FROM deliveries)"
            )
        # Not those of other rows of a fan-out.
        used = "SELECT 1 FROM deliveries WHERE payload = ?1"
        unused = f"DELETE FROM payloads WHERE id = ?1 AND NOT EXISTS ({used})"  # noqa: S608
        messages = {record["content"].get("payload") for record in gone.values()}
        db.executemany(unused, [(id_,) for id_ in messages if isinstance(id_, int)])
        db.execute("PRAGMA writable_schema=OFF")
        reindex(db)
        _raise_floor(db, [key for table, key in gone if table == "deliveries" and isinstance(key, int)])
        db.execute("COMMIT")
    finally:
        db.execute("PRAGMA writable_schema=OFF")
        if db.in_transaction:
            db.rollback()
    named = ", ".join(f"{table} {key}" for table, key in list(gone)[:IDS_SHOWN])
    log.critical("%s: %d damaged rows were moved into %s: %s", path, len(gone), file, named)
    return list(gone)


def _raise_floor(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    """An id must not be given again, even if it was that of the newest row."""
    if ids:
        top = db.execute("SELECT coalesce(max(id), 0) FROM deliveries").fetchone()[0]
        above = max([top, *(id_ for id_ in ids if id_ <= top + LEAP)]) + len(ids)
        db.execute("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", (FLOOR, str(above)))


def _record(db: sqlite3.Connection, table: str, key: int | str) -> dict[str, Any] | None:
    """A row as it is kept for a person, a delivery with its message; None if there is none."""
    names = [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
    values = next(_rows(db, table, *_where(key)), None)
    if values is None:
        return None
    row = {name: _plain(value) for name, value in zip(names, values[1:], strict=True)}
    record = {"table": table, "row": key, "content": row}
    if table == "deliveries":
        body = next(_rows(db, "payloads", "WHERE id = ?", row["payload"]), (None, None, None))[2]
        record["message"] = _plain(body)
    return record


def _plain(value: Any) -> Any:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _key(db: sqlite3.Connection, table: str) -> str:
    """How a row is named: settings of earlier schemas have no rowid."""
    return "name" if table == "settings" and "settings" not in sums.tables(db) else "rowid"


def _where(key: int | str) -> tuple[str, int | bytes]:
    """How the row of this name is found. A name that is not UTF-8 is no text that SQLite takes."""
    if isinstance(key, int):
        return "WHERE rowid = ?", key
    return "WHERE CAST(name AS BLOB) = ?", key.encode(errors="surrogateescape")


def _rows(db: sqlite3.Connection, table: str, where: str = "", *values: Any) -> Iterator[tuple[Any, ...]]:
    """(key, every column) of each row. Bytes that are no UTF-8 become surrogates."""
    db.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    try:
        sql = f"SELECT {_key(db, table)}, * FROM main.{table} {where}"  # noqa: S608
        yield from db.execute(sql, values)
    finally:
        db.text_factory = str
