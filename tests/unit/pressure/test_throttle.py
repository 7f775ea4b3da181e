"""When hostguard.slice gets a write limit, and when that is given back. systemd is played."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hostguard.core import paths
from hostguard.core.signals import Signal, SliceThrottled
from hostguard.core.units import SLICE
from hostguard.linux import cgroup
from hostguard.pressure.throttle import Throttle
from hostguard.systemd.dbus import SystemdError, SystemdLost

OURS, THEIRS = ("/dev/mmcblk0", 10**6), ("/dev/sda", 5)


class Systemd:
    """A slice with write limits, and what was asked of it."""

    control_group = "/user.slice"

    def __init__(self, *limits: tuple[str, int]) -> None:
        self.limits = [*limits]
        self.asked: list[str] = []
        self.fails: list[Exception] = []

    async def write_limits(self, unit: str) -> list[tuple[str, int]]:
        assert unit == SLICE
        self.asked.append("read")
        if self.fails:
            raise self.fails.pop()
        return [*self.limits]

    async def set_write_limits(self, unit: str, limits: list[tuple[str, int]]) -> None:
        assert unit == SLICE
        noted = json.loads(paths.TIGHTENED.read_text())
        assert noted == [*OURS], "what is set is noted for the next guard before it is set"
        self.asked.append("set")
        self.limits = [*limits]


@pytest.fixture
def on_throttle(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "TIGHTENED", tmp_path / "tightened.json")

    def run(work: Any, *limits: tuple[str, int]) -> None:
        async def main() -> None:
            systemd, sent, signal = Systemd(*limits), [], Signal[SliceThrottled]()
            signal.subscribe(lambda fact: sent.append(fact.cgroup))
            await work(Throttle(systemd, signal), systemd, sent)

        asyncio.run(main())

    return run


async def settle(throttle: Throttle) -> None:
    await throttle._tasks.settled(10)
    await asyncio.sleep(0)


def test_a_limit_is_set_reported_and_given_back(on_throttle):
    async def work(throttle, systemd, sent: list[Path]):
        throttle.follow(OURS)
        throttle.follow(OURS)  # the next tick comes before it is set
        await settle(throttle)
        assert (systemd.asked, systemd.limits, throttle.limit) == (["read", "set", "read"], [OURS], OURS)
        assert sent == [cgroup.ROOT / "user.slice" / SLICE]
        throttle.follow(None)
        await settle(throttle)
        assert (systemd.limits, throttle.limit, paths.TIGHTENED.exists()) == ([], None, False)
        throttle.follow(None)
        assert not len(throttle._tasks)

    on_throttle(work)


def test_a_limit_of_somebody_else_stays_and_is_asked_for_once(on_throttle):
    async def work(throttle, systemd, sent):
        for _ in range(3):
            throttle.follow(OURS)
            await settle(throttle)
        assert (systemd.asked, systemd.limits, throttle.limit, sent) == (["read"], [THEIRS], None, [])
        assert not paths.TIGHTENED.exists()
        throttle.follow(None)  # it is calm again: the next time it is asked for anew
        throttle.follow(OURS)
        await settle(throttle)
        assert systemd.asked == ["read", "read"]

    on_throttle(work, THEIRS)


def test_giving_back_leaves_what_somebody_else_added_meanwhile(on_throttle):
    async def work(throttle, systemd, _):
        throttle.follow(OURS)
        await settle(throttle)
        systemd.limits.append(THEIRS)
        await throttle.close()
        assert (systemd.limits, throttle.limit) == ([THEIRS], None)

    on_throttle(work)


def test_what_an_earlier_guard_set_is_given_back(on_throttle):
    async def work(throttle, systemd, _):
        paths.TIGHTENED.write_text(json.dumps(OURS))
        throttle.open()
        await settle(throttle)
        assert (systemd.limits, paths.TIGHTENED.exists()) == ([], False)

    on_throttle(work, OURS)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (SystemdError("org.freedesktop.DBus.Error.AccessDenied", "no"), 1),
        (SystemdLost("the bus is gone"), 4),
    ],
    ids=["refused: not at each tick", "lost: tried again at the next tick"],
)
def test_what_systemd_does_not_do(on_throttle, error, asked):
    async def work(throttle, systemd, _):
        systemd.fails.append(error)
        for _ in range(2):
            throttle.follow(OURS)
            await settle(throttle)
        assert len(systemd.asked) == asked

    on_throttle(work)
