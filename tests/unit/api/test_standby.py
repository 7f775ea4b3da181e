"""The guard stays while it cannot start, says why, and goes on once it can."""

import asyncio
import json
import os
import socket

import pytest
from until import until

from hostguard.api import standby
from hostguard.api.standby import NoFolder, Obstacle, Rival, Standby, Stopped, live_turns, obstacle
from hostguard.cli import client
from hostguard.cli.errors import FAILED, OnStandby
from hostguard.core import paths
from hostguard.core.clock import AGAIN_S, CHECK_S
from hostguard.core.errors import ConfigError
from hostguard.core.model import Config
from hostguard.store.schema import SchemaTooNew
from hostguard.store.writer import Queue, Unavailable, Unreadable
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.systemd.notify import Notifier

WRONG = ConfigError(["hostguard.toml: limits.cap: unknown key", "another"])


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What the service manager is told."""
    for name, path in (("SOCKET", "sock"), ("CONFIG", "etc/hostguard.toml"), ("STATE", "state")):
        monkeypatch.setattr(paths, name, tmp_path / path)
    monkeypatch.setattr(paths, "DROP_INS", (tmp_path / "etc/hostguard.toml.d",))
    monkeypatch.setattr(paths, "DATABASE", tmp_path / "state/queue.db")
    monkeypatch.setattr(standby, "SETTLE_S", 0.01)
    for folder in ("etc", "state"):
        (tmp_path / folder).mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield lambda: manager.recv(1 << 16).decode()


class Start:
    """A start that fails with `error` until it is None; `tries` are counted."""

    def __init__(self, error):
        self.error, self.tries = error, 0
        self.stop = asyncio.Event()
        self.notifier = Notifier()
        self.standby = Standby(self.notifier, self.stop)

    async def prepare(self):
        self.tries += 1
        if self.error is not None:
            raise self.error
        return Config(sources=("a.toml",))


def on_standby(error, during, begin=lambda start: start.standby.until(start.prepare), close=True):
    """A start that meets the error; `during` runs meanwhile. What it ended with."""

    async def run():
        start = Start(error)
        with start.notifier._socket:
            starting = asyncio.create_task(begin(start))
            await until(paths.SOCKET.exists)
            await during(start)
            return await asyncio.wait_for(starting, 10), start.standby.listener

    config, listener = asyncio.run(run())
    if close:
        listener.close()
    return config, listener


def ask(method="GET", path="/v1/status"):
    return asyncio.to_thread(client.call, method, path)


def test_each_request_is_answered_with_the_reason_and_the_socket_stays(told):
    async def during(start):
        for path in ("/v1/status", "/v1/deliveries", "/metrics", "/no/such"):
            with pytest.raises(OnStandby) as caught:
                await ask(path=path)
            assert "limits.cap: unknown key\nanother\n" in caught.value.message
            assert "nothing is accepted or started; no turns in progress" in caught.value.message
            assert caught.value.exit_code == FAILED
        assert told() == "READY=1"
        assert told().startswith("STATUS=on standby, no turns in progress: the configuration is invalid")
        assert start.tries == 1
        start.error = None
        start.standby.try_again()

    config, listener = on_standby(WRONG, during, close=False)
    assert config.sources == ("a.toml",)
    with listener, socket.socket(socket.AF_UNIX) as late:
        late.connect(str(paths.SOCKET))
        listener.accept()[0].close()


def test_a_reload_tries_at_once_and_says_what_came_of_it(told):
    async def during(start):
        with pytest.raises(OnStandby, match="unknown key"):
            await ask("POST", "/v1/reload")
        start.error = ConfigError(["something else"])
        with pytest.raises(OnStandby, match="something else"):
            await ask("POST", "/v1/reload")
        assert start.tries == 3
        start.error = None
        assert await ask("POST", "/v1/reload") == {"sources": ["a.toml"]}

    on_standby(WRONG, during)


@pytest.mark.parametrize("file", ["etc/hostguard.toml", "etc/hostguard.toml.d/a.toml", "state/queue.db"])
def test_a_file_that_changes_makes_it_try_again(tmp_path, told, file):
    async def during(start):
        await asyncio.sleep(0.2)
        assert start.tries == 1
        start.error = None
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).with_name("new").write_text("x")
        os.rename((tmp_path / file).with_name("new"), tmp_path / file)

    on_standby(WRONG, during)


def test_what_each_attempt_writes_does_not_make_it_try_again(tmp_path, told):
    (tmp_path / "state/queue.db").touch()

    async def during(start):
        await asyncio.sleep(0.2)
        (tmp_path / "state/queue.db-wal").touch()
        (tmp_path / "state/queue.db").write_text("x")
        await asyncio.sleep(0.2)
        assert start.tries == 1
        start.error = None
        start.standby.try_again()

    on_standby(WRONG, during)


def test_what_may_pass_by_itself_is_tried_again_and_logged_once(told, monkeypatch, caplog):
    monkeypatch.setattr(standby, "AGAIN_S", 0.02)

    async def during(start):
        await until(lambda: start.tries > 5)
        start.error = None

    on_standby(Unavailable("cannot open it: it is full"), during)
    assert [record.message for record in caplog.records] == [
        "on standby, as the guard cannot start: cannot open it: it is full", "the guard can start now",
    ]  # fmt: skip


def test_it_can_be_told_to_stop(told):
    async def during(start):
        start.stop.set()

    with pytest.raises(Stopped):
        on_standby(WRONG, during)


def test_a_start_that_failed_halfway_stays_until_there_is_a_chance(told):
    async def during(start):
        with pytest.raises(OnStandby, match="KeyError"):
            await ask()
        with pytest.raises(OnStandby):
            await ask("POST", "/v1/reload")

    with pytest.raises(KeyError):
        on_standby(None, during, lambda start: start.standby.afresh(KeyError("text")))


def test_without_its_folder_it_needs_a_new_process(told):
    async def during(start):
        with pytest.raises(OnStandby, match="not a directory"):
            await ask()
        start.standby.try_again()

    with pytest.raises(NoFolder):
        on_standby(NoFolder("it is not a directory"), during)


def test_another_guard_keeps_its_socket(told):
    async def run():
        start = Start(Rival("another one runs"))
        with start.notifier._socket:
            await start.standby.until(start.prepare)

    with pytest.raises(Rival):
        asyncio.run(run())
    assert not paths.SOCKET.exists()


def raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "said", "again_s"),
    [
        (
            WRONG,
            "the configuration is invalid (hostguard config check):\nhostguard.toml: limits.cap",
            CHECK_S,
        ),
        (SchemaTooNew("written by a newer one"), "written by a newer one", CHECK_S),
        (Unreadable("content"), "content", CHECK_S),
        (Unavailable("it is full"), "it is full", AGAIN_S),
        (Rival("another one"), "another one", AGAIN_S),
        (SystemdLost("no bus"), "systemd cannot be used: no bus", AGAIN_S),
        (SystemdError("org.x", "no"), "systemd cannot be used: no", AGAIN_S),
        (PermissionError(13, "Permission denied", "/run/x"), "/run/x cannot be used: Permission", AGAIN_S),
        (TimeoutError("too late"), "too late", AGAIN_S),
        (
            ValueError("private"),
            "an error in hostguard itself: ValueError in test_standby.py, line ",
            CHECK_S,
        ),
    ],
)
def test_each_error_has_a_text_and_a_pause(error, said, again_s):
    found = obstacle(raised(error))
    assert said in found.text
    assert "private" not in found.text, "it may be what a mind was sent"
    assert found.again_s == again_s
    assert isinstance(obstacle(error), Obstacle), "also if it was never raised"


def test_live_turns_are_scopes_with_processes(tmp_path):
    def scope(path, populated):
        folder = tmp_path / "hostguard.slice" / path
        folder.mkdir(parents=True)
        (folder / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")

    assert live_turns(tmp_path) == 0
    scope("hostguard-ada.slice/hostguard-turn-ada-1.scope", 1)
    scope("hostguard-ada.slice/by-hand.scope", 1)
    scope("hostguard-bob.slice/hostguard-turn-bob-2.scope", 0)
    scope("hostguard-bob.slice/hostguard-mind@bob.service", 1)
    assert live_turns(tmp_path) == 2


def test_a_queue_is_opened_once(tmp_path):
    async def run():
        queue = Queue(tmp_path / "card/queue.db")
        with pytest.raises(Unavailable):
            await queue.open()
        assert not queue.is_open
        (tmp_path / "card").mkdir()
        await queue.open()
        assert queue.is_open
        await queue.close()

    asyncio.run(run())


def test_the_answer_is_a_problem_document(told):
    async def during(start):
        reader, writer = await asyncio.open_unix_connection(str(paths.SOCKET))
        writer.write(b"DELETE /v1/schedules/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"application/problem+json" in head
        assert json.loads(body)["code"] == "standby"
        start.error = None
        start.standby.try_again()

    on_standby(WRONG, during)
