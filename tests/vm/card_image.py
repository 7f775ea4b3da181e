"""What a cut leaves on a card, looked at from outside of the machine, as another host would find it."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

PARTITION = 8192 * 512  # bytes before the first partition, as `image` makes it
DATABASE = "/state/queue.db"
# Of e2fsck -p: the journal's replay, and the end of what was being removed or truncated. All else is damage.
REPLAYED = re.compile(
    r"card: (recovering journal|clean, .*|Clearing orphaned inode .*|Truncating orphaned inode .*)"
)


class Damaged(AssertionError):
    """The file system or the database does not come back whole."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of the guard's database."""

    id: int
    mind: str
    state: str
    key: str | None
    attempts: int


def stored(card: Path) -> dict[int, Stored]:
    """The guard's rows on a raw image of a card, by id. The image is not changed. Raises Damaged, sqlite3.Error."""
    with tempfile.TemporaryDirectory(prefix="hostguard-card-") as folder:
        partition = f"{folder}/partition"
        _cut_out(card, partition)
        _replay(partition)
        for suffix in ("", "-wal"):
            told = _run("debugfs", "-R", f"dump {DATABASE}{suffix} {folder}/db{suffix}", partition)[1]
            if "not found" in told and not suffix:
                raise Damaged(told)
        with closing(sqlite3.connect(f"{folder}/db")) as db:
            found = db.execute("PRAGMA integrity_check").fetchall()
            if found != [("ok",)]:
                raise Damaged(f"{DATABASE}: {found}")
            rows = db.execute("SELECT id, mind, state, key, attempts FROM deliveries").fetchall()
    return {row[0]: Stored(*row) for row in rows}


def _cut_out(card: Path, partition: str) -> None:
    """Copy what is no hole: e2fsck can begin behind an offset, but not begin again after a replay."""
    with card.open("rb") as source, open(partition, "wb") as out:
        size, at = card.stat().st_size, PARTITION
        out.truncate(size - PARTITION)
        while at < size:
            try:
                at = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                return
            end = os.lseek(source.fileno(), at, os.SEEK_HOLE)
            while at < end:
                at += os.copy_file_range(source.fileno(), out.fileno(), end - at, at, at - PARTITION)


def _replay(partition: str) -> None:
    """Replay the journal; no other repair may be needed."""
    code, told = _run("e2fsck", "-p", partition)
    odd = [line for line in told.splitlines() if not REPLAYED.fullmatch(line)]
    if code not in (0, 1) or odd:
        raise Damaged(told)
    code, told = _run("e2fsck", "-f", "-n", partition)
    if code:
        raise Damaged(told)


def _run(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout
