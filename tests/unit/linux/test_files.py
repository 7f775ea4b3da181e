"""Files that are replaced whole or not at all, and notes for the next guard."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading

import pytest

from hostguard.linux import files


def mode_of(file):
    return stat.S_IMODE(file.stat().st_mode)


def test_a_file_is_replaced_whole_with_its_mode_whatever_the_umask(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("before")
    before = os.umask(0o077)
    try:
        files.write_whole(file, "äfter", 0o644)
        assert (file.read_text(encoding="utf-8"), mode_of(file)) == ("äfter", 0o644)
        files.write_whole(file, "again")
        assert (file.read_text(), mode_of(file)) == ("again", 0o600)
    finally:
        os.umask(before)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        files.write_whole(file, "\udcff")
    assert file.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_new_file_is_hidden_and_goes_if_its_user_fails(tmp_path):
    file = tmp_path / "a.toml"
    (tmp_path / ".a.toml.new").write_text("left by a guard that was killed")
    with contextlib.suppress(LookupError), files.written_beside(file, "text", durable=True) as new:
        assert (new.name, new.read_text()) == (".a.toml.new", "text")
        raise LookupError
    assert os.listdir(tmp_path) == []


def test_what_is_no_regular_file_is_written_into(tmp_path):
    reader, writer = os.pipe()
    try:
        link = tmp_path / "out"
        link.symlink_to(f"/proc/self/fd/{writer}")
        files.write_whole(link, "text")
        assert os.read(reader, 9) == b"text"
        assert link.is_symlink()
    finally:
        os.close(reader)
        os.close(writer)


def test_a_note_is_recalled_until_it_is_empty(tmp_path):
    file = tmp_path / "note.json"
    assert files.recall(file, list) is None
    files.note(file, ["a", 1])
    assert files.recall(file, list) == ["a", 1]
    files.note(file, [])
    assert not file.exists()
    files.note(file, None)


def test_a_file_is_locked_for_life_by_one_process_alone(tmp_path):
    file = tmp_path / "lock"
    holder = os.open(file, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert not files.lock_for_life(file, 0.1)
    threading.Timer(0.1, os.close, (holder,)).start()
    assert files.lock_for_life(file, 5), "it waits"
    with open(file) as again, pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
