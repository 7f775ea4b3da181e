"""The manual as Debian's own tools build and show it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from guard import ROOT

PAGES = sorted((ROOT / "packaging/man").glob("*.scd"))


@pytest.mark.parametrize("source", PAGES, ids=lambda page: page.stem)
def test_a_page_is_built_and_shown_without_a_warning(source: Path, tmp_path: Path) -> None:
    built = tmp_path / source.stem
    with source.open("rb") as text:
        built.write_bytes(subprocess.run(["scdoc"], stdin=text, capture_output=True, check=True).stdout)
    # As lintian looks at it.
    shown = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", str(built)],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"},
    )
    # It, too, passes over lines of a narrow cell in a table that cannot be stretched.
    said = [line for line in shown.stderr.splitlines() if not line.endswith(b"cannot adjust line")]
    assert (shown.returncode, said) == (0, [])
    name, section = source.stem.rsplit(".", 1)
    page = re.sub(r"\x1b\[\d+m|.\x08", "", shown.stdout.decode())
    assert page.startswith(f"{name}({section})")
    # What apropos and whatis find it by.
    told = subprocess.run(["lexgrog", str(built)], capture_output=True, text=True)
    assert told.returncode == 0, told
    assert f'"{name} - ' in told.stdout
