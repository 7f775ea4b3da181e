"""What one guard leaves for the next of the host's way down."""

from __future__ import annotations

import os

import pytest

from hostguard.core import paths
from hostguard.core.outcome import Record
from hostguard.gate.shutdown import cut_short, forget_mark, leave_mark, mark_time
from hostguard.turns.exit_record import bring_back

RAN, EXITED, DIED = Record(True), Record(True, exit=0), Record(True, signal=15)
NEVER_BEGAN = Record(not_started="no such file")
TABLE = [
    # the mark, the record, written when -> cut short
    ("the power failed", None, None, 0, False),
    ("a reboot in order", 100, None, 0, True),
    ("the guard was restarted", None, DIED, 90, False),
    ("the guard was restarted, killed with its stub", None, RAN, 90, False),
    ("a soft reboot: ended by its stop", 100, DIED, 101, True),
    ("a soft reboot: took the stop, and exited", 100, EXITED, 101, True),
    ("a soft reboot: ended before", 100, EXITED, 99, False),
    ("a soft reboot: killed before", 100, DIED, 99, False),
    ("a soft reboot: killed with its stub", 100, RAN, 99, True),
    ("a soft reboot: never began, before", 100, NEVER_BEGAN, 99, False),
    ("a soft reboot: within one tick of the clock", 100, DIED, 100, True),
]


@pytest.mark.parametrize(
    ("mark", "record", "written", "cut"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE]
)
def test_what_it_cut_short(mark, record, written, cut):
    assert cut_short(mark, record, written) is cut


def test_the_mark_says_when(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "WENT_DOWN", tmp_path / "went-down")
    assert mark_time() is None
    leave_mark()
    os.utime(paths.WENT_DOWN, (7, 7))
    assert mark_time() == 7.0
    leave_mark()
    assert mark_time() > 7
    forget_mark()
    forget_mark()
    assert mark_time() is None


def test_a_mark_that_cannot_be_left_is_reported(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(paths, "WENT_DOWN", tmp_path / "none/went-down")
    leave_mark()
    assert "counts as an attempt" in caplog.text


def test_a_mark_that_cannot_be_removed_is_reported(tmp_path, monkeypatch, caplog):
    """A directory in its place ended in a traceback of asyncio."""
    monkeypatch.setattr(paths, "WENT_DOWN", tmp_path)
    forget_mark()
    assert f"{tmp_path} cannot be removed: " in caplog.text


def test_records_that_the_shutdown_left_are_brought_back_without_their_ticks(tmp_path, monkeypatch):
    left, here = tmp_path / "went-down-turns", tmp_path / "turns"
    monkeypatch.setattr(paths, "WENT_DOWN", tmp_path / "went-down")
    monkeypatch.setattr(paths, "WENT_DOWN_TURNS", left)
    monkeypatch.setattr(paths, "TURNS", here)
    here.mkdir()
    bring_back()  # a shutdown by force left none
    left.mkdir()
    (left / "1").write_text("started 5\nended 9\nexit 0\noutput\nstarted 7\n")
    os.utime(left / "1", (70, 70))
    (left / "2").write_text("started 5\n")
    (here / "2").write_text("started 5\nexit 3\n")  # a soft reboot
    bring_back()
    assert (here / "1").read_text() == "started\nended\nexit 0\noutput\nstarted 7\n"
    assert (here / "1").stat().st_mtime == 70
    assert (here / "2").read_text() == "started 5\nexit 3\n"
    forget_mark()
    assert not left.exists()
