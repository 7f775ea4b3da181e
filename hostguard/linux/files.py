"""Files that are replaced whole or not at all, and the notes for the next guard among them.

A note says what was done for a time only (a frozen turn, a write limit), so that the next guard undoes it if
this one is killed. It is written before that is done, into the runtime folder: after a reboot it is gone, as
is what it is about.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


@contextmanager
def written_beside(
    file: Path, text: str, mode: int | None = None, *, durable: bool = False
) -> Iterator[Path]:
    """A new, hidden file in the folder of `file`, removed at the end unless it was renamed.

    `mode`: its permissions, whatever the umask. `durable`: it is on the disk. Raises OSError.
    """
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "w", encoding="utf-8") as stream:
            if mode is not None:
                os.fchmod(fd, mode)
            stream.write(text)
            if durable:
                stream.flush()
                os.fsync(fd)
        yield new
    finally:
        new.unlink(missing_ok=True)


def write_whole(file: Path, text: str, mode: int | None = None) -> None:
    """Replace a file; one that is not a regular file (/dev/stdout) is written into. Raises OSError."""
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    with written_beside(file, text, mode) as new:
        new.replace(file)


def note(file: Path, what: Any) -> None:
    """Write a note, or remove it if `what` is empty. Raises OSError."""
    if what:
        write_whole(file, json.dumps(what))
    else:
        file.unlink(missing_ok=True)


def recall(file: Path, read: Callable[[Any], T]) -> T | None:
    """The note that an earlier guard left, as `read` makes it of the JSON; None if there is none.

    One that cannot be read is set aside as <name>.damaged, and the guard goes on without it.
    """
    try:
        return read(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        aside = file.with_name(f"{file.name}.damaged")
        text = "%s cannot be used (%s): it is kept as %s, and what it says is not undone"
        log.critical(text, file, type(error).__name__, aside)
        with suppress(OSError):
            file.replace(aside)
        return None


def texts(value: Any) -> list[str]:
    """A list of texts in a note. Raises TypeError."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError("not a list of texts")
    return value


def lock_for_life(file: Path, wait_s: float) -> bool:
    """Lock the file for the life of this process. False if another holds it for `wait_s`. Blocks."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # not closed if locked
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                return False
            time.sleep(0.05)
