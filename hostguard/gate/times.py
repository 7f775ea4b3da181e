"""Since when a queued row waits, what for, until when it pauses, and when it expires. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from hostguard.core.admission import decide
from hostguard.core.clock import Now
from hostguard.core.model import Delivery, Hold, HostView, Kind, MindView, Row
from hostguard.core.outcome import BACKOFF_MS
from hostguard.core.reasons import Reason

# Their senders said how long they may wait; those of other rows, until which date.
_SPANS = (Kind.RUN, Kind.LIFECYCLE)


def began(row: Delivery, now: Now) -> int:
    """The stamp since which the row waits: of its acceptance or, if that is later, of its coming due."""
    return waits_since(row.created_at, row.accepted, row.not_before, row.due, now)


def waits_since(created_at: int, accepted: int, not_before: int, due: int, now: Now) -> int:
    """As `began`. A date that was asked for came by the clock as it is set now."""
    if due:
        return now.known(due, not_before)
    since = now.known(accepted, created_at)
    if not_before <= created_at:
        return since
    asked = now.stamp_of(not_before)
    return max(asked, since) if since > 0 else asked  # asked may be before this boot, if the clock was set on


def due_in_this_boot(due: int, not_before: int, now: Now) -> int:
    """The end of a pause. One of an earlier boot goes on by its date, but not longer than any pause is."""
    if not due or now.of_this_boot(due):
        return due
    return now.in_(min(max(0, not_before - now.date), BACKOFF_MS[1]))


def queued(row: Delivery, now: Now) -> Row:
    """The row, for the backlog."""
    due = due_in_this_boot(row.due, row.not_before, now)
    return replace(row.row, due=due, since=began(row, now))


def paused(row: Row, pause_ms: int, now: Now) -> Row:
    """The row, to be offered again after a pause."""
    return replace(row, not_before=now.date + pause_ms, due=now.in_(pause_ms), since=0)


@dataclass(frozen=True)
class LeftBehind:
    """The host as an earlier guard left it, with the turns that ran then: what its rows waited for."""

    host: HostView
    minds: Mapping[str, MindView]

    def hold(self, row: Row) -> Hold | None:
        """Why a row that was queued then had to wait; None if nothing held it but that the guard was away."""
        if row.mind not in self.minds:
            return Hold(Reason.UNKNOWN_MIND, f"the configuration has no mind {row.mind}")
        verdict = decide(self.host, self.minds[row.mind], row.as_if_due(), Now(0))
        return verdict if isinstance(verdict, Hold) else None


class Expiries:
    """The rows that expire. Entries of those that have ended are dropped when they come up."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Row]] = {}  # when, by row
        self._dates: list[tuple[int, int]] = []  # (date, row)
        self._stamps: list[tuple[int, int]] = []  # (stamp, row)

    def note(self, row: Delivery, now: Now) -> None:
        """The row expires, if it has a time for that."""
        if row.expires_at and row.kind in _SPANS and now.of_this_boot(row.accepted):
            self._add(self._stamps, row.accepted + row.expires_at - row.created_at, row)
        elif row.expires_at:
            self._add(self._dates, row.expires_at, row)

    def _add(self, heap: list[tuple[int, int]], when: int, row: Delivery) -> None:
        self._rows[row.id] = (when, row.row)
        heapq.heappush(heap, (when, row.id))

    def forget(self, id_: int) -> None:
        """The row has ended."""
        self._rows.pop(id_, None)

    def expired(self, now: Now, spared: Collection[int]) -> list[Row]:
        """The rows that have expired, without those that are spared, which come again."""
        found, later = [], []
        for heap, time in ((self._dates, now.date), (self._stamps, now.stamp)):
            while heap and heap[0][0] <= time:
                entry = heapq.heappop(heap)
                when, row = self._rows.get(entry[1], (0, None))
                if row is None or when != entry[0]:
                    continue  # it has ended since, and may have been retried
                if row.id in spared:
                    later.append((heap, entry))
                else:
                    found.append(row)
        for heap, entry in later:
            heapq.heappush(heap, entry)
        return found

    def next_in(self, now: Now) -> int | None:
        """Ms until the next row expires; None if none does."""
        dates = [self._dates[0][0] - now.date] if self._dates else []
        stamps = [now.until(self._stamps[0][0])] if self._stamps else []
        return min(dates + stamps, default=None)
