"""Which minds fail: turns that failed one after another, and dead letters, by mind. It is in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hostguard.core.outcome import failed, row_of
from hostguard.store.failures import Attempted


@dataclass(frozen=True, slots=True)
class Failing:
    """A mind's last `in_a_row` turns have all failed. `at`, of the last one, is ms since the epoch."""

    in_a_row: int
    turn: str
    reason: str
    at: int


class Health:
    """Counts from the events; `load` gives it what happened before the guard was started."""

    def __init__(self) -> None:
        self._failing: dict[str, Failing] = {}
        self._dead: Counter[str] = Counter()

    def load(self, attempted: Iterable[Attempted], dead: Mapping[str, int]) -> None:
        """Take what is stored: the latest rows that had a turn, newest first, and dead letters by mind."""
        self._dead.update(dead)
        over: set[str] = set()
        for row in attempted:
            verdict = failed(row.outcome, row.exit)
            if verdict is False and not row.waits:
                over.add(row.mind)
            if not verdict or row.mind in over:
                continue
            # A row that is dead or waits has counted its last attempt, one that is done has not.
            count = row.failures if row.waits or row.dead else row.failures + 1
            last = self._failing.get(row.mind)
            reason = row.reason or row.outcome or ""
            self._failing[row.mind] = (
                Failing(count, row.turn, reason, row.at)
                if last is None
                else Failing(last.in_a_row + count, last.turn, last.reason, last.at)
            )

    def take(self, event: Mapping[str, Any]) -> None:
        """Count an event."""
        match event["type"]:
            case "ended" | "failed" if row_of(event["turn"]) == event["delivery"]:  # others were folded in
                self._ended(event, failed(event["outcome"], event.get("exit")))
            case "dead":
                self._dead[event["mind"]] += 1

    def _ended(self, event: Mapping[str, Any], verdict: bool | None) -> None:
        mind = event["mind"]
        if verdict:
            count = self._failing[mind].in_a_row if mind in self._failing else 0
            reason = event.get("reason", event["outcome"])
            self._failing[mind] = Failing(count + 1, event["turn"], reason, event["at"])
        elif verdict is False:
            self._failing.pop(mind, None)

    def dead_letter_gone(self, mind: str) -> None:
        """A dead letter is tried again, or was dropped."""
        self._dead[mind] -= 1

    def failing(self, mind: str) -> Failing | None:
        """The mind's failures in a row; None if its last turn went well."""
        return self._failing.get(mind)

    def with_dead(self) -> list[str]:
        """The minds that have dead letters, also those that are no longer configured."""
        return [mind for mind, count in self._dead.items() if count > 0]

    def dead(self, mind: str) -> int:
        """How many dead letters the mind has."""
        return self._dead[mind]
