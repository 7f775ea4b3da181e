"""The public bug cases of other projects, and kindred ones, on a real queue and on real scopes.

A test's name has the case's number in the table of cases; its docstring says where it was seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bus import SETTING, Bus
from guard import Guard, drop_in
from host import Host


@pytest.fixture
def host(guard: Guard) -> Iterator[Host]:
    """A guard, not started yet, with minds that log their turns; see Host.start."""
    with Host(guard) as host:
        yield host


@pytest.fixture
def bus() -> Iterator[Bus]:
    """The guard's way to the system bus, for a test to cut or to hold up."""
    with drop_in(SETTING), Bus() as bus:
        yield bus
