"""What was set aside of a damaged queue: files beside it, and what a person is told of them. Blocks.

They are never deleted. What is said of them ends once a person has moved them away.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

SHOWN = 8  # rows that are named
NAME_MAX = 60  # characters of a name that may be damaged, too


class Aside(StrEnum):
    """What is kept: how the file's name ends after `queue.db.damaged-<time>Z`."""

    FILE = ""  # the whole queue; a new one was begun
    ROWS = ".rows"  # damaged rows, JSON, one a line
    UNREPLAYED = ".unreplayed"  # a copy of the queue and its WAL, of which not all could be replayed
    REPAIRED = ".repaired"  # such a copy; the damage could be repaired


_TEXTS = {
    Aside.FILE: (
        "the queue was damaged and is kept as {file}; a new one was begun. What can be read of the old one:"
        " sqlite3 {file} .recover. To end this notice, move it away and run hostguard reload"
    ),
    Aside.ROWS: (
        "damage was found in the queue and taken out: {rows}. It is in {file}, a line of JSON for each row,"
        " with its message. Send or set again what is needed. To end this notice, move it away and run"
        " hostguard reload"
    ),
    Aside.UNREPLAYED: (
        "the newest changes of the queue, in its WAL, were damaged: messages that were accepted last may be"
        " lost, and others may run again. {file} and {file}-wal are a copy of both, as found. To see the"
        " messages: strings {file}-wal. To end this notice, move both away and run hostguard reload"
    ),
    Aside.REPAIRED: (
        "the newest changes of the queue, in its WAL, were damaged, and repaired by their checksums: nothing"
        " is lost. {file} and {file}-wal are a copy of both, as found. Check the disk. To end this notice,"
        " move both away and run hostguard reload"
    ),
}


def notice(path: Path) -> str | None:
    """What a person is told of the files beside the queue `path`; None if there are none."""
    texts = []
    for kind, text in _TEXTS.items():
        found = sorted(path.parent.glob(f"{path.name}.damaged-*Z{kind}"))
        if found:
            more = f" (and {len(found) - 1} earlier ones)" if len(found) > 1 else ""
            texts.append(text.format(file=f"{found[-1]}", rows=_named(found[-1], kind)) + more)
    return "; ".join(texts) or None


def _named(file: Path, kind: Aside) -> str:
    if kind is not Aside.ROWS:
        return ""
    rows = []
    with suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):  # the disk is a bad one
                row = json.loads(line)
                name = row["content"]["name"] if row["table"] == "settings" else row["row"]
                rows.append(f"{row['table']} {name}".encode(errors="replace").decode()[:NAME_MAX])
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    shown = ", ".join(rows[:SHOWN]) + (", ..." if len(rows) > SHOWN else "")
    return f"{count} ({shown})" if rows else "rows"


def keep_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write damaged rows into a new file, durably. Raises OSError."""
    file = _new(path, Aside.ROWS)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(fd)
        _sync_folder(file)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return file


def move_file(path: Path) -> Path:
    """Move the queue's file aside, with what belongs to it. Raises OSError."""
    aside = _new(path, Aside.FILE)
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def copy(path: Path, kind: Aside) -> Path:
    """Copy the queue's file and its WAL, durably. Raises OSError."""
    aside = _new(path, kind)
    sources = [path.with_name(f"{path.name}-wal"), path]
    made = [aside.with_name(f"{aside.name}-wal"), aside]  # the one that counts as the copy comes last
    try:
        for source, target in zip(sources, made, strict=True):
            shutil.copyfile(source, target)
            target.chmod(0o600)
            with target.open("rb") as file:
                os.fsync(file.fileno())
        _sync_folder(aside)
    except OSError:
        for target in made:
            target.unlink(missing_ok=True)
        raise
    return aside


def _new(path: Path, kind: Aside) -> Path:
    second = time.time()
    while True:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        aside = path.with_name(f"{path.name}.damaged-{stamp}{kind}")
        if not aside.exists():
            return aside
        second += 1  # nothing that was kept is overwritten


def _sync_folder(file: Path) -> None:
    fd = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
