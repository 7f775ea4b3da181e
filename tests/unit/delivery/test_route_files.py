"""Real files and real inotify."""

import asyncio
import contextlib
import json
import logging
import os
import threading

import pytest
from forking import Server
from until import until
from watched import Watched, config, routes

from hostguard.delivery import route_files
from hostguard.delivery.routes import ROUTES_MAX, Unread
from hostguard.systemd.file_reader import FileReader


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine must not end a wait that is not the subject, and no test is to rest."""
    monkeypatch.setattr(route_files, "LOAD_S", 10.0)
    monkeypatch.setattr(route_files, "REST_MAX_S", 0.0)


@pytest.fixture(scope="module")
def watching():
    """Runs `await work(watched)` on started files."""
    server = Server()

    def run(work, **paths):
        async def main():
            watched = Watched(FileReader(server))
            await watched.reload(config(**paths))
            try:
                await work(watched)
            finally:
                await watched.files.close()

        asyncio.run(main())

    yield run
    server.end()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / ".config" / "routes.json"


@pytest.fixture
def there(path):
    path.parent.mkdir(parents=True)
    path.write_text(routes("one"))
    return path


def test_read_at_the_start(watching, there):
    async def work(watched):
        assert watched.default() == "one"
        assert watched.files.get("nobody") is None

    watching(work, bob=there)


def test_read_again_when_written(watching, there):
    async def work(watched):
        await watched.change()
        there.write_text(routes("two"))
        assert await watched.change() == "bob"
        assert watched.default() == "two"
        there.write_text(routes("two") + " ")  # says the same
        await watched.quiet()

    watching(work, bob=there)


def test_replaced_by_rename(watching, there, tmp_path):
    async def work(watched):
        await watched.change()
        for default in ("two", "three"):
            (tmp_path / "new").write_text(routes(default))
            os.rename(tmp_path / "new", there)
            await watched.change()
            assert watched.default() == default

    watching(work, bob=there)


def test_not_there_yet(watching, path):
    async def work(watched):
        assert watched.default() is None
        path.parent.parent.mkdir()
        await watched.quiet()
        path.parent.mkdir()
        path.write_text(routes("one"))
        await watched.change()
        assert watched.default() == "one"

    watching(work, bob=path)


def test_a_whole_home_is_swapped(watching, there, tmp_path):
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


def test_through_links(watching, tmp_path):
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


def test_taken_away(watching, there):
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
def test_a_bad_file_leaves_the_routes_as_they_were(watching, there, caplog, content, said):
    async def work(watched):
        await watched.change()
        there.write_bytes(content)
        await watched.quiet()
        assert watched.default() == "one"
        os.utime(there.parent)
        await watched.reload(config(bob=there))  # the same bad file again: not said again
        lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(lines) == 1
        assert lines[0].startswith(f"{there}: {said}")
        assert lines[0].endswith("; the earlier routes stay in effect")
        there.write_text(routes("two"))
        await watched.change()
        assert watched.default() == "two"

    watching(work, bob=there)


def test_with_a_bad_file_from_the_start_a_mind_is_not_one_without_routes(watching, there, caplog):
    there.write_text("[]")

    async def work(watched):
        assert watched.files.get("bob") == Unread(watched.files.unread("bob"))
        assert watched.files.unread("bob").startswith(f"{there}: it must be an object")
        assert caplog.records[-1].message.endswith("; bob gets its messages once it can be used")
        assert watched.read == []
        there.write_text(routes("one"))
        await watched.change()
        assert (watched.default(), watched.files.unread("bob"), watched.read) == ("one", "", ["bob"])

    watching(work, bob=there)


def test_it_is_known_that_a_mind_has_no_file_and_asked_before_there_is_an_answer(watching, tmp_path):
    async def work(watched):
        assert (watched.files.get("bob"), watched.read) == (None, ["bob"])
        watched.config = config(bob=tmp_path / "r", new=tmp_path / "n")  # a reload has begun
        assert watched.files.unread("new") == f"{tmp_path}/n is being read"
        waits = asyncio.ensure_future(watched.files.read("new"))
        await watched.reload(watched.config)
        await waits
        assert (watched.files.unread("new"), watched.read) == ("", ["bob", "new"])

    watching(work, bob=tmp_path / "r")


def test_rights_that_change_are_noticed(watching, there):
    async def work(watched):
        await watched.change()
        os.utime(there)  # an event of the same kind, but the file says the same
        await watched.quiet()
        there.parent.chmod(0o500)
        await watched.quiet()
        assert watched.default() == "one"
        ours = watched.files._files["bob"]
        ours.stamp = None
        there.chmod(0o640)
        await until(lambda: ours.stamp is not None)

    watching(work, bob=there)


def test_neither_a_fifo_nor_a_folder_nor_a_device_is_opened(watching, there, tmp_path, caplog):
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


def test_many_minds_and_a_shared_file(watching, tmp_path):
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


def test_reload(watching, there, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(routes("two"))

    async def work(watched):
        await watched.change()
        (tmp_path / "bad").touch()
        await watched.reload(config(bob=tmp_path / "bad"))
        assert watched.default() == "one"
        await watched.reload(config(bob=other))
        assert await watched.change() == "bob"
        assert watched.default() == "two"
        there.write_text(routes("three"))
        await watched.quiet()
        other.write_text(routes("four"))
        await watched.change()
        await watched.reload(config())
        assert await watched.change() == "bob"
        assert watched.files.get("bob") is None
        other.write_text(routes("five"))
        await watched.quiet()

    watching(work, bob=there)


def test_lost_events_are_made_up_for(watching, there, tmp_path):
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


def test_no_watch_leaks(watching, there, tmp_path):
    def count(watched):
        with open(f"/proc/self/fdinfo/{watched.files._files['bob'].watch.fd}") as file:
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
        await until(lambda: count(watched) == before)

    watching(work, bob=there)


def links():
    """What this process has open."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            yield os.readlink(f"/proc/self/fd/{fd}")


