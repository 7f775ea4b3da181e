"""A guest as a host with hostguard installed, and with real Volute minds; see tests/run --volute."""

from __future__ import annotations

from collections.abc import Iterator

import guard as rig
import pytest
from real_minds import RealHost, RealMinds
from volute_daemon import VoluteDaemon


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    rig.install()


@pytest.fixture(scope="session")
def real_minds(_installed: None) -> Iterator[RealMinds]:
    """The minds of all tests: ada and bob are of the template claude, eve is of pi."""
    with RealMinds() as minds:
        minds.add("ada", "claude")
        minds.add("bob", "claude")
        minds.add("eve", "pi")
        yield minds


@pytest.fixture(scope="session")
def shared_guard(_installed: None) -> Iterator[rig.Guard]:
    with rig.tidy_guard() as guard:
        yield guard


@pytest.fixture
def real(shared_guard: rig.Guard, real_minds: RealMinds) -> Iterator[RealHost]:
    """The guard, not started yet, or that of an earlier test, with the real minds; see RealHost.start."""
    shared_guard.reuse()
    host = RealHost(shared_guard, real_minds)
    try:
        yield host
        host.end()
    finally:
        host.api.close()
        if not shared_guard.is_as_new():
            shared_guard.close()  # ends the minds, too


@pytest.fixture(scope="session")
def _volute(_installed: None) -> Iterator[VoluteDaemon]:
    with VoluteDaemon(ada="claude", bob="claude", eve="pi") as daemon:
        yield daemon


@pytest.fixture
def volute(_volute: VoluteDaemon) -> VoluteDaemon:
    """Volute's own daemon with its minds: ada and bob of the template claude, eve of pi. All tests share it."""
    _volute.begin()
    _volute.wait_up()
    return _volute
