"""The service manager hears of everything, in order, also after it has been deaf for a while."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hostguard.systemd import notify
from hostguard.systemd.notify import Notifier


@contextmanager
def a_notifier() -> Iterator[Notifier]:
    notifier = Notifier()
    yield notifier
    notifier._socket.close()


def everything(manager: socket.socket) -> list[bytes]:
    heard = []
    while True:
        try:
            heard.append(manager.recv(4096))
        except BlockingIOError:
            return heard


def test_what_is_not_taken_is_sent_later_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "AGAIN_S", 0.02)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, a_notifier() as notifier:
            manager.bind(str(tmp_path / "notify"))
            manager.setblocking(False)
            notifier.send("RELOADING=1", "MONOTONIC_USEC=5")
            for number in range(10_000):  # more than its queue can hold
                notifier.status(f"{number}")
            notifier.send("READY=1", "STATUS=ready")
            notifier.send("WATCHDOG=1")
            await asyncio.sleep(0.05)
            heard = everything(manager)
            taken = len(heard) - 1
            assert 0 < taken < 10_000
            assert heard == [b"RELOADING=1\nMONOTONIC_USEC=5", *(b"STATUS=%d" % n for n in range(taken))]
            notifier.status("last")
            await asyncio.sleep(0.05)
            assert everything(manager) == [
                b"STATUS=9999", b"READY=1\nSTATUS=ready", b"WATCHDOG=1", b"STATUS=last",
            ]  # fmt: skip
            notifier.send("STOPPING=1")
            assert everything(manager) == [b"STOPPING=1"]

    asyncio.run(scenario())


def test_without_a_service_manager_it_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", str(tmp_path / "nobody")):
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        with a_notifier() as notifier:
            notifier.send("READY=1")


@pytest.mark.parametrize(("usec", "pid", "times"), [("1000000", None, 2), ("", None, 0), ("1000000", "1", 0)])
def test_the_watchdog_is_fed_twice_in_its_time_if_it_is_ours(
    usec: str, pid: str | None, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid or str(os.getpid()))

    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, a_notifier() as notifier:
            manager.bind(str(tmp_path / "notify"))
            manager.setblocking(False)
            notifier.feed_watchdog()  # at once, and after half of its second
            await asyncio.sleep(0.9)
            assert everything(manager) == [b"WATCHDOG=1"] * times

    asyncio.run(scenario())
