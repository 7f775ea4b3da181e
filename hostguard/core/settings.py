"""The settings of pressure and its levels, which more packages than pressure use. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The state of the disk."""

    CALM = "calm"
    STRAINED = "strained"  # it completes requests, but slowly, and that lasts
    STALLED = "stalled"  # requests are in flight, and none completes


@dataclass(frozen=True, slots=True)
class Settings:
    """[pressure] of the configuration. Times are seconds."""

    floor: int = 1  # turns that may always run: work goes on even if others cause the stall
    stall_after: float = 1.5  # an SD card's spikes of 0.8 s are common (facts.md); "within 2 s" with a tick
    strained_after: float = 5.0  # longer than one slow write of 4 s (sorter-v2#595)
    strained_await: float = 0.5  # a request; 50 times the usual fdatasync of an A1 card, 11 ms
    calm_await: float = 0.2  # well below strained_await: between the two nothing changes
    strained_psi: int = 40  # % of the time that some task waits for I/O
    hold_off: float = 15.0  # between cuts: as oomd and systemd-oomd wait after acting
    calm_window: float = 20.0  # of calm, before one more turn; longer than hold_off: slower up than down
    on_stall: str = "none"  # or "freeze": freeze the youngest turns while stalled
    freeze_max: float = 15.0  # of one freeze; network peers mostly time out after 30 s or more
    tighten: int | None = None  # bytes/s that all turns together may write while not calm; None: no limit


def settings_fault(settings: Settings) -> str | None:
    """Why valid settings contradict each other; None if they do not."""
    calm, strained = settings.calm_await, settings.strained_await
    return None if calm < strained else f"calm_await {calm:g} s is not below strained_await {strained:g} s"
