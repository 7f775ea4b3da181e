"""Real files and real inotify."""

import asyncio
import errno
import json
import logging
import os
import threading

import pytest
from until import until

from hostguard.core.model import Config, Mind
from hostguard.core.signals import RoutesChanged, Signal
from hostguard.delivery import route_files
from hostguard.delivery.route_files import RouteFiles
from hostguard.delivery.routes import ROUTES_MAX

QUIET_S = 0.3  # for a change that is not to come: several times SETTLE_S
SOON_S = 5.0


def config(**paths):
    return Config(minds={name: Mind(name, routes=str(path)) for name, path in paths.items()})


def routes(default):
    return json.dumps({"default": default})


class Watched:
    """Route files whose changes can be awaited."""

    def __init__(self):
        self.told = asyncio.Queue()
        changed = Signal[RoutesChanged]()
        changed.subscribe(lambda fact: self.told.put_nowait(fact.mind))
        self.files = RouteFiles(changed)

    def default(self, mind="bob"):
        found = self.files.get(mind)
        return found.default if found is not None else None

    async def change(self):
        return await asyncio.wait_for(self.told.get(), SOON_S)

    async def quiet(self):
        await asyncio.sleep(QUIET_S)
        assert self.told.empty()


def watching(work, **paths):
    """Run `await work(watched)` on started files."""

    async def main():
        watched = Watched()
        await watched.files.start(config(**paths))
        try:
            await work(watched)
        finally:
            await watched.files.close()

    asyncio.run(main())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / ".config" / "routes.json"


@pytest.fixture
def there(path):
    path.parent.mkdir(parents=True)
    path.write_text(routes("one"))
    return path


def test_read_at_the_start(there):
    async def work(watched):
        assert watched.default() == "one"
        assert watched.files.get("nobody") is None

    watching(work, bob=there)


def test_read_again_when_written(there):
    async def work(watched):
        await watched.change()
        there.write_text(routes("two"))
        assert await watched.change() == "bob"
        assert watched.default() == "two"
        there.write_text(routes("two") + " ")  # says the same
        await watched.quiet()

    watching(work, bob=there)


def test_replaced_by_rename(there, tmp_path):
    async def work(watched):
        await watched.change()
        for default in ("two", "three"):
            (tmp_path / "new").write_text(routes(default))
            os.rename(tmp_path / "new", there)
            await watched.change()
            assert watched.default() == default

    watching(work, bob=there)


def test_not_there_yet(path):
    async def work(watched):
        assert watched.default() is None
        path.parent.parent.mkdir()
        await watched.quiet()
        path.parent.mkdir()
        path.write_text(routes("one"))
        await watched.change()
        assert watched.default() == "one"

    watching(work, bob=path)


def test_a_whole_home_is_swapped(there, tmp_path):
    async def work(watched):
        await watched.change()
        (tmp_path / "other/.config").mkdir(parents=True)
        (tmp_path / "other/.config/routes.json").write_text(routes("two"))
        await watched.quiet()
        os.rename(tmp_path / "home", tmp_path / "old")
        os.rename(tmp_path / "other", tmp_path / "home")
        while watched.default() != "two":
            await watched.change()
        there.write_text(routes("three"))
        await watched.change()
        assert watched.default() == "three"
        (tmp_path / "old/.config/routes.json").write_text(routes("four"))
        await watched.quiet()

    watching(work, bob=there)


