"""Reading the kernel's counters, from files shaped like the kernel's."""

from __future__ import annotations

import errno
from pathlib import Path

import psutil
import pytest

from hostguard.linux import cgroup as cgroups
from hostguard.linux.disk import Device
from hostguard.pressure import sampler as module
from hostguard.pressure.sample import Disk, Psi
from hostguard.pressure.sampler import Sampler

CARD = Device("/dev/mmcblk0", "mmcblk0", "/var/lib/hostguard is on the disk mmcblk0")
# Read off kernel 6.18: reads merged sectors ms, writes merged sectors ms, in flight, busy ms, weighted ms,
# discards merged sectors ms, flushes ms.
STAT = "10 1 80 7 20 2 160 900 3 450 1000 5 0 40 6 8 9"
PRESSURE = """\
some avg10=1.00 avg60=0.50 avg300=0.10 total=7445221
full avg10=0.50 avg60=0.20 avg300=0.05 total=5752249
"""


class Kernel:
    """The files, in a folder."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys, self.cgroup = root / "proc", root / "sys", root / "cgroup"
        self.proc.mkdir()

    def disk(self, name: str, stat: str = STAT, inflight: int = 3) -> None:
        lines = [f"179 0 {name.replace('!', '/')} {stat}", f"179 1 {name}p1 {stat}"]
        (self.proc / "diskstats").write_text("\n".join(lines) + "\n")
        folder = self.sys / "block" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(stat + "\n")
        (folder / "inflight").write_text(f"       0 {inflight:8}\n")

    def pressure(self, text: str = PRESSURE, slice_: str = PRESSURE) -> None:
        for file, content in (
            (self.proc / "pressure/io", text),
            (self.cgroup / "hostguard.slice/io.pressure", slice_),
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> Kernel:
    made = Kernel(tmp_path)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(made.proc))
    monkeypatch.setattr(cgroups, "ROOT", made.cgroup)
    return made


def sampler(kernel: Kernel, device: Device = CARD) -> Sampler:
    return Sampler(device, "/", kernel.sys)


def test_all_counters_of_the_whole_disk(kernel):
    kernel.disk("mmcblk0")
    kernel.pressure(slice_=PRESSURE.replace("7445221", "11").replace("5752249", "7"))
    look = sampler(kernel)
    disk = Disk(
        reads=10,
        writes=20,
        read_ms=7,
        write_ms=900,
        busy_ms=450,
        in_flight=3,
        write_bytes=160 * 512,
        discards=5,
        flushes=8,
        flush_ms=9,
    )
    assert look.read() == (disk, Psi(7445221), Psi(11))
    assert (look.disk_reason, look.psi_reason) == ("ok", "ok")


@pytest.mark.parametrize("fields", [11, 15])
def test_an_older_kernel_tells_less(kernel, fields):
    """4.17 has neither discards nor flushes, 4.18 no flushes."""
    kernel.disk("mmcblk0", " ".join(STAT.split()[:fields]))
    disk, _, _ = sampler(kernel).read()
    assert (disk.in_flight, disk.discards, disk.flushes) == (3, 5 if fields == 15 else 0, 0)


def test_a_disk_with_a_slash_in_its_name(kernel):
    """sysfs writes it with "!"."""
    kernel.disk("cciss!c0d0")
    disk, _, _ = sampler(kernel, Device("/dev/cciss/c0d0", "cciss!c0d0", "")).read()
    assert disk.writes == 20


def test_a_reset_counter_is_reported_as_it_is(kernel):
    """psutil would add what the counter had before, as if it had wrapped."""
    kernel.disk("mmcblk0")
    look = sampler(kernel)
    look.read()
    kernel.disk("mmcblk0", STAT.replace("10", "4", 1))
    assert look.read()[0].reads == 4


def test_a_disk_that_vanishes_and_comes_back(kernel):
    kernel.disk("sda")
    look = sampler(kernel)
    assert look.read()[0] is None
    assert look.disk_reason == "the kernel no longer has mmcblk0"
    kernel.disk("mmcblk0")
    assert (look.read()[0].reads, look.disk_reason) == (10, "ok")


@pytest.mark.parametrize("stat", ["", "1 2 3", "a b c d e f g h i"])
def test_a_file_that_is_none_of_the_kernels_is_no_disk(kernel, stat):
    kernel.disk("mmcblk0")
    (kernel.sys / "block/mmcblk0/stat").write_text(stat)
    look = sampler(kernel)
    assert look.read()[0] is None
    assert look.disk_reason.startswith("mmcblk0 cannot be read: ")


def test_without_a_disk_to_guard_only_pressure_is_read(kernel):
    kernel.pressure()
    look = sampler(kernel, Device(None, None, 'switched off by path = "none" under [device]'))
    assert look.read() == (None, Psi(7445221), Psi(7445221))
    assert look.disk_reason == 'switched off by path = "none" under [device]'


def test_without_psi_it_says_what_turns_it_on(kernel):
    """Raspberry Pi OS."""
    kernel.disk("mmcblk0")
    look = sampler(kernel)
    assert look.read()[1:] == (None, None)
    assert look.psi_reason == (
        "this kernel shows no PSI: psi=1 on the kernel's command line turns it on, if it is built in"
    )


def test_refused_psi_is_distinguished_from_missing_psi(kernel, monkeypatch):
    """Booted with psi=0 the kernel has the file, and answers EOPNOTSUPP: that cannot be played by a file."""

    def refuse(self, *args, **kwargs):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(Path, "read_text", refuse)
    look = sampler(kernel)
    assert look.read()[1] is None
    assert look.psi_reason == "PSI is off: psi=1 on the kernel's command line turns it on"


def test_before_the_first_turn_there_is_no_slice(kernel):
    kernel.pressure()
    (kernel.cgroup / "hostguard.slice/io.pressure").unlink()
    look = sampler(kernel)
    assert look.read()[1:] == (Psi(7445221), None)
    assert look.psi_reason == "ok"


def test_half_a_file_is_no_psi(kernel):
    kernel.pressure("full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
    look = sampler(kernel)
    assert look.read()[1] is None
    assert look.psi_reason.endswith("pressure/io has no line 'some'")


def test_a_sample_is_of_now(kernel):
    before = module.boottime()
    sample = sampler(kernel).sample(2, None)
    assert before <= sample.at <= module.boottime()
    assert (sample.live, sample.cap, sample.disk) == (2, None, None)


def test_this_machine_can_be_read():
    """Whatever it is, some disk of it can."""
    name = next(iter(psutil.disk_io_counters(perdisk=True, nowrap=False)))
    disk, _, _ = Sampler(Device(None, name, "")).read()
    assert disk is not None


def test_requests_that_only_one_file_knows_are_in_flight(kernel):
    kernel.disk("mmcblk0", STAT.replace(" 900 3 ", " 900 0 "), inflight=2)  # as on kernel 6.12
    disk, _, _ = sampler(kernel).read()
    assert disk is not None
    assert disk.in_flight == 2
