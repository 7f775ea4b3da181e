"""The map of the code, and the other documents: each file and package that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = ROOT / "hostguard"
MAP = (CODE / "README.md").read_text()
DOCUMENTS = [
    ROOT / "README.md", CODE / "README.md",
    *sorted(path for path in (ROOT / "packaging").rglob("*") if path.suffix in (".scd", ".toml", ".catalog")),
    *sorted(path for path in (ROOT / "units").rglob("*") if path.is_file()),
]  # fmt: skip


def test_the_map_has_every_package_in_the_order_of_imports() -> None:
    layers = re.search(r"^LAYERS = \((.*?)\)", (ROOT / "tests/unit/test_layers.py").read_text(), re.M | re.S)
    assert layers is not None
    listed = re.findall(r"^\| `([a-z]+)[/.]", MAP, re.MULTILINE)
    assert listed == [*re.findall(r'"([a-z]+)"', layers[1]), "cli"]
    assert {*listed} == {path.parent.name for path in CODE.glob("*/__init__.py")} | {"daemon", "hostguardd"}


def test_the_map_names_the_libraries_that_one_package_uses() -> None:
    only_in = re.search(r"^ONLY_IN = \{(.*?)\}", (ROOT / "tests/unit/test_layers.py").read_text(), re.M)
    assert only_in is not None
    for library in re.findall(r'"(\w+)":', only_in[1]):
        assert library in MAP, library


def test_the_map_fits_a_screen() -> None:
    assert len(MAP.splitlines()) <= 70
    assert max(map(len, re.findall(r"```.*?```", MAP, re.DOTALL)[0].splitlines())) <= 110


def test_the_map_names_only_modules_that_exist() -> None:
    modules = re.findall(r"\b[a-z][a-z_/]*\.py\b", MAP.replace("*_rows.py", ""))
    known = {path.name for path in CODE.rglob("*.py")}
    assert len(modules) > 10
    for name in modules:
        exists = (CODE / name).exists() or (ROOT / name).exists() if "/" in name else name in known
        assert exists, name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_only_files_of_the_checkout_that_exist(document: Path) -> None:
    named = re.findall(r"(?<![/\w])(?:hostguard|packaging|tests|units)/[\w./-]+\.\w+", document.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
