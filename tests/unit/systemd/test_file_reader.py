"""Real files, looked at by real processes."""

import asyncio
import fcntl
import os
import signal

import pytest
from forking import Server
from until import until

from hostguard.core.model import Mind
from hostguard.systemd import file_reader
from hostguard.systemd.file_reader import GONE, FileReader

MOST, NOBODY = 100, 65534


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.end()


def mind(uid=None):
    uid = os.getuid() if uid is None else uid
    return Mind("bob", uid=uid, gid=os.getgid() if uid == os.getuid() else uid, groups=())


def reading(work, forks):
    async def main():
        reader = FileReader(forks)
        try:
            return await work(reader)
        finally:
            reader.close()

    return asyncio.run(main())


def look(server, path, uid=None, stamp=None):
    async def work(reader):
        seen, watch = await reader.look(mind(uid), str(path), MOST, stamp, None)
        watch.close()
        return seen

    return reading(work, server)


def test_what_is_there_and_whether_it_changed(server, tmp_path):
    path = tmp_path / "f"
    assert look(server, path).stamp == GONE
    assert look(server, path / "below").stamp == GONE
    path.write_bytes(b"x" * MOST)
    seen = look(server, path)
    assert (seen.raw, seen.fault, seen.blind) == (b"x" * MOST, None, None)
    assert [entry for _, entry in sorted(seen.watches)] == [*path.parts[1:]]
    again = look(server, path, stamp=seen.stamp)
    assert (again.raw, again.stamp, again.fault) == (None, seen.stamp, None)


@pytest.mark.parametrize(
    ("make", "fault", "passing"),
    [
        (lambda path: path.write_bytes(b"x" * (MOST + 1)), f"is larger than {MOST} bytes", False),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file", False),
        (lambda path: os.mkfifo(path), "is not a regular file", False),
        (lambda path: path.mkdir(), "is not a regular file", False),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links", False),
    ],
)
def test_a_fault_is_named(server, tmp_path, make, fault, passing):
    make(tmp_path / "f")
    seen = look(server, tmp_path / "f")
    assert (seen.fault, seen.passing, seen.raw) == (fault, passing, None)


def test_a_lease_may_pass(server, tmp_path):
    path = tmp_path / "f"
    path.write_text("x")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with path.open("r+") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        seen = look(server, path)
    signal.signal(signal.SIGIO, before)
    assert (seen.fault, seen.passing) == ("another process holds a lease on it", True)
    assert look(server, path).raw == b"x"


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed")
def test_the_user_decides_what_can_be_read(server, tmp_path):
    private = tmp_path / "private"
    private.write_text("secret")
    private.chmod(0o600)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o711)  # nobody passes through, but lists nothing
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, NOBODY, NOBODY)
    (shared / "link").symlink_to(private)
    seen = look(server, shared / "link", NOBODY)
    assert (seen.fault, seen.passing, seen.raw) == ("cannot be read: Permission denied", False, None)
    assert seen.blind.filename == str(tmp_path), "the folder in which the link ends cannot be watched"
    (shared / "proc").symlink_to(f"/proc/{os.getppid()}/root/x")
    assert look(server, shared / "proc", NOBODY).fault == "cannot be read: Permission denied"
    (shared / "own").write_text("x")
    seen = look(server, shared / "own", NOBODY)
    assert (seen.raw, seen.blind) == (b"x", None), "what may only be passed through is left out"
    assert "own" in {entry for _, entry in seen.watches}


class Stopped:
    """A fork server whose processes were stopped, as a mind's user may do."""

    def __init__(self, server):
        self.server, self.stubs = server, []

    async def take(self):
        stub = await self.server.take()
        os.kill(stub.pid, signal.SIGSTOP)
        self.stubs.append(stub)
        return stub


def test_one_that_does_not_answer_is_killed(server, tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "LOOK_S", 1)
    forks = Stopped(server)

    async def work(reader):
        seen, watch = await reader.look(mind(), str(tmp_path / "f"), MOST, None, None)
        assert (seen.fault, seen.passing, watch) == ("cannot be read: no answer within 1 s", True, None)
        await until(lambda: not reader._leaving)

    reading(work, forks)
    with pytest.raises(ProcessLookupError):
        os.kill(forks.stubs[0].pid, 0)


def test_one_that_is_killed_is_a_fault_that_may_pass(server, tmp_path):
    class Killed:
        async def take(self):
            stub = await server.take()
            stub.kill()
            return stub

    async def work(reader):
        seen, _ = await reader.look(mind(), str(tmp_path), MOST, None, None)
        assert seen.passing
        assert "cannot be read: " in seen.fault

    reading(work, Killed())


def test_those_that_take_long_let_others_go_first(server, tmp_path, monkeypatch):
    """More traps than places, and still an honest mind's file is read."""
    monkeypatch.setattr(file_reader, "PATIENCE_S", 0.05)
    (tmp_path / "f").write_text("x")

    async def work(reader):
        stopped = FileReader(Stopped(server))
        stopped._turnstile = reader._turnstile
        traps = [
            asyncio.ensure_future(stopped.look(mind(), f"/{n}", MOST, None, None))
            for n in range(2 * file_reader.AT_ONCE)
        ]
        await asyncio.sleep(0)
        seen, watch = await reader.look(mind(), str(tmp_path / "f"), MOST, None, None)
        watch.close()
        assert seen.raw == b"x"
        for trap in traps:
            trap.cancel()
        await asyncio.gather(*traps, return_exceptions=True)
        stopped.close()

    reading(work, server)
