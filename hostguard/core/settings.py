"""The settings of pressure and its levels, which more packages than pressure use. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How the disk is."""

    CALM = "calm"
    STRAINED = "strained"  # it completes requests, but slowly, and that lasts
    STALLED = "stalled"  # requests are in flight, and none completes


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


def settings_fault(settings: Settings) -> str | None:
    """What is wrong with settings that are right each by itself, or None."""
    if settings.calm_await >= settings.strained_await:
        return (
            f"calm_await {settings.calm_await:g} s is not below strained_await {settings.strained_await:g} s"
        )
    return None
