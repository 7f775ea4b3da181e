"""One sample of the counters, and what two samples show. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Disk:
    """Raw counters of one whole disk (Documentation/admin-guide/iostats.rst)."""

    reads: int  # completed requests
    writes: int
    read_ms: int  # in total
    write_ms: int
    busy_ms: int  # with requests in flight
    in_flight: int  # requests now
    write_bytes: int
    discards: int = 0  # completed, since Linux 4.18: an fstrim is not a stall
    flushes: int = 0  # of the disk's cache, completed, since 5.5; in_flight does not include them
    flush_ms: int = 0

    @property
    def completed(self) -> int:
        """Completed requests."""
        return self.reads + self.writes + self.discards + self.flushes


@dataclass(frozen=True, slots=True)
class Psi:
    """`total` of the line "some" in a pressure file (Documentation/accounting/psi.rst): microseconds."""

    some_us: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample, and a line of a trace: raw, so that a replay also sees resets, gaps and missing files."""

    at: float  # seconds, CLOCK_BOOTTIME: it includes sleep of the host, which shows as a gap
    live: int  # turns that run or start
    cap: int | None  # the configured global cap; None: unlimited
    disk: Disk | None  # None: no disk is known, or it is gone
    host: Psi | None  # /proc/pressure/io
    slice: Psi | None  # io.pressure of hostguard.slice


def ran_backwards(before: Disk, now: Disk) -> bool:
    """True if a counter was reset or wrapped."""
    names = [item.name for item in fields(Disk) if item.name != "in_flight"]
    return any(getattr(now, name) < getattr(before, name) for name in names)


def disks(before: Sample | None, now: Sample | None) -> tuple[Disk, Disk] | None:
    """The disk in two samples; None if they cannot be compared: it is missing, or counters ran backwards."""
    old, new = before and before.disk, now and now.disk
    return (old, new) if old and new and not ran_backwards(old, new) else None


def took(before: Disk, now: Disk) -> float:
    """Seconds that a request took: the longest of the means of reads, writes and flushes."""
    kinds = (
        (now.reads - before.reads, now.read_ms - before.read_ms),
        (now.writes - before.writes, now.write_ms - before.write_ms),
        (now.flushes - before.flushes, now.flush_ms - before.flush_ms),
    )
    return max(ms / count if count else 0.0 for count, ms in kinds) / 1000


def share(before: Sample, now: Sample) -> float | None:
    """% of the time that some task waited for I/O, on the host or else in the slice; None without PSI."""
    # Not "full", which a single running task keeps at 0 (facts.md).
    for old, new in ((before.host, now.host), (before.slice, now.slice)):
        if old is not None and new is not None and new.some_us >= old.some_us:
            return min((new.some_us - old.some_us) / (now.at - before.at) / 10_000, 100.0)
    return None
