"""For all tests. Those in system/ change the machine, so they run only in a guest of the rig; see tests/run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest
from shares import share

TESTS = Path(__file__).parent


def in_guest() -> bool:
    """True if PID 1 is the systemd of a guest: it has the name that rig/inside gave it."""
    told = Path("/run/systemd/container")
    return told.exists() and told.read_text().strip() == "hostguard"


if in_guest():
    outside = "it is driven from outside of a guest"
    left_out = [
        "rig: guests do not nest",
        *(f"{part}: {outside}" for part in ("vm", "package", "boot", "browser")),
    ]
    if "HOSTGUARD_TESTS_VOLUTE" not in os.environ:
        left_out.append("volute: tests/run --volute runs it")
elif "HOSTGUARD_TESTS_IN_GUEST" in os.environ:
    raise SystemExit("tests/run wants these tests to run in a guest, and this machine is none")
else:
    boots = "this is no guest of the rig; tests/run boots one"
    left_out = [f"system: {boots}", f"volute: {boots}"]
    if "HOSTGUARD_TESTS_VM" not in os.environ:
        left_out.append("vm: tests/run --vm runs it")
    if "HOSTGUARD_TESTS_BOOT" not in os.environ:
        left_out.append("boot: tests/run --boot runs it")
    if "HOSTGUARD_TESTS_BROWSER" not in os.environ:
        left_out.append("browser: it needs Chromium; tests/run brings it")
    if "HOSTGUARD_TESTS_PACKAGE" not in os.environ:
        left_out.append("package: tests/run --package runs it")
collect_ignore = [line.partition(":")[0] for line in left_out]


def pytest_report_header() -> list[str]:
    return [f"left out: tests/{line}" for line in left_out]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the files of other guests' shares: tests/run has several guests at work."""
    number, _, of = os.environ.get("HOSTGUARD_TESTS_SHARE", "").partition("/")
    if not of or not collection_path.match("test_*.py"):
        return None
    part = TESTS / collection_path.relative_to(TESTS).parts[0]
    return collection_path not in _dealt(part, int(number), int(of)) or None


@cache
def _dealt(part: Path, number: int, of: int) -> set[Path]:
    return share([*part.rglob("test_*.py")], number, of)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report failed tests to tests/run."""
    if report.failed and (failures := os.environ.get("HOSTGUARD_TESTS_FAILURES")):
        with open(failures, "a") as file:
            file.write(f"{report.nodeid}\n")


@pytest.fixture(autouse=True)
def _no_child_left() -> Iterator[None]:
    """A test that leaves a process behind fails."""
    before = set(psutil.Process().children())
    yield
    _, left = psutil.wait_procs(set(psutil.Process().children()) - before, timeout=1)
    for child in left:
        child.kill()
    assert not left, f"left running: {left}"
