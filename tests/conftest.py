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
    outside = "it is driven from outside of a guest"
    left_out = ["rig: guests do not nest", f"vm: {outside}", f"package: {outside}", f"browser: {outside}"]
elif "HOSTGUARD_TESTS_IN_GUEST" in os.environ:
    raise SystemExit("tests/run wants these tests to run in a guest, and this is none")
else:
    left_out = ["system: this is no guest of the rig; tests/run boots one"]
    if "HOSTGUARD_TESTS_VM" not in os.environ:
        left_out.append("vm: tests/run --vm runs it")
    if "HOSTGUARD_TESTS_BROWSER" not in os.environ:
        left_out.append("browser: it needs Chromium; tests/run brings it")
    if "HOSTGUARD_TESTS_PACKAGE" not in os.environ:
        left_out.append("package: tests/run --package runs it")
collect_ignore = [line.partition(":")[0] for line in left_out]


def pytest_report_header() -> list[str]:
    return [f"left out: tests/{line}" for line in left_out]


# From 60 s down to 10 s: each share of the tests gets about as many of them.
LONG = (
    "test_killed_at_random_moments",
    "test_the_card_stops_for_a_minute_under_load",
    "test_a_daemon_killed_at_any_moment",
    "test_the_bus_is_lost_in_the_middle_of_a_start",
    "test_pid_1_is_slow",
    "test_all_of_the_guard_is_on_the_card",
    "test_case_33",
    "test_a_daemon_that_hangs",
    "test_quickstart",
    "test_incident",
    "test_nothing_more_is_posted_into_a_turn_that_is_stopped",
    "test_a_mind_sleeps_and_wakes_from_the_command_line",
    "test_killed_at_any_moment_of_many_deliveries",
    "test_a_lost_answer_is_a_failure",
    "test_the_guard_is_stopped_for_a_while",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave every n-th test, for tests/run, which has several guests at work."""
    share, _, of = os.environ.get("HOSTGUARD_TESTS_SHARE", "").partition("/")
    if of:
        dealt = sorted(items, key=lambda item: [long not in item.nodeid for long in LONG])
        mine = set(dealt[int(share) :: int(of)])
        items[:] = [item for item in items if item in mine]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell tests/run which tests failed."""
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
