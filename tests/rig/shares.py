"""Which guest of tests/run runs which file of tests: a few guests share them."""

from __future__ import annotations

from pathlib import Path

# Files below tests/system that took more than 60 s, the longest first. The others are dealt by their size.
LONG = (
    "delivery/test_overlap.py",
    "whole/test_damaged.py",
    "pressure/test_pressure.py",
    "host/test_standby.py",
    "resident/test_resident_faults.py",
    "resident/test_resident_ends.py",
    "resident/test_lost_rows.py",
    "whole/test_anything.py",
    "turns/test_ends.py",
    "pressure/test_acting.py",
    "turns/test_run.py",
    "cli/test_restarts.py",
    "cli/test_top.py",
    "host/test_alive.py",
    "delivery/test_scheduled.py",
    "cli/test_quickstart.py",
)


def share(files: list[Path], number: int, of: int) -> set[Path]:
    """The files of share `number` (from 0) of `of`. Whole files, so that the tests of one share what it sets up."""

    def weight(file: Path) -> tuple[int, int]:
        rank = [index for index, name in enumerate(LONG) if str(file).endswith(f"/{name}")]
        return (rank[0] if rank else len(LONG), -file.stat().st_size)

    dealt = sorted(files, key=weight)
    there_and_back = [*range(of), *reversed(range(of))]
    return {file for index, file in enumerate(dealt) if there_and_back[index % (2 * of)] == number}
