"""Writes to the journal without ever waiting for it."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

from hostguard.core.text import safe

SOCKET = "/run/systemd/journal/socket"
STDOUT = "/run/systemd/journal/stdout"


class Journal:
    """journald's native protocol over a non-blocking socket.

    While journald does not read (its disk may be the stalled one) entries are dropped and counted; the next
    entry says how many. Without journald entries go to stderr as text.
    """

    def __init__(self, identifier: str = "hostguard") -> None:
        self._identifier = identifier
        self._dropped = 0
        self._socket: socket.socket | None = _connect()

    def send(self, text: str, priority: int = 6, fields: Mapping[str, str] | None = None) -> None:
        """Write an entry. `priority` is that of syslog, 0 to 7; `fields` are further journal fields.

        What is not printable is escaped: the texts may have the words of minds and of anybody who may send.
        """
        text = _escaped(text)
        if self._socket is None:
            sys.stderr.write(text + "\n")
            return
        if self._dropped:
            text = f"{text} ({self._dropped} lines before this one were lost: the journal refused them)"
        own = {"MESSAGE": text, "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": self._identifier}
        more = {name: _escaped(value) for name, value in (fields or {}).items()}
        raw = b"".join(_field(name, value) for name, value in {**own, **more}.items())
        if self._try(raw):
            self._dropped = 0
        else:
            self._dropped += 1

    def _try(self, raw: bytes) -> bool:
        assert self._socket is not None
        try:
            self._socket.send(raw)
            return True
        except BlockingIOError:
            return False
        except OSError:  # journald made a new socket
            again = _connect()
            if again is None:
                return False
            self._socket.close()
            self._socket = again
        try:
            self._socket.send(raw)
        except OSError:
            return False
        return True


def _connect() -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setblocking(False)
    try:
        sock.connect(SOCKET)
    except OSError:
        sock.close()
        return None
    return sock


def _escaped(text: str) -> str:
    return text if text.isprintable() else "\n".join(safe(line) for line in text.split("\n"))


def _field(name: str, value: str) -> bytes:
    raw = value.encode(errors="replace")
    if b"\n" in raw:
        return name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"
    return name.encode() + b"=" + raw + b"\n"


class Handler(logging.Handler):
    """Python's logging, into the journal."""

    LEVELS = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal
        self.setFormatter(_Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        priority = next((p for level, p in self.LEVELS if record.levelno >= level), 7)
        self._journal.send(self.format(record), priority)


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        """The text of a record; of asyncio's only the first line: the next show texts of errors."""
        text = super().formatMessage(record)
        return text.partition("\n")[0] if record.name == "asyncio" else text

    def formatException(self, ei: Any) -> str:
        """A traceback without source lines, which would be read from the disk, and without the errors' texts,
        which may quote a message."""
        return _shown(ei[1])


def _shown(error: BaseException) -> str:
    """The error and those that led to it, the first one first."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    text = _shown(before) + "\n\nthen:\n" if before is not None else ""
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    plain = [(frame.filename, frame.lineno or 0, frame.name, "") for frame in frames]
    text += "".join(traceback.StackSummary.from_list(plain).format()) + type(error).__qualname__
    if isinstance(error, OSError):
        text += f": {error.strerror}"
    for other in getattr(error, "exceptions", ()):
        text += f"\n\nin it:\n{_shown(other)}"
    return text


def take_over(journal: Journal) -> None:
    """Send logging, and what Python would write to stderr, to the journal."""
    logging.basicConfig(level=logging.INFO, handlers=[Handler(journal)])
    logging.captureWarnings(True)
    # Python's own would read source lines.
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}"
    sys.unraisablehook = _unraisable


def _unraisable(fault: Any) -> None:
    error = (fault.exc_type, fault.exc_value, fault.exc_traceback)
    logging.getLogger(__name__).error("%s %r", fault.err_msg or "ignored in", fault.object, exc_info=error)


def stream(identifier: str, unit: str) -> socket.socket | None:
    """A stream to be a process's stdout; None if journald does not accept one now.

    journald looks up the cgroup of the writing process; it takes `unit` if that process is gone by then. Only
    root may name a unit.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(STDOUT)
        sock.send(f"{identifier}\n{unit}\n6\n0\n0\n0\n0\n".encode())
    except OSError:
        sock.close()
        return None
    sock.setblocking(True)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RD)
    return sock
