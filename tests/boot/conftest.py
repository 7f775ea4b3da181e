"""Hosts that are switched off and on, with each Debian's systemd. Driven from outside of the guest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITES = os.environ.get("HOSTGUARD_TESTS_BOOT", "bookworm trixie").split()


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
