"""Tests on an emulated SD card, driven from outside of the guest. tests/run --vm runs them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from machine import Machine, make_image, make_source

TOLD = 6000  # characters of a log that a failed test shows
UP = pytest.StashKey[Machine]()


@pytest.fixture(scope="session")
def suite() -> str:
    return os.environ["HOSTGUARD_TESTS_VM"]


@pytest.fixture(scope="session")
def image(suite: str) -> Path:
    return make_image(suite)


@pytest.fixture(scope="session")
def source(suite: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    disk = tmp_path_factory.mktemp("source") / "source.raw"
    make_source(suite, disk)
    return disk


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest, image: Path, source: Path) -> Iterator[Machine]:
    """One machine for the file's tests, with an empty card. APPEND in the file: one of qemu.STATES."""
    with Machine(image, source, getattr(request.module, "APPEND", "")) as made:
        request.config.stash[UP] = made
        yield made
    del request.config.stash[UP]


@pytest.fixture(autouse=True)
def _no_child_left() -> None:
    """The machine itself is a child, which a test may have booted."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    machine = item.config.stash.get(UP, None)
    if report.failed and machine is not None:
        report.sections.append(("console of the guest", machine.console()[-TOLD:]))
        report.sections.append(("journal of the guard", journal(machine)))
    return report


def journal(machine: Machine) -> str:
    try:
        return machine.sh("journalctl -u hostguard -n 60 -o short-monotonic", check=False, seconds=30)[-TOLD:]
    except (OSError, RuntimeError) as error:
        return f"cannot be had: {error}"
