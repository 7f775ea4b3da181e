"""The entry point of the daemon, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = """
import gc, sys
from types import SimpleNamespace as Stub
from hostguard import hostguardd
sys.modules["hostguard.daemon"] = Stub(run=lambda: print(sys.modules["hostguard.core.paths"].USER, gc.isenabled()))
made = gc.get_freeze_count()
sys.argv = ["hostguardd", *sys.argv[1:]]
import builtins
load = builtins.__import__
def watched(name, *args):
    if name == "hostguard.daemon":
        print("garbage is", "looked for" if gc.isenabled() else "left")
        load("hostguard.core.paths")
    return load(name, *args)
builtins.__import__ = watched
hostguardd.main()
print("frozen" if gc.get_freeze_count() > made else "thawed")
"""


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHOW, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("arguments", [(), ("--user",)])
def test_modules_are_made_without_a_search_for_garbage_and_left_out_of_later_ones(
    arguments: tuple[str, ...],
) -> None:
    done = ran(*arguments)
    assert done.stdout.splitlines() == ["garbage is left", f"{bool(arguments)} True", "frozen"], done


@pytest.mark.parametrize(
    ("argument", "code", "said"),
    [("--version", 0, "hostguardd "), ("--help", 0, "usage: "), ("-x", 2, "usage: ")],
)
def test_an_answer_takes_no_modules_of_the_guard(argument: str, code: int, said: str) -> None:
    done = ran(argument)
    assert done.returncode == code
    assert (done.stdout or done.stderr).startswith(said)
    assert "garbage" not in done.stdout
