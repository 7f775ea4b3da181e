"""The package of the checkout, and fresh hosts to install it on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh import ROOT, Host, tool

SUITES = os.environ.get("HOSTGUARD_TESTS_PACKAGE", "bookworm trixie").split()


@pytest.fixture(scope="session")
def built() -> Path:
    """A folder with the package, its source package, and the same package with the version 9.9.9."""
    return Path(tool(ROOT / "tests/package/built"))


@pytest.fixture(scope="session")
def package(built: Path) -> Path:
    """The package."""
    (found,) = [path for path in built.glob("hostguard_*_all.deb") if "9.9.9" not in path.name]
    return found


@pytest.fixture(scope="module", params=SUITES)
def tree(request: pytest.FixtureRequest) -> Path:
    """A fresh tree of one suite."""
    return Path(tool(ROOT / "tests/package/tree", request.param))


@pytest.fixture(scope="module")
def host(tree: Path, built: Path) -> Iterator[Host]:
    """A fresh Debian, with the packages in /packages and the checkout in /src, both read-only."""
    with Host(tree, {built: "/packages", ROOT: "/src"}) as host:
        yield host
