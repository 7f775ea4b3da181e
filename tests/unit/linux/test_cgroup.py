"""The files of cgroups, played by plain ones; and what is believed of one that cannot be read."""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import contextmanager

import pytest

from hostguard.linux import cgroup


@contextmanager
def no_descriptor_free():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_in_doubt_a_cgroup_has_a_process(tmp_path):
    (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert not cgroup.populated(tmp_path)
    assert not cgroup.populated(tmp_path / "gone")
    with no_descriptor_free():
        assert cgroup.populated(tmp_path)


def test_what_is_frozen(tmp_path, monkeypatch):
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert not cgroup.frozen(tmp_path)
    assert not cgroup.frozen(tmp_path / "gone")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert cgroup.frozen(tmp_path)
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    for at, unit in (
        ("hostguard.slice/hostguard-ada.slice", "hostguard-mind@ada.service"),
        ("system.slice", "ada.service"),
        (r"system.slice/system-my\x2dmind.slice", "my-mind@ada.service"),
        ("user@7.service/app.slice", "ada.service"),
    ):
        group = "/user@7.service" if at.startswith("user@7") else ""
        assert not cgroup.frozen_service(unit, "hostguard.slice/hostguard-ada.slice", group), at
        folder = tmp_path / at / unit
        folder.mkdir(parents=True)
        (folder / "cgroup.events").write_text("populated 1\nfrozen 1\n")
        assert cgroup.frozen_service(unit, "hostguard.slice/hostguard-ada.slice", group), at
        (folder / "cgroup.events").unlink()


def test_which_freezer_holds_a_cgroup(tmp_path):
    """The advice to thaw a scope is no good while its slice is frozen."""
    scope = tmp_path / "a.slice/b.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    for folder in (scope, scope.parent):
        (folder / "cgroup.freeze").write_text("0\n")
    assert cgroup.frozen_by(scope) is None
    (scope / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    (scope.parent / "cgroup.freeze").write_text("1\n")
    assert cgroup.frozen_by(scope) == "a.slice"
    (scope / "cgroup.freeze").write_text("1\n")
    assert cgroup.frozen_by(scope) == "a.slice", "the outermost"
    (scope.parent / "cgroup.freeze").write_text("0\n")
    assert cgroup.frozen_by(scope) == "b.scope"
    for folder in (scope, scope.parent):
        (folder / "cgroup.freeze").write_text("0\n")
    assert cgroup.frozen_by(scope) == "b.scope", "it was thawed in between"


def test_a_cgroup_that_cannot_be_watched_now_is_not_called_empty(tmp_path):
    """It is tried again: gone by then, its end is told."""
    told = []

    async def watch():
        watching = cgroup.Watch(told.append)
        watching.open()
        with no_descriptor_free():
            watching.add("a", tmp_path / "a")
            watching.add("b", tmp_path / "b")
        watching.remove("b")
        await asyncio.sleep(0.05)
        assert told == []
        await asyncio.sleep(cgroup.AGAIN_S + 0.2)
        watching.close()

    asyncio.run(watch())
    assert told == ["a"]


def test_a_cgroup_removed_before_its_change_was_read_is_empty(tmp_path):
    """The kernel then answers ENODEV to the read; here it is a pipe, which cannot be read at an offset."""
    told = []

    async def watch():
        watching = cgroup.Watch(told.append)
        ours, theirs = os.pipe()
        watching._epoll.register(ours, 1)
        watching._files[ours] = ("a", tmp_path / "gone")
        watching._fds["a"] = ours
        os.write(theirs, b"x")
        watching._on_events()
        watching.close()
        os.close(theirs)

    asyncio.run(watch())
    assert told == ["a"]


def test_the_files_of_a_cgroup(tmp_path):
    folder = tmp_path / "a.scope"
    folder.mkdir()
    with pytest.raises(FileNotFoundError):
        cgroup.pids(folder)
    cgroup.move(12, folder)
    assert (folder / "cgroup.procs").read_text() == "12"
    (folder / "cgroup.procs").write_text("12\n345\n")
    assert cgroup.pids(folder) == [12, 345]
    for frozen in (True, False):
        cgroup.freeze(folder, frozen)
        assert (folder / "cgroup.freeze").read_text() == f"{frozen:d}"
    for name in ("io", "memory"):
        assert cgroup.pressure_file(folder, name) == folder / f"{name}.pressure"
    assert cgroup.account_files(folder) == {
        "cpu_stat": f"{folder}/cpu.stat", "memory_peak": f"{folder}/memory.peak"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "usec"),
    [
        ("usage_usec 1234567\nuser_usec 1\n", 1234567),
        ("user_usec 1\n", None),
        ("usage_usec\n", None),
        (None, None),
    ],
)
def test_cpu_time(tmp_path, text, usec):
    if text is not None:
        (tmp_path / "cpu.stat").write_text(text)
    assert cgroup.cpu_usec(tmp_path) == usec


@pytest.mark.parametrize(
    ("manager", "below"), [("", ""), ("/", ""), ("/user.slice/u@0.service", "user.slice/u@0.service")]
)
def test_a_unit_hangs_from_its_manager(manager, below):
    assert cgroup.of_unit("hostguard.slice", manager) == cgroup.ROOT / below / "hostguard.slice"
