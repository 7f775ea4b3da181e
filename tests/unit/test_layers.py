"""The packages and their order: each may import only those above it. hostguard/README.md has the map."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = (
    "core", "linux", "config", "systemd", "store", "telemetry", "turns", "pressure", "gate", "delivery",
    "api", "front", "daemon", "hostguardd",
)  # fmt: skip
# The command line does without the daemon's parts.
CLI_MAY = {"core", "linux", "config", "systemd", "telemetry", "pressure", "cli"}
MODULES_MAX = 15
# A library is used in one package only, so that its faults and its successor concern that one.
ONLY_IN = {"dbus_next": "systemd", "pystemd": "systemd", "sqlite3": "store"}
CGROUP_FILE = re.compile(r"/sys/fs/cgroup|(^|/)(cgroup|io|memory|cpu|pids)\.[a-z]+(\.[a-z]+)?$")
TREES = {
    path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted((ROOT / "hostguard").rglob("*.py"))
}


def name(path: Path) -> str:
    """The module's name, a package's own without __init__."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


MODULES = {name(path) for path in TREES}


def package(module: str) -> str:
    """The package of the layout that a module is in; "" for hostguard itself."""
    return module.split(".")[1] if "." in module else ""


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, at whatever place: lazily or for types alone counts too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def test_a_module_imports_only_from_above() -> None:
    found = set()
    for path, tree in TREES.items():
        own = package(name(path))
        for target in imports(tree):
            other = package(target) if target.split(".")[0] == "hostguard" else ""
            allowed = CLI_MAY if own in ("cli", "__main__") else LAYERS[: LAYERS.index(own)] if own else ()
            if other not in ("", own) and other not in allowed:
                found.add(f"{path} imports {target}")
    assert found == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name(path): MODULES.intersection(imports(tree)) for path, tree in TREES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_an_outside_thing_has_one_package() -> None:
    found = set()
    for path, tree in TREES.items():
        own = package(name(path))
        for target in imports(tree):
            if ONLY_IN.get(target.split(".")[0], own) != own and not path.name.endswith("_rows.py"):
                found.add(f"{path} imports {target}")
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if own != "linux" and CGROUP_FILE.search(text):
                found.add(f"{path} names {text}")
    assert found == set()


def test_what_is_not_tested_on_the_newest_packages_uses_none() -> None:
    plain = re.search(r"^plain=\((.*?)\)", (ROOT / "tests/run").read_text(), re.MULTILINE)
    assert plain is not None
    for part in plain[1].split():
        used = {
            target.split(".")[0]
            for path, tree in TREES.items()
            if package(name(path)) == part
            for target in imports(tree)
        }
        assert "hostguard" in used
        assert used - sys.stdlib_module_names == {"hostguard"}, part


def test_nobody_sets_a_callback_on_another_object() -> None:
    found = set()
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr.startswith("on_"):
                    found.add(f"{path} sets {ast.unparse(target)}")
    found = {line for line in found if " sets self.on_" not in line}
    assert found == set()


def test_a_package_is_small_enough_to_know() -> None:
    modules = [path.parent for path in TREES if path.name != "__init__.py"]
    large = {str(folder) for folder in modules if modules.count(folder) > MODULES_MAX}
    assert large - {"hostguard/cli/verbs"} == set()


def test_only_the_entry_points_lie_beside_the_packages() -> None:
    files = {path.name for path in (ROOT / "hostguard").iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "daemon.py", "hostguardd.py", "README.md"}
