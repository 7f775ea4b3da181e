"""The build: out of the tree, the same each time, and nothing that lintian minds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fresh import ROOT, tool


def test_two_builds_give_the_same_package(package: Path, tmp_path: Path) -> None:
    before = tool("git", "-c", "safe.directory=*", "-C", ROOT, "status", "--short", "--ignored")
    script = f'umask 077; exec "{ROOT}/packaging/build-deb" "{tmp_path}/sub folder"'
    again = tool("sh", "-c", script, TZ="Asia/Tokyo", LANG="C", TMPDIR=str(tmp_path), HOME="/nowhere")
    assert Path(again).read_bytes() == package.read_bytes()
    assert tool("git", "-c", "safe.directory=*", "-C", ROOT, "status", "--short", "--ignored") == before


def test_lintian_has_nothing_to_say(package: Path) -> None:
    tool(ROOT / "tests/rig/need", "lintian")
    (changes,) = package.parent.glob("*.changes")
    said = tool("lintian", "--allow-root", "--fail-on", "error,warning", "--no-tag-display-limit", changes)
    assert not [line for line in said.splitlines() if line.startswith(("E:", "W:"))], said


def test_only_debians_own_packages_are_needed(package: Path) -> None:
    names = [name.split()[0] for name in tool("dpkg-deb", "-f", package, "Depends").split(", ")]
    assert "python3-dbus-next" in names
    assert all(name.partition(":")[0] in DEPENDS for name in names), names


DEPENDS = {
    "dbus", "libpam-modules", "libpam-runtime", "systemd", "tzdata", "python3", "python3-click", "python3-croniter",
    "python3-dbus-next", "python3-h11", "python3-httpx", "python3-prometheus-client", "python3-psutil",
    "python3-pystemd", "python3-starlette",
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no folder"),
        (["--no-such", "x"], "unknown option --no-such"),
        (["a", "b"], "more than one folder"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [ROOT / "packaging/build-deb", *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: packaging/build-deb [--install-deps] FOLDER\n")
    assert says in done.stderr
