"""Pressure: what the disk and the kernel say of stalled writes, and how many turns that allows. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How the disk is."""

    CALM = "calm"
    STRAINED = "strained"  # it completes requests, but slowly, and that lasts
    STALLED = "stalled"  # requests are in flight, and none completes


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


@dataclass(frozen=True, slots=True)
class Psi:
    """The `total` fields of a pressure file (Documentation/accounting/psi.rst): microseconds."""

    some_us: int
    full_us: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, and one line of a trace: raw, so that a replay sees resets, gaps and missing files too."""

    at: float  # seconds, CLOCK_BOOTTIME: it goes on while the host sleeps, so that a sleep is a gap
    live: int  # turns that run or start
    cap: int | None  # the configured global cap; None: unlimited
    disk: Disk | None  # None: no disk is known, or it vanished
    host: Psi | None  # /proc/pressure/io
    slice: Psi | None  # io.pressure of hostguard.slice


@dataclass(frozen=True, slots=True)
class Settings:
    """[pressure] of the configuration. Times are seconds. Each default has its source or reason beside it."""

    floor: int = 1  # turns that always may run: work goes on when the culprit is somebody else
    stall_after: float = 1.5  # an SD card's spikes of 0.8 s are common (facts.md); "within 2 s" with a tick
    strained_after: float = 5.0  # longer than one slow write of 4 s (sorter-v2#595)
    strained_await: float = 0.5  # a request; 50 times the usual fdatasync of an A1 card, 11 ms
    calm_await: float = 0.2  # well apart from the one above: the band between changes nothing
    strained_psi: int = 40  # % of the time that some task waits for I/O
    hold_off: float = 15.0  # after a cut, until the next: what oomd and systemd-oomd wait after acting
    calm_window: float = 20.0  # of calm, for one turn more; longer than hold_off: slower up than down
    on_stall: str = "none"  # or "freeze": the youngest turns, while stalled
    freeze_max: float = 15.0  # of one freeze; most time-outs of network peers are 30 s and more
    tighten: int | None = None  # bytes/s all turns may write together while not calm; None: left alone


@dataclass(frozen=True, slots=True)
class State:
    """What the rule remembers; State() is the cold start. Others use what stands first, down to `admit`."""

    level: Level = Level.CALM
    since: float = 0.0  # Sample.at of the last change of the level
    cap: int | None = None  # what pressure allows, as shown; None: it does not limit
    evidence: str = "not looked at yet"  # for people, one line
    next_step_at: float | None = None  # Sample.at when the cap rises, if it stays calm; None: it will not
    wait: float = math.inf  # seconds until the next sample is wanted; inf: none until a turn starts
    floor: int = 1

    @property
    def admit(self) -> int | None:
        """What the gate gets: while nothing completes, nothing starts beyond the floor."""
        return self.floor if self.level is Level.STALLED else self.cap
