"""Hosts that are switched off and on, with each Debian's systemd. Driven from outside of the guest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from suites import SUITES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", params=SUITES)
def tree(request: pytest.FixtureRequest) -> Path:
    """The tree of one suite."""
    made = subprocess.run(
        [ROOT / "tests/rig/tree", request.param], stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(made.stdout.strip())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """httpcore leaves the socket of a connection that is refused to the garbage collector."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
