"""What systemd, its cgroups and the fork server do for scopes: the real ones, and those of fake_host.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from until import until  # type: ignore[import-not-found]  # for mypy it is tests.rig.until

from hostguard.core.model import Limits
from hostguard.core.units import SLICE, mind_slice, scope_properties, turn_unit
from hostguard.linux import cgroup
from hostguard.systemd.client import Scope
from hostguard.systemd.dbus import SystemdError

UNIT = turn_unit("m", "7")


class Heard:
    """Notes what systemd reports."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.new: list[str] = []
        self.gone: list[str] = []
        self.jobs: list[str] = []

    def systemd_up(self, scopes: Sequence[Scope]) -> None:
        self.lists.append([scope.unit for scope in scopes if scope.mind == "m"])

    def systemd_down(self) -> None: ...
    def unit_started(self, unit: str) -> None: ...
    def shutdown(self, stopping: bool) -> None: ...

    def scope_new(self, scope: Scope) -> None:
        self.new.append(scope.unit)

    def scope_gone(self, unit: str) -> None:
        self.gone.append(unit)

    def scope_job(self, unit: str) -> None:
        self.jobs.append(unit)


async def begun(systemd: Any, forks: Any) -> tuple[Any, Path]:
    """A stub in a scope of its own, and the scope's cgroup."""
    stub = await forks.take()
    await systemd.start_scope(UNIT, scope_properties("m", "", Limits(), None, [stub.pid]))
    return stub, cgroup.ROOT / systemd.control_group.lstrip("/") / SLICE / mind_slice("m") / UNIT


async def a_scope_lives_as_long_as_its_process(systemd: Any, forks: Any) -> None:
    heard, emptied = Heard(), list[str]()
    await systemd.start(heard)
    watch = cgroup.Watch(emptied.append)
    watch.open()
    stub, folder = await begun(systemd, forks)
    watch.add(UNIT, folder)
    assert stub.alive()
    assert cgroup.populated(folder)
    await systemd.refresh()
    assert heard.lists == [[], [UNIT]]
    with pytest.raises(SystemdError) as exists:
        await systemd.start_scope(UNIT, scope_properties("m", "", Limits(), None, [stub.pid]))
    assert exists.value.name.endswith(".UnitExists")
    stub.dismiss()
    await until(lambda: not stub.alive() and UNIT in heard.gone and emptied == [UNIT])
    assert not cgroup.populated(folder)
    assert heard.jobs == [], "nobody asked for its end"
    await systemd.refresh()
    assert heard.lists[-1] == []
    watch.close()
    stub.close()


async def a_stop_is_reported_and_ends_the_scope(systemd: Any, forks: Any) -> None:
    heard = Heard()
    await systemd.start(heard)
    stub, folder = await begun(systemd, forks)
    await systemd.thaw(UNIT)
    await systemd.stop_unit(UNIT)
    await until(lambda: UNIT in heard.gone and not stub.alive())
    assert not await systemd.shutting_down()
    assert heard.jobs[:1] == [UNIT]
    assert not cgroup.populated(folder)
    with pytest.raises(SystemdError):
        await systemd.stop_unit(UNIT)
    stub.close()


async def what_is_watched_too_late_is_empty(systemd: Any, forks: Any) -> None:
    heard, emptied = Heard(), list[str]()
    await systemd.start(heard)
    stub, folder = await begun(systemd, forks)
    stub.dismiss()
    await until(lambda: UNIT in heard.gone)
    watch = cgroup.Watch(emptied.append)
    watch.open()
    watch.add(UNIT, folder)
    await until(lambda: emptied == [UNIT])
    watch.close()
    stub.close()


CONTRACT: list[Callable[[Any, Any], Any]] = [
    a_scope_lives_as_long_as_its_process,
    a_stop_is_reported_and_ends_the_scope,
    what_is_watched_too_late_is_empty,
]
