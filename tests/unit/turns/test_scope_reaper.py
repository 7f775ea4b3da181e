"""A name is free only once systemd has forgotten its scope. On a fake host."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from fake_host import FakeHost

from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns import scope_reaper
from hostguard.turns.scope_reaper import ScopeReaper

UNIT = "hostguard-turn-m-7.scope"
PROPERTIES = [("PIDs", "au", [])]


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(scope_reaper, "REAP_S", 0.05)
    monkeypatch.setattr(scope_reaper, "FORGET_S", (0.01, 0.01))
    return FakeHost()


def reaped(host, work):
    async def run():
        reaper = ScopeReaper(host, lambda unit, mind: mind == "m" and host.populated(Path(unit)))
        await work(reaper)
        reaper.close()

    asyncio.run(run())


def test_a_scope_that_systemd_did_not_see_end_is_stopped_and_its_name_used_again(host):
    host.units[UNIT] = {}

    async def work(reaper):
        await reaper.start_scope(UNIT, PROPERTIES)

    reaped(host, work)
    assert [call[0] for call in host.calls] == ["start_scope", "stop_unit", "start_scope"]


def test_one_that_has_processes_is_not_stopped_and_its_name_is_refused(host):
    host.units[UNIT], host.processes[UNIT] = {}, {1}

    async def work(reaper):
        begun = time.monotonic()
        with pytest.raises(SystemdError, match="loaded already"):
            await reaper.start_scope(UNIT, PROPERTIES)
        assert time.monotonic() - begun >= 0.02, "systemd needs a while"

    reaped(host, work)
    assert host.calls == [("start_scope", UNIT)] * 3


@pytest.mark.parametrize("error", [SystemdError("org.freedesktop.systemd1.Other", "no"), SystemdLost("gone")])
def test_another_refusal_is_final(host, error):
    host.errors["start_scope"] = [error]

    async def work(reaper):
        with pytest.raises(type(error)):
            await reaper.start_scope(UNIT, PROPERTIES)

    reaped(host, work)
    assert host.calls == [("start_scope", UNIT)]


def test_a_scope_that_ended_is_stopped_a_little_later_unless_systemd_forgot_it(host):
    host.units |= {UNIT: {}, "hostguard-turn-m-8.scope": {}, "other.scope": {}}

    async def work(reaper):
        for unit in [*host.units]:
            reaper.add(unit)
        reaper.forgotten("hostguard-turn-m-8.scope")
        await asyncio.sleep(0.01)
        assert host.calls == []
        await asyncio.sleep(0.1)
        assert host.calls == [("stop_unit", UNIT)]
        reaper.add(UNIT)
        await asyncio.sleep(0.1)
        assert host.calls == [("stop_unit", UNIT)] * 2, "a refusal (it is gone) does not matter"

    reaped(host, work)


def test_closed_it_stops_nothing(host):
    async def work(reaper):
        reaper.add(UNIT)
        reaper.close()
        await asyncio.sleep(0.1)

    reaped(host, work)
    assert host.calls == []
