"""The checksum of each row: what a card changed is found before anybody acts on it.

It is the last column, `sum`, of each table that has one. SQLite itself has checksums only in its WAL.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from typing import Any

SUM = "sum"
Row = tuple[str, int | str]  # a table, and the rowid or name of one of its rows


class Damaged(Exception):
    """Rows whose content is not what was stored; none: it is not known which."""

    def __init__(self, *rows: Row) -> None:
        super().__init__(", ".join(f"{table} {rowid}" for table, rowid in rows) or "rows that cannot be read")
        self.rows = rows


def row_sum(*values: Any) -> int:
    """The checksum of a row's other values, in the order of the columns: 32 bits, signed."""
    # ascii() is the same in all versions of Python, which repr() is not: that depends on those of Unicode.
    plain = [(zlib.crc32(value),) if isinstance(value, bytes) else value for value in values]
    return zlib.crc32(ascii(plain).encode()) - (1 << 31)


def checked(table: str, rowid: int, values: Sequence[Any]) -> Sequence[Any]:
    """The values of a row that ends with its checksum, without that. Raises Damaged."""
    if row_sum(*values[:-1]) != values[-1]:
        raise Damaged((table, rowid))
    return values[:-1]


def tables(db: sqlite3.Connection) -> dict[str, list[str]]:
    """The tables that have checksums, and their other columns."""
    names = [name for (name,) in db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
    columns = {name: [row[1] for row in db.execute(f'PRAGMA main.table_info("{name}")')] for name in names}
    return {name: found[:-1] for name, found in columns.items() if found[-1:] == [SUM]}


def register(db: sqlite3.Connection) -> None:
    """Make the SQL function row_sum, which the migrations use."""
    db.create_function("row_sum", -1, row_sum, deterministic=True)


def maintain(db: sqlite3.Connection) -> None:
    """Set the checksum of each row that this connection writes; a damaged row keeps its wrong one.

    Temporary triggers are this connection's alone. What others write has no valid checksum.
    """
    register(db)
    for table, columns in tables(db).items():
        new, old = (", ".join(f"{row}.{column}" for column in columns) for row in ("new", "old"))
        whole = f" AND old.sum = row_sum({old})"  # or a change would make what is damaged look whole
        updated = f"UPDATE OF {', '.join(columns)}"
        for name, when, also in (("insert", "INSERT", ""), ("update", updated, whole)):
            db.execute(
                f"CREATE TEMP TRIGGER sum_{table}_{name} AFTER {when} ON main.{table}"  # noqa: S608
                f" BEGIN UPDATE {table} SET sum = row_sum({new}) WHERE rowid = new.rowid{also}; END"
            )
