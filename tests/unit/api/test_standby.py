"""The guard stays while its queue cannot be opened, and says why."""

import asyncio
import socket
import time

import pytest

from hostguard.api import standby
from hostguard.cli import client
from hostguard.cli.errors import FAILED, CliError
from hostguard.core import paths
from hostguard.store.schema import SchemaTooNew
from hostguard.store.writer import Queue
from hostguard.systemd.notify import Notifier


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What the service manager is told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setattr(paths, "SOCKET", tmp_path / "sock")
        monkeypatch.setattr(standby, "AGAIN_S", 0.05)
        yield lambda: manager.recv(1 << 16).decode()


def appears(path):
    while not path.exists():
        time.sleep(0.01)


def on_standby(tmp_path, during):
    """Open a queue in a folder that is not there; `during` runs beside it. What `open_queue` returned."""

    async def run():
        queue, notifier, stop = Queue(tmp_path / "card" / "queue.db"), Notifier(), asyncio.Event()
        with notifier._socket:
            opening = asyncio.create_task(standby.open_queue(queue, notifier, stop))
            await asyncio.to_thread(appears, paths.SOCKET)
            await during(stop)
            listener = await asyncio.wait_for(opening, 10)
        await queue.close()
        return listener

    return asyncio.run(run())


def test_each_request_is_told_why_and_the_socket_stays(tmp_path, told):
    async def during(stop):
        for _ in range(3):
            with pytest.raises(CliError) as caught:
                await asyncio.to_thread(client.call, "GET", "/v1/status")
            assert "queue.db" in caught.value.message
            assert caught.value.exit_code == FAILED
        state, status = told().splitlines()
        assert state == "READY=1"
        assert "No such file" in status
        (tmp_path / "card").mkdir()

    listener = on_standby(tmp_path, during)
    with listener, socket.socket(socket.AF_UNIX) as late:
        late.connect(str(paths.SOCKET))
        listener.accept()[0].close()


def test_it_can_be_told_to_stop(tmp_path, told):
    async def during(stop):
        stop.set()

    with pytest.raises(standby.Stopped):
        on_standby(tmp_path, during)


def test_a_newer_file_is_not_waited_for(tmp_path, told):
    async def run():
        queue = Queue(tmp_path / "queue.db")
        await queue.open()
        await queue.write(lambda db: db.execute("PRAGMA user_version=99"))
        await queue.write(lambda db: db.execute("CREATE TABLE newer (id)"))  # each step changes the schema
        await queue.close()
        notifier = Notifier()
        with notifier._socket, pytest.raises(SchemaTooNew):
            await standby.open_queue(Queue(queue.path), notifier, asyncio.Event())

    asyncio.run(run())
    assert not paths.SOCKET.exists()