def test_through_links(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/real.json").write_text(routes("one"))
    link = tmp_path / "routes.json"
    link.symlink_to(tmp_path / "store/real.json")

    async def work(watched):
        await watched.change()
        (tmp_path / "store/real.json").write_text(routes("two"))
        await watched.change()
        assert watched.default() == "two"
        (tmp_path / "new").symlink_to(tmp_path / "store/next.json")
        (tmp_path / "store/next.json").write_text(routes("three"))
        os.rename(tmp_path / "new", link)
        await watched.change()
        assert watched.default() == "three"

    watching(work, bob=link)


def test_taken_away(there):
    async def work(watched):
        await watched.change()
        there.unlink()
        await watched.change()
        assert watched.files.get("bob") is None

    watching(work, bob=there)


BAD = [
    (b"{", "it is not JSON"),
    (b"\xff", "it is not UTF-8"),
    (b'{"rules": 1}', "rules must be a list"),
    (b" " * (ROUTES_MAX + 1), f"is larger than {ROUTES_MAX} bytes"),
]


@pytest.mark.parametrize(("content", "said"), BAD, ids=[row[1] for row in BAD])
def test_a_bad_file_leaves_the_routes_as_they_were(there, caplog, content, said):
    async def work(watched):
        await watched.change()
        there.write_bytes(content)
        await watched.quiet()
        assert watched.default() == "one"
        os.utime(there.parent)
        await watched.files.reload(config(bob=there))  # the same bad file again: not said again
        lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(lines) == 1
        assert lines[0].startswith(f"{there}: {said}")
        assert lines[0].endswith("; the earlier routes stay in effect")
        there.write_text(routes("two"))
        await watched.change()
        assert watched.default() == "two"

    watching(work, bob=there)


def test_a_bad_file_from_the_start(there, caplog):
    there.write_text("[]")

    async def work(watched):
        assert watched.files.get("bob") is None
        assert caplog.records[-1].message.endswith("; bob has no routes")

    watching(work, bob=there)


def test_neither_a_fifo_nor_a_folder_nor_a_device_is_opened(there, tmp_path, caplog):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    writer = threading.Thread(target=lambda: os.close(os.open(tmp_path / "fifo", os.O_WRONLY)))
    writer.start()

    async def work(watched):
        await watched.change()
        for name in ("fifo", "folder", "/dev/full"):
            (tmp_path / "link").symlink_to(tmp_path / name)
            os.rename(tmp_path / "link", there)
            await watched.quiet()
            assert watched.default() == "one"
        assert writer.is_alive(), "somebody opened the FIFO for reading"
        lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        # Said once: that a folder is no regular file is the same fault.
        assert lines == [f"{there}: is not a regular file; the earlier routes stay in effect"]

    try:
        watching(work, bob=there)
    finally:
        os.close(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))
        writer.join()


def test_many_minds_and_a_shared_file(tmp_path):
    shared = tmp_path / "shared.json"
    shared.write_text(routes("one"))
    own = {f"m{number}": tmp_path / f"{number}.json" for number in range(50)}

    async def work(watched):
        assert {await watched.change(), await watched.change()} == {"ann", "bob"}
        shared.write_text(routes("two"))
        assert {await watched.change(), await watched.change()} == {"ann", "bob"}
        for path in own.values():
            path.write_text(routes("own"))
        assert {await watched.change() for _ in own} == own.keys()

    watching(work, ann=shared, bob=shared, **own)


