"""Reads the kernel's counters of a disk and of stalled I/O. They are in memory: no disk is accessed."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from hostguard.core.units import SLICE
from hostguard.linux import cgroup
from hostguard.linux.disk import SYS, Device
from hostguard.linux.psi import OK, host_file, waited_us
from hostguard.pressure.sample import Disk, Psi, Sample


def boottime() -> float:
    """Seconds since boot. Unlike time.monotonic() they include sleep of the host, which shows as a gap."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Sampler:
    """Reads raw counters of one whole disk, and of the pressure on the host and on hostguard.slice.

    `control_group` is that of systemd, "" for the root. After `read`, `disk_reason` and `psi_reason` are OK,
    or say why the disk, or the pressure on the host, could not be read.
    """

    def __init__(self, device: Device, control_group: str = "", sys_root: Path = SYS) -> None:
        self._name = device.name
        self._slice = cgroup.pressure_file(cgroup.of_unit(SLICE, control_group), "io")
        self._sys = sys_root
        self.disk_reason = OK if device.name else device.reason
        self.psi_reason = OK

    def sample(self, live: int, cap: int | None) -> Sample:
        """A sample of now; `live` and `cap` as in Sample."""
        return Sample(boottime(), live, cap, *self.read())

    def read(self) -> tuple[Disk | None, Psi | None, Psi | None]:
        """Counters of the disk, the host, and the slice; None for one that cannot be read."""
        host, self.psi_reason = waited_us(host_file("io"))
        slice_, _ = waited_us(self._slice)  # there is none before the first turn
        return self._disk(), _psi(host), _psi(slice_)

    def _disk(self) -> Disk | None:
        if self._name is None:
            return None
        try:
            # nowrap=True would hide the reset of a counter.
            counters = psutil.disk_io_counters(perdisk=True, nowrap=False)
            # sysfs has no "/" in names: cciss!c0d0.
            found = counters[self._name.replace("!", "/")]
            # What psutil leaves out (Documentation/block/stat.rst). Discards came in 4.18, flushes in 5.5.
            folder = self._sys / "block" / self._name
            stat = [int(text) for text in (folder / "stat").read_text().split()]
            reads, writes = (int(text) for text in (folder / "inflight").read_text().split())
            self.disk_reason = OK
            return Disk(
                reads=found.read_count,
                writes=found.write_count,
                read_ms=found.read_time,
                write_ms=found.write_time,
                busy_ms=found.busy_time,
                # In Debian 13's kernel 6.12 the first is 0 while requests to a stopped card hang.
                in_flight=max(stat[8], reads + writes),
                write_bytes=found.write_bytes,
                discards=sum(stat[11:12]),
                flushes=sum(stat[15:16]),
                flush_ms=sum(stat[16:17]),
            )
        except KeyError:
            self.disk_reason = f"the kernel no longer has {self._name}"
        except (OSError, ValueError, IndexError, NotImplementedError) as error:
            self.disk_reason = f"{self._name} cannot be read: {error}"
        return None


def _psi(waited: int | None) -> Psi | None:
    return None if waited is None else Psi(waited)
