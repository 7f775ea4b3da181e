"""Opening the queue's file: what is damage, what is not, and what a person is told."""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import closing
from types import SimpleNamespace

import pytest

from hostguard.store import connection
from hostguard.store.connection import ROOM, explained, open_database, suspect_mark
from hostguard.store.damage import is_damage

FREE_PAGES = 36  # the offset of their number in the header: https://sqlite.org/fileformat.html


def made(path):
    db, notice = open_database(path)
    db.close()
    assert notice is None


def spoiled(path):
    """The header counts free pages that are not there: only a check finds it."""
    made(path)
    with path.open("r+b") as file:
        file.seek(FREE_PAGES)
        file.write(struct.pack(">I", 5))


def test_a_check_finds_damage_and_moves_the_file_aside(tmp_path, caplog):
    path = tmp_path / "queue.db"
    spoiled(path)
    db, notice = open_database(path)
    with closing(db):
        (aside,) = tmp_path.glob("queue.db.damaged-*Z")
        assert str(aside) in notice
        assert "is damaged: malformed: " in caplog.text
        assert db.execute("SELECT count(*) FROM deliveries").fetchone() == (0,)
    db, notice = open_database(path)
    db.close()
    assert str(aside) in notice, "until a person removes it"
    aside.unlink()
    made(path)


def test_a_large_file_is_checked_only_if_it_is_suspect(tmp_path, monkeypatch):
    path = tmp_path / "queue.db"
    spoiled(path)
    monkeypatch.setattr(connection, "CHECK_MAX", path.stat().st_size - 1)
    made(path)
    suspect_mark(path).touch()
    db, notice = open_database(path)
    db.close()
    assert notice is not None
    assert not suspect_mark(path).exists()


def test_a_file_that_is_locked_is_not_damaged(tmp_path, monkeypatch):
    path = tmp_path / "queue.db"
    made(path)
    monkeypatch.setattr(connection, "BUSY_MS", 10)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            open_database(path)
    assert [file.name for file in tmp_path.iterdir() if "damaged" in file.name] == []


def test_what_is_damage():
    assert is_damage(sqlite3.DatabaseError("malformed: x"))
    assert not is_damage(sqlite3.DatabaseError("x malformed"))
    for code, damage in (
        (sqlite3.SQLITE_CORRUPT, True),
        (sqlite3.SQLITE_NOTADB, True),
        (sqlite3.SQLITE_FULL, False),
    ):
        error = sqlite3.DatabaseError("x")
        error.sqlite_errorcode = code | 1 << 8  # an extended code
        assert is_damage(error) is damage


@pytest.mark.parametrize(
    ("flags", "free", "why"),
    [
        (0, ROOM, "x"),
        (0, ROOM - 1, "x (its file system is full)"),
        (os.ST_RDONLY, 0, "x (its file system is read-only)"),
        (os.ST_NOSUID, ROOM, "x"),
    ],
)
def test_why_a_file_cannot_be_written(tmp_path, monkeypatch, flags, free, why):
    found = SimpleNamespace(f_flag=flags, f_bavail=free, f_frsize=1)
    monkeypatch.setattr(connection.os, "statvfs", lambda path: found)
    assert explained(ValueError("x"), tmp_path / "queue.db") == why


def test_a_file_system_that_does_not_answer_explains_nothing(tmp_path):
    assert explained(ValueError("x"), tmp_path / "none" / "queue.db") == "x"
