"""A clock that a test sets."""

from __future__ import annotations

from hostguard.core.clock import Clock

BOOT = "5c1d0e77-0000-4000-8000-000000000000"


class SetClock(Clock):
    """The host's clocks, `passed` ms later; the date is off by `skew` ms, as after somebody has set it.

    With `at` it is the date, in ms, and only `passed` moves the ticks on.
    """

    def __init__(self, at=None, boot=BOOT):
        super().__init__(boot)
        self.at, self.skew, self.passed = at, 0, 0

    def date(self):
        return (super().date() if self.at is None else self.at) + self.passed + self.skew

    def ticks(self):
        return (super().ticks() if self.at is None else 1_000_000_000) + self.passed
