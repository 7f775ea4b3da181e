"""What one look at the disk brings, and what two of them say. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Disk:
    """Counters of one whole disk, raw, as the kernel has them (Documentation/admin-guide/iostats.rst)."""

    reads: int  # completed requests
    writes: int
    read_ms: int  # what they took, summed up
    write_ms: int
    busy_ms: int  # with requests in flight
    in_flight: int  # requests now
    write_bytes: int
    discards: int = 0  # completed, from Linux 4.18 on: an fstrim is no stall
    flushes: int = 0  # of the disk's cache, completed, from 5.5 on; those under way are not among in_flight
    flush_ms: int = 0

    @property
    def completed(self) -> int:
        """Requests that came back."""
        return self.reads + self.writes + self.discards + self.flushes


@dataclass(frozen=True, slots=True)
class Psi:
    """`total` of the line "some" in a pressure file (Documentation/accounting/psi.rst): microseconds."""

    some_us: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, and one line of a trace: raw, so that a replay sees resets, gaps and missing files too."""

    at: float  # seconds, CLOCK_BOOTTIME: it goes on while the host sleeps, so that a sleep is a gap
    live: int  # turns that run or start
    cap: int | None  # the configured global cap; None: unlimited
    disk: Disk | None  # None: no disk is known, or it vanished
    host: Psi | None  # /proc/pressure/io
    slice: Psi | None  # io.pressure of hostguard.slice


def ran_backwards(before: Disk, now: Disk) -> bool:
    """Whether a counter was reset, or wrapped."""
    names = [item.name for item in fields(Disk) if item.name != "in_flight"]
    return any(getattr(now, name) < getattr(before, name) for name in names)


def disks(before: Sample | None, now: Sample | None) -> tuple[Disk, Disk] | None:
    """The disk at two looks; None if they cannot be compared: one saw none, or its counters ran backwards."""
    old, new = before and before.disk, now and now.disk
    return (old, new) if old and new and not ran_backwards(old, new) else None


def took(before: Disk, now: Disk) -> float:
    """Seconds a request took: the mean of the reads, the writes or the flushes, whichever is longest."""
    kinds = (
        (now.reads - before.reads, now.read_ms - before.read_ms),
        (now.writes - before.writes, now.write_ms - before.write_ms),
        (now.flushes - before.flushes, now.flush_ms - before.flush_ms),
    )
    return max(ms / count if count else 0.0 for count, ms in kinds) / 1000


def share(before: Sample, now: Sample) -> float | None:
    """% of the time that some task waited for I/O: on the host, else in the slice; None: there is no PSI.

    Never `full`: one other task that runs keeps it at 0 (facts.md).
    """
    for old, new in ((before.host, now.host), (before.slice, now.slice)):
        if old is not None and new is not None and new.some_us >= old.some_us:
            return min((new.some_us - old.some_us) / (now.at - before.at) / 10_000, 100.0)
    return None