def test_reload(there, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(routes("two"))

    async def work(watched):
        await watched.change()
        (tmp_path / "bad").touch()
        await watched.files.reload(config(bob=tmp_path / "bad"))
        assert watched.default() == "one"
        await watched.files.reload(config(bob=other))
        assert await watched.change() == "bob"
        assert watched.default() == "two"
        there.write_text(routes("three"))
        await watched.quiet()
        other.write_text(routes("four"))
        await watched.change()
        await watched.files.reload(config())
        assert await watched.change() == "bob"
        assert watched.files.get("bob") is None
        other.write_text(routes("five"))
        await watched.quiet()

    watching(work, bob=there)


def test_lost_events_are_made_up_for(there, tmp_path):
    async def work(watched):
        await watched.change()
        for number in range(9000):  # three events each: more than fs.inotify.max_queued_events
            (there.parent / f"{number}").touch()
            (there.parent / f"{number}").unlink()
        there.write_text(routes("three"))
        while watched.default() != "three":
            await watched.change()

    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        assert int(file.read()) <= 3 * 9000
    watching(work, bob=there)


def test_no_watch_leaks(there, tmp_path):
    def count(watched):
        with open(f"/proc/self/fdinfo/{watched.files._inotify.fd}") as file:
            return sum(line.startswith("inotify") for line in file)

    async def work(watched):
        await watched.change()
        before = count(watched)
        assert before == len(there.parts) - 1  # the folders on the way, and no more
        for number in range(20):
            os.rename(there.parent, tmp_path / f"old{number}")
            there.parent.mkdir()
            there.write_text(routes(f"d{number}"))
            while watched.default() != f"d{number}":
                await watched.change()
        assert count(watched) == before
        await watched.files.reload(config())
        assert count(watched) == 0

    watching(work, bob=there)


def test_no_descriptor_leaks(there, tmp_path):
    """Whatever becomes of a reading: read, the same as before, no file, too large."""

    async def work(watched):
        await watched.change()
        before = os.listdir("/proc/self/fd")
        (tmp_path / "large").write_bytes(b" " * (ROUTES_MAX + 1))
        for path in (there, tmp_path, tmp_path / "large"):
            await watched.files.reload(config(bob=path))
        await watched.files.reload(config(bob=there))
        await watched.files.reload(config(bob=there, two=there))
        assert len(os.listdir("/proc/self/fd")) == len(before)

    watching(work, bob=there)


def test_a_file_of_the_largest_size_is_read(there):
    there.write_text(routes("large").ljust(ROUTES_MAX))

    async def work(watched):
        assert watched.default() == "large"

    watching(work, bob=there)


def test_a_file_that_cannot_be_opened_is_reported_once(tmp_path, caplog):
    path = tmp_path / "r"
    path.symlink_to(path)

    async def work(watched):
        await watched.files.reload(config(bob=path))
        await watched.files.reload(config(bob=path))
        assert watched.files.get("bob") is None
        assert caplog.text.count("cannot be read: Too many levels of symbolic links; bob has no routes") == 1
        path.unlink()
        path.write_text(routes("one"))
        await watched.files.reload(config(bob=path))
        assert watched.default() == "one"

    watching(work, bob=path)


@pytest.mark.parametrize(
    ("error", "said"),
    [(errno.ENOSPC, "there are too many watches: raise fs.inotify.max_user_watches"),
     (errno.EACCES, "/x cannot be watched: Permission denied")],
)  # fmt: skip
def test_a_file_that_cannot_be_watched_is_read_at_a_reload(there, monkeypatch, caplog, error, said):
    def fails(self, folder, events):
        raise OSError(error, os.strerror(error), "/x")

    monkeypatch.setattr(route_files.Inotify, "watch", fails)

    async def work(watched):
        assert watched.default() == "one"
        there.write_text(routes("two"))
        await watched.files.reload(config(bob=there))
        assert watched.default() == "two"
        await watched.files.reload(config(bob=there))
        assert caplog.text.count(f"{there}: changes take effect only at a reload: {said}") == 1

    watching(work, bob=there)


def test_a_device_that_does_not_answer_stops_no_start(there, monkeypatch, caplog):
    monkeypatch.setattr(route_files, "LOAD_S", 0.05)
    answers, look = threading.Event(), route_files._look_at

    def waits(*what):
        answers.wait(10)
        return look(*what)

    monkeypatch.setattr(route_files, "_look_at", waits)

    async def work(watched):
        assert watched.files.get("bob") is None
        assert "the device does not answer" in caplog.text
        answers.set()
        assert await watched.change() == "bob"
        assert watched.default() == "one"

    watching(work, bob=there)


def test_a_close_leaves_the_watch_to_the_thread_that_uses_it(there, monkeypatch):
    monkeypatch.setattr(route_files, "LOAD_S", 0.05)
    answers = threading.Event()
    monkeypatch.setattr(route_files, "_look_at", lambda *what: answers.wait(10) and [])

    async def work(watched):
        fd = watched.files._inotify.fd
        await watched.files.close()
        os.fstat(fd)  # open
        answers.set()

    watching(work, bob=there)


def test_a_close_while_a_change_settles_reads_nothing_more(there, monkeypatch):
    monkeypatch.setattr(route_files, "SETTLE_S", 5.0)

    async def work(watched):
        await watched.change()
        there.write_text(routes("two"))
        await until(lambda: watched.files._settling)
        settling = watched.files._settling
        await watched.files.close()
        assert settling.cancelled()
        watched.files._inotify = None  # closed already

    watching(work, bob=there)


def test_a_close_frees_the_watch(tmp_path):
    found = []

    async def work(watched):
        found.append(watched.files._inotify.fd)

    watching(work, bob=tmp_path / "r")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(found[0])


def test_without_inotify_the_files_are_read_and_closed(tmp_path, monkeypatch, caplog):
    def fail():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(route_files, "Inotify", fail)
    file = tmp_path / "r"
    file.write_text(routes("a"))

    async def work(watched):
        assert watched.default() == "a"
        file.write_text(routes("b"))
        await watched.files.reload(config(bob=file))
        assert watched.default() == "b"

    watching(work, bob=file)
    assert "Too many open files" in caplog.text


def test_instructions_are_those_of_the_session(tmp_path):
    file = tmp_path / "r"
    file.write_text(json.dumps({"sessions": {"s*": {"instructions": "be brief"}}}))

    async def work(watched):
        assert watched.files.instructions("bob", "s1") == "be brief"
        assert watched.files.instructions("bob", "t") is None
        assert watched.files.instructions("eve", "s1") is None

    watching(work, bob=file)
