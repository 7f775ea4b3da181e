"""What is counted for Prometheus, from the events, since the guard started: it expects resets. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from hostguard.core.outcome import row_of

# Upper bounds in seconds. A scope starts in 3 ms at best (facts.md), a turn lasts minutes or hours.
HANDOFF_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HOLD_S = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
EXITS_MAX = 8  # exit statuses of a mind that are counted apart: a label must not have any number of values
OTHER_EXIT = "other"
NEVER_RAN = ("not_started", "not_authorised", "refused")  # outcomes of turns that did no work


class Histogram:
    """Counts observations by bucket; the last bucket is that above all bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value; one that equals a bound is in its bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counters:
    """All counters. Their number is bounded by the configured minds."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()  # turns, by mind
        self.ended: Counter[tuple[str, str]] = Counter()  # turns, by mind and outcome
        self.exits: Counter[tuple[str, str]] = Counter()  # turns, by mind and exit status, or OTHER_EXIT
        self._exits_of: Counter[str] = Counter()  # different ones, by mind
        self.not_started: Counter[str] = Counter()  # by mind
        self.dead: Counter[str] = Counter()  # rows, by mind
        self.skipped: Counter[str] = Counter()  # times of schedules, by mind; few of them are events
        self.holds: Counter[str] = Counter()  # by reason
        self.held_s: dict[str, Histogram] = defaultdict(lambda: Histogram(HOLD_S))  # by reason
        self.handoff_s = Histogram(HANDOFF_S)
        self.levels: Counter[str] = Counter()  # changes of pressure to a level
        self._level = "calm"

    def take(self, event: Mapping[str, Any]) -> None:
        """Count an event."""
        match event["type"]:
            case "held":
                self.holds[event["reason"]] += 1
            case "hold_ended":
                self.held_s[event["reason"]].observe(event["waited_ms"] / 1000)
            case "started":
                self.started[event["mind"]] += 1
                self.handoff_s.observe(event["handoff_ms"] / 1000)
            case "ended" | "failed" if row_of(event["turn"]) == event["delivery"]:  # others were folded in
                mind, outcome = event["mind"], event["outcome"]
                if outcome in NEVER_RAN:
                    self.not_started[mind] += 1
                else:
                    self.ended[mind, outcome] += 1
                    self._exited(mind, event.get("exit"))
            case "dead":
                self.dead[event["mind"]] += 1
            case "pressure" if event["level"] != self._level:
                self._level = event["level"]
                self.levels[self._level] += 1

    def _exited(self, mind: str, status: int | None) -> None:
        if status is None:
            return
        key = (mind, str(status))
        if key not in self.exits:
            if self._exits_of[mind] >= EXITS_MAX:
                key = (mind, OTHER_EXIT)
            self._exits_of[mind] += 1
        self.exits[key] += 1
