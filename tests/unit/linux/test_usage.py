"""What a live turn has used, from the files that the kernel has of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hostguard.core.outcome import Usage
from hostguard.linux.process import storage
from hostguard.linux.usage import in_io_stat, number_of, of_scope

IO_STAT = """\
179:0 rbytes=4096 wbytes=1048576 rios=1 wios=9 dbytes=0 dios=0
8:16 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=0 dios=0
8:0
"""


@pytest.mark.parametrize(
    ("number", "read_and_written"),
    [("179:0", (4096, 1048576)), ("8:0", (0, 0)), ("253:0", (0, 0)), (None, (4097, 1048578))],
)
def test_the_scope_s_counters_of_one_disk_or_of_all(
    number: str | None, read_and_written: tuple[int, int]
) -> None:
    assert in_io_stat(IO_STAT, number) == read_and_written


def test_a_scope_with_counters_is_not_counted_by_process(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 1234567\nuser_usec 1\n")
    (tmp_path / "io.stat").write_text(IO_STAT)
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert of_scope(tmp_path, None) == Usage(1234, 4097, 1048578, "scope")


def test_without_counters_the_processes_are_summed_up_also_those_below(tmp_path: Path) -> None:
    written = 3 << 20
    code = f"f = open({str(tmp_path / 'x')!r}, 'wb'); f.write(bytes({written})); f.flush(); print(flush=True); input()"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for child, folder in zip(children, (tmp_path, tmp_path / "below"), strict=True):
            assert child.stdout is not None
            child.stdout.readline()
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(f"{child.pid}\n")
        used = of_scope(tmp_path, None)
        each = [storage(child.pid) for child in children]
    finally:
        for child in children:
            child.communicate()
    assert used.counted == "processes"
    assert used.cpu_ms is None
    assert None not in each
    assert used.write_bytes == sum(pair[1] for pair in each if pair)
    assert used.read_bytes == sum(pair[0] for pair in each if pair)


def test_a_scope_that_is_gone_has_used_nothing_known(tmp_path: Path) -> None:
    assert of_scope(tmp_path / "gone", "sda") == Usage(None, None, None, None)


def test_a_process_that_may_not_be_seen_counts_as_unknown(tmp_path: Path) -> None:
    assert storage(7, tmp_path) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7/io").write_text("rchar: 1\n")
    assert storage(7, tmp_path) is None


def test_the_number_of_a_disk(tmp_path: Path) -> None:
    (tmp_path / "block/mmcblk0").mkdir(parents=True)
    (tmp_path / "block/mmcblk0/dev").write_text("179:0\n")
    assert number_of("mmcblk0", tmp_path) == "179:0"
    assert number_of("sda", tmp_path) is None
    assert number_of(None, tmp_path) is None
