"""Which session each process works for outlives the guard, as long as the process lives. Real processes."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from hostguard.core import paths
from hostguard.linux.process import process
from hostguard.turns import process_sessions


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SESSIONS", tmp_path / "sessions")
    return tmp_path / "sessions"


def test_what_lives_is_known_again(file):
    other = subprocess.Popen(["sleep", "60"])
    here, there = process(os.getpid()), process(other.pid)
    process_sessions.store({here: ("m", "a"), there: ("n", "b")})
    assert process_sessions.load() == {here: ("m", "a"), there: ("n", "b")}
    other.kill()
    other.wait()
    assert process_sessions.load() == {here: ("m", "a")}
    assert [*file.parent.iterdir()] == [file], "no half of a file is left"


def test_a_pid_that_another_process_has_now_is_not_taken_for_it(file):
    here = process(os.getpid())
    file.write_text(json.dumps([[here.pid, here.started - 1, "m", "a"]]))
    assert process_sessions.load() == {}


def test_without_a_file_nothing_is_known_and_nothing_said(caplog):
    assert process_sessions.load() == {}
    assert not caplog.records


@pytest.mark.parametrize("text", ["", "{", "[1]", "[[1]]", '[["x", 1, "m", "a"]]', "\xff"])
def test_a_file_that_cannot_be_read_is_reported(file, caplog, text):
    file.write_bytes(text.encode("latin1"))
    assert process_sessions.load() == {}
    assert str(file) in caplog.text


def test_a_full_disk_is_for_the_caller(file, monkeypatch):
    monkeypatch.setattr(paths, "SESSIONS", file / "no" / "folder")
    with pytest.raises(FileNotFoundError):
        process_sessions.store({})