def test_no_descriptor_leaks(watching, there, tmp_path):
    """Whatever becomes of a reading: read, the same as before, no file, too large."""

    async def work(watched):
        await watched.change()
        await until(lambda: not any("pidfd" in link for link in links()))  # of the process that read it
        before = os.listdir("/proc/self/fd")
        (tmp_path / "large").write_bytes(b" " * (ROUTES_MAX + 1))
        for path in (there, tmp_path, tmp_path / "large"):
            await watched.reload(config(bob=path))
        await watched.reload(config(bob=there, two=there))
        await watched.reload(config(bob=there))
        await until(lambda: len(os.listdir("/proc/self/fd")) == len(before))

    watching(work, bob=there)


def test_a_file_of_the_largest_size_is_read(watching, there):
    there.write_text(routes("large").ljust(ROUTES_MAX))

    async def work(watched):
        assert watched.default() == "large"

    watching(work, bob=there)


def test_a_file_that_cannot_be_opened_is_reported_once(watching, tmp_path, caplog):
    path = tmp_path / "r"
    path.symlink_to(path)

    async def work(watched):
        await watched.reload(config(bob=path))
        await watched.reload(config(bob=path))
        assert watched.files.unread("bob").endswith("cannot be read: Too many levels of symbolic links")
        assert caplog.text.count("Too many levels of symbolic links; bob gets its messages once") == 1
        path.unlink()
        path.write_text(routes("one"))
        await watched.reload(config(bob=path))
        assert watched.default() == "one"

    watching(work, bob=path)


def test_a_close_while_a_change_settles_reads_nothing_more(watching, there, monkeypatch):
    monkeypatch.setattr(route_files, "SETTLE_S", 5.0)

    async def work(watched):
        await watched.change()
        there.write_text(routes("two"))
        file = watched.files._files["bob"]
        await until(lambda: file.due)
        await watched.files.close()
        assert file.timer.cancelled()

    watching(work, bob=there)


def test_a_close_frees_the_watch(watching, tmp_path):
    found = []

    async def work(watched):
        found.append(watched.files._files["bob"].watch.fd)

    watching(work, bob=tmp_path / "r")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(found[0])


def test_instructions_are_those_of_the_session(watching, tmp_path):
    file = tmp_path / "r"
    file.write_text(json.dumps({"sessions": {"s*": {"instructions": "be brief"}}}))

    async def work(watched):
        assert watched.files.instructions("bob", "s1") == "be brief"
        assert watched.files.instructions("bob", "t") is None
        assert watched.files.instructions("eve", "s1") is None

    watching(work, bob=file)
