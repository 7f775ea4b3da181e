"""What goes to the journal never waits, for the journal or for a disk."""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
import re
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from hostguard.systemd import journal
from hostguard.systemd.journal import Journal, take_over


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket in the place of journald's, which a test reads when it likes."""
    monkeypatch.setattr(journal, "SOCKET", str(tmp_path / "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.setblocking(False)
        yield sock


@contextmanager
def python() -> Iterator[None]:
    """What `take_over` changes is put back, and pytest does not listen meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])
        patch.setattr(logging.getLogger(), "level", 0)
        patch.setattr(sys, "unraisablehook", None)
        patch.setattr(warnings, "formatwarning", None)
        yield
        logging.captureWarnings(False)


@pytest.fixture
def said(journald: socket.socket) -> Iterator[Journal]:
    entries = Journal("test")
    yield entries
    assert entries._socket is not None
    entries._socket.close()


def messages(journald: socket.socket) -> list[str]:
    """The texts of all entries that came since."""
    found = []
    while True:
        try:
            raw = journald.recv(1 << 20)
        except BlockingIOError:
            return found
        line, _, rest = raw.partition(b"\n")
        if line == b"MESSAGE":  # the other form: its length, then the text
            line, rest = b"=" + rest[8 : 8 + int.from_bytes(rest[:8], "little")], b""
        found.append(line.partition(b"=")[2].decode())


def test_a_journal_that_does_not_read_costs_lines_but_no_time(journald: socket.socket, said: Journal) -> None:
    for number in range(10_000):
        said.send(f"line {number}")
    taken = len(messages(journald))
    assert 0 < taken < 10_000
    said.send("after")
    said.send("then")
    lost = 10_000 - taken
    assert messages(journald) == [
        f"after ({lost} lines before this one were lost: the journal refused them)", "then",
    ]  # fmt: skip


def test_what_would_move_a_terminal_s_cursor_is_escaped(journald: socket.socket, said: Journal) -> None:
    said.send("HTTP 500: \x1b]0;owned\x07\u202e\nthe next line", fields={"HOSTGUARD_REASON": "\x9b2J"})
    raw = journald.recv(1 << 20)
    assert b"HTTP 500: \\x1b]0;owned\\x07\\u202e\nthe next line" in raw
    assert b"HOSTGUARD_REASON=\\x9b2J" in raw
    assert b"\x1b" not in raw
    assert b"\x9b" not in raw


def test_a_fault_is_told_without_its_source_and_its_text(journald: socket.socket, said: Journal) -> None:
    """Python would read the source from the disk, on the event loop; the text may quote a message."""
    linecache.clearcache()
    with python(), warnings.catch_warnings():
        take_over(said)
        try:
            try:
                raise KeyError("first")
            except KeyError as cause:
                raise ExceptionGroup(
                    "group", [ValueError("second"), OSError(5, "Input/output error")]
                ) from cause
        except ExceptionGroup as error:
            logging.getLogger("x").exception("went wrong")
            traceback = error.__traceback__
            fault = SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=traceback)
            sys.unraisablehook(SimpleNamespace(**vars(fault), err_msg=None, object=1))  # type: ignore[arg-type]
        warnings.simplefilter("always")
        warnings.warn("never awaited", RuntimeWarning, stacklevel=1)
    told, ignored, warned = messages(journald)
    for text in (told, ignored):
        assert re.search("KeyError\n\nthen:\n(.|\n)*ExceptionGroup\n\nin it:\nValueError\n", text)
        assert text.endswith("OSError: Input/output error")
        assert not {"first", "group", "second"} & {*re.findall(r"\w+", text)}
        assert "in test_a_fault_is_told_without_its_source_and_its_text" in text
        assert "raise" not in text
    assert (told.splitlines()[0], ignored.splitlines()[0]) == ("went wrong", "ignored in 1")
    assert warned == "RuntimeWarning: never awaited"
    assert not [name for name, entry in linecache.cache.items() if len(entry) > 1]


def test_a_task_that_failed_unseen_is_told_without_the_text_of_its_error(
    journald: socket.socket, said: Journal
) -> None:
    async def fail() -> None:
        raise ValueError("secret")

    async def main() -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.sleep(0)
        del task
        gc.collect()

    with python():
        take_over(said)
        asyncio.run(main())
    [text] = messages(journald)
    assert text.startswith("Task exception was never retrieved\n")
    assert text.endswith("ValueError")
    assert "secret" not in text
