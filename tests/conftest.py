"""For all tests. Those in system/ change the machine, so they run in a guest of the rig only; see tests/run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


def in_guest() -> bool:
    """Whether PID 1 is the systemd of a guest: it tells the name that rig/inside gave it."""
    told = Path("/run/systemd/container")
    return told.exists() and told.read_text().strip() == "hostguard"


if in_guest():
    left_out = "rig: guests do not nest"
elif "HOSTGUARD_TESTS_IN_GUEST" in os.environ:
    raise SystemExit("tests/run wants these tests to run in a guest, and this is none")
else:
    left_out = "system: this is no guest of the rig; tests/run boots one"
collect_ignore = [left_out.partition(":")[0]]


def pytest_report_header() -> str:
    return f"left out: tests/{left_out}"


@pytest.fixture(autouse=True)
def _no_child_left() -> Iterator[None]:
    """A test that leaves a process behind fails."""
    before = set(psutil.Process().children())
    yield
    _, left = psutil.wait_procs(set(psutil.Process().children()) - before, timeout=1)
    for child in left:
        child.kill()
    assert not left, f"left running: {left}"
