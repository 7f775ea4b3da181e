"""Changes in folders, as the kernel reports them."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostguard.linux.inotify import CLOSE_WRITE, ENTRIES, IGNORED, Inotify


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    found = Inotify()
    yield found
    found.close()


def names(inotify: Inotify, mask: int) -> list[str]:
    return [change.name for change in inotify.read() if change.mask & mask]


def test_entries_that_change_are_named(inotify: Inotify, tmp_path: Path) -> None:
    watch = inotify.watch(str(tmp_path), ENTRIES)
    assert list(inotify.read()) == []
    (tmp_path / "ä").write_text("x")
    (tmp_path / "ä").rename(tmp_path / "b")
    (tmp_path / "b").unlink()
    assert select.select([inotify.fd], [], [], 5)[0]
    changes = list(inotify.read())
    assert [change.name for change in changes] == ["ä", "ä", "b", "b"]  # created, moved, moved, deleted
    assert {change.watch for change in changes} == {watch}
    assert list(inotify.read()) == []


def test_a_folder_watched_twice_reports_both_kinds(inotify: Inotify, tmp_path: Path) -> None:
    assert inotify.watch(str(tmp_path), ENTRIES) == inotify.watch(str(tmp_path), CLOSE_WRITE)
    (tmp_path / "a").write_text("x")
    changes = list(inotify.read())
    assert any(change.mask & ENTRIES for change in changes)
    assert any(change.mask & CLOSE_WRITE for change in changes)


def test_a_folder_that_is_gone_is_reported(inotify: Inotify, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    watch = inotify.watch(str(folder), ENTRIES)
    folder.rmdir()
    assert names(inotify, IGNORED) == [""]
    inotify.unwatch(watch)  # it is gone already


def test_an_ended_watch_reports_nothing_more(inotify: Inotify, tmp_path: Path) -> None:
    inotify.unwatch(inotify.watch(str(tmp_path), ENTRIES))
    (tmp_path / "a").write_text("x")
    assert names(inotify, ENTRIES) == []


def test_only_folders_that_exist_can_be_watched(inotify: Inotify, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        inotify.watch(str(tmp_path / "file"), ENTRIES)
    with pytest.raises(FileNotFoundError) as refused:
        inotify.watch(str(tmp_path / "gone"), ENTRIES)
    assert refused.value.filename == str(tmp_path / "gone")


def test_its_descriptor_is_not_inherited(inotify: Inotify) -> None:
    assert not os.get_inheritable(inotify.fd)
