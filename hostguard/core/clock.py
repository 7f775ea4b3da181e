"""The host's two clocks, and the pauses that parts have in common.

A date says when something happened, for people and for times that were asked for; it jumps when somebody sets
the clock, and a Pi has no clock of its own while it is off. A span within one boot is measured in ticks
(CLOCK_BOOTTIME), which never jump and go on while the host is suspended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

# The wall clock may jump: a timer for a date checks it this often.
CHECK_S = 30.0
AGAIN_MS = 1_000  # until a row that cannot be read or started now is tried again
AGAIN_S = 5.0  # until what a card, systemd or a port did not take is tried again
JUMP_MS = 500  # the clock was set if date and ticks differ by more than this: it is slewed far slower

TICK_BITS = 39  # of a stamp: 17 years of ms
_TICKS = (1 << TICK_BITS) - 1


def now_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class Now:
    """Both clocks at one moment: `date` in ms since the epoch, `ticks` in ms since the boot.

    A stamp is one integer for a moment that has passed: positive, the ticks with the boot that they belong
    to, of which `boot` is 24 bits of the id; negative, a date, if no more is known; 0, unset. One pair of
    boots in 16 million takes each other's ticks for its own: then a span is wrong, but not negative.
    """

    date: int
    ticks: int = 0
    boot: int = 0

    @property
    def stamp(self) -> int:
        """This moment."""
        return self.of(self.ticks)

    def of(self, ticks: int) -> int:
        """The stamp of these ticks of this boot."""
        return self.boot << TICK_BITS | ticks

    def in_(self, ms: int) -> int:
        """The stamp of a moment so many ms later."""
        return self.of(self.ticks + ms)

    def of_this_boot(self, stamp: int) -> bool:
        """True if the stamp has ticks of this boot."""
        return stamp > 0 and stamp >> TICK_BITS == self.boot

    def known(self, stamp: int, date: int) -> int:
        """The stamp if it is of this boot; otherwise one with the date: nothing else says how long ago."""
        return stamp if self.of_this_boot(stamp) else -date

    def since(self, stamp: int) -> int:
        """Ms since the stamp, never negative: in ticks, or of an earlier boot by the dates."""
        if self.of_this_boot(stamp):
            return max(0, self.ticks - (stamp & _TICKS))
        return max(0, self.date + stamp) if stamp < 0 else 0

    def until(self, stamp: int) -> int:
        """Ms until a stamp of this boot; negative once it has passed."""
        return (stamp & _TICKS) - self.ticks

    def date_again(self, stamp: int, date: int) -> int:
        """The date of a coming stamp of this boot: `date`, as it was made, unless the clock was set."""
        again = self.date + self.until(stamp)
        return date if abs(again - date) <= JUMP_MS else again

    def date_of(self, stamp: int) -> int:
        """The date of a stamp by the clock as it is set now."""
        return self.date - self.since(stamp) if stamp >= 0 else -stamp

    def stamp_of(self, date: int) -> int:
        """The stamp of a past date by the clock as it is set now; only the date if it is before this boot."""
        ticks = self.ticks - max(0, self.date - date)
        return self.of(ticks) if ticks >= 0 else -date


class Clock:
    """Reads the host's clocks. `boot_id` is the kernel's name for this boot, a UUID."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self._boot = int(boot_id[:6], 16)

    def now(self) -> Now:
        """Both clocks."""
        return Now(self.date(), self.ticks(), self._boot)

    def date(self) -> int:
        """Ms since the epoch, UTC."""
        return now_ms()

    def ticks(self) -> int:
        """Ms since the boot."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
