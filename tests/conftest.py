"""For all tests. Those in system/ change the machine, so they run only in a guest of the rig; see tests/run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


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
elif "HOSTGUARD_TESTS_IN_GUEST" in os.environ:
    raise SystemExit("tests/run wants these tests to run in a guest, and this machine is none")
else:
    left_out = ["system: this is no guest of the rig; tests/run boots one"]
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


# Parts of the names of tests and files, from 60 s down to 10 s: each share gets about as many of these tests.
LONG = (
    "killed_at_random_moments",
    "the_card_stops_for_a_minute_under_load",
    "merely_slow_has_fewer_turns",
    "shows_what_the_guard_makes_of_a_card_that_stops",
    "the_floor_makes_progress",
    "a_stopped_card_is_seen",
    "test_nothing_is_lost_or_doubled",
    "pid_1_is_slow",
    "whatever_ends_the_freezing_thaws",
    "all_of_the_guard_is_on_the_card",
    "what_an_operator_set_on_the_slice",
    "the_way_home_waits",
    "a_stop_is_shown_recorded",
    "a_slow_line_a_dumb_terminal",
    "any_moment_of_many_deliveries",
    "case_33",
    "idle_and_calm",
    "a_guard_that_goes_is_told_of",
    "a_daemon_killed_at_any_moment",
    "test_incident",
    "nothing_more_is_posted",
    "test_acting",
    "a_daemon_that_hangs",
    "a_lost_answer_is_a_failure",
    "the_guard_is_stopped_for_a_while",
    "a_mind_sleeps_and_wakes",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep only this guest's share of the tests: tests/run has several guests at work."""
    share, _, of = os.environ.get("HOSTGUARD_TESTS_SHARE", "").partition("/")
    if of:
        dealt = sorted(items, key=lambda item: [long not in item.nodeid for long in LONG])
        mine = set(dealt[int(share) :: int(of)])
        items[:] = [item for item in items if item in mine]


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
