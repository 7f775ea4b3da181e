"""The command line where nothing accepts: systemd holds the socket for a daemon that does not start."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from hostguard.cli import client
from hostguard.cli.errors import NOT_RUNNING, ConnectionLost, NotAccepting, NotRunning
from hostguard.core import paths

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def listener(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SOCKET", tmp_path / "sock")
    monkeypatch.setattr(client, "ACCEPT_S", 0.3)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(paths.SOCKET))
        listener.listen(1)
        yield listener


@contextmanager
def accepted(listener, answer, after=0.0, most=1 << 20):
    """Somebody accepts, reads up to `most` bytes, and answers after some seconds."""

    def serve():
        connection, _ = listener.accept()
        with connection:
            connection.recv(most)
            time.sleep(after)
            with suppress(BrokenPipeError):
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    thread.join(10)


@pytest.mark.parametrize("body", [None, "x" * (4 << 20)], ids=["small", "more than the kernel holds"])
def test_a_request_that_nobody_reads_is_given_up(listener, body):
    began = time.monotonic()
    with pytest.raises(NotAccepting) as caught:
        client.call("POST", "/v1/deliveries", body=body)
    assert time.monotonic() - began < 5
    assert isinstance(caught.value, NotRunning), "so `run` and `status` do without the daemon"
    assert caught.value.exit_code == NOT_RUNNING
    assert "so nothing was done" in caught.value.message


def test_a_daemon_that_read_it_may_take_its_time(listener):
    with accepted(listener, ANSWER, after=1.0):
        assert client.call("GET", "/v1/status") == {}


def test_one_that_never_answers_is_not_waited_for_longer_than_asked(listener):
    with accepted(listener, ANSWER, after=0.8):
        began = time.monotonic()
        with pytest.raises(ConnectionLost):
            client.call("GET", "/v1/status", read_s=0.2)
        assert time.monotonic() - began < 0.6


def test_a_daemon_on_standby_is_neither_away_nor_well(listener):
    body = json.dumps({"code": "standby", "detail": "the reason"}).encode()
    head = b"HTTP/1.1 503 No\r\nContent-Length: %d\r\n\r\n" % len(body)
    with accepted(listener, head + body), pytest.raises(client.OnStandby, match="the reason") as caught:
        client.call("GET", "/v1/status")
    assert caught.value.exit_code == 1
