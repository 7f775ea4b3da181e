"""A guest as a host with hostguard installed: the shipped units, the commands on PATH, the real paths."""

from __future__ import annotations

from collections.abc import Iterator

import guard as rig
import pytest
from bus_relay import SETTING, Bus
from card import Card
from pressed_host import PressedHost
from resident_host import ResidentHost
from scripted_host import ScriptedHost


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    rig.install()


@pytest.fixture
def card() -> Iterator[Card]:
    """A slow card: 4 ms per write, 4 MB/s. `card.mount` is on it."""
    with Card() as made:
        yield made


@pytest.fixture
def guard(request: pytest.FixtureRequest) -> Iterator[rig.Guard]:
    """The daemon, not started yet; see Guard.start. One of an earlier test, if the module has SHARES_GUARD = True."""
    apart = {"card", "bus"} & {*request.fixturenames}  # it is started with these
    if getattr(request.module, "SHARES_GUARD", False):
        shared: rig.Guard = request.getfixturevalue("shared_guard")
        if not apart:
            shared.reuse()
            yield shared
            left = shared.scopes()
            if not shared.is_as_new():
                shared.close()
            assert not left, f"the test left turns behind: {left}"
            return
        shared.close()
    if "card" in apart:
        request.getfixturevalue("card")  # first, so that the guard's state leaves it before it goes
    with rig.tidy_guard() as guard:
        yield guard


@pytest.fixture(scope="module")
def shared_guard(_installed: None) -> Iterator[rig.Guard]:
    """As `guard`, one for all tests of a module, none of which may have another: a start is what costs most."""
    with rig.tidy_guard() as guard:
        yield guard


@pytest.fixture
def host(guard: rig.Guard) -> Iterator[ResidentHost]:
    """A guard, not started yet, with resident minds."""
    with ResidentHost(guard) as host:
        yield host


@pytest.fixture
def pressed(guard: rig.Guard, card: Card) -> Iterator[PressedHost]:
    """A guard, not started yet, whose database is on the card, with minds whose turns write to it."""
    host = PressedHost(guard, card)
    try:
        yield host
    finally:
        card.go()
        guard.end_turns()
        host.api.close()


@pytest.fixture
def scripted(guard: rig.Guard) -> Iterator[ScriptedHost]:
    """A guard, not started yet, with minds that log their turns; see ScriptedHost.start."""
    with ScriptedHost(guard) as scripted:
        yield scripted


@pytest.fixture
def bus() -> Iterator[Bus]:
    """The guard's way to the system bus, for a test to cut or to hold up."""
    with rig.drop_in(SETTING), Bus() as bus:
        yield bus
