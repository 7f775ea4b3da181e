"""The state of the host over time: cap, pressure, running and waiting turns, the disk, incidents. Pure.

A Point is the worst of some seconds, and holds until the next: while nothing changes there is none. Turns,
with their waits and usage, are in the database anyway; see timeline_rows.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

from hostguard.core.settings import Level

GRAIN = 10_000  # ms: of a point
POINTS_KEPT = 2160  # in memory, some 200 bytes each: six hours of work without a pause
INCIDENTS_KEPT = 100
APART_MS = 60_000  # trouble that returns sooner belongs to the same incident
LEVELS = tuple(Level)  # from calm to stalled: a rank is an index of this


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation, or the worst of several. `cap`: how many turns may run; None = no limit."""

    level: int = 0  # rank in LEVELS
    cap: int | None = None
    turns: int = 0
    held: int = 0
    await_ms: int | None = None  # that a request of the disk took; None: there was none

    def worst(self, other: Seen) -> Seen:
        """The worst of both, value by value."""
        return Seen(
            max(self.level, other.level),
            min((cap for cap in (self.cap, other.cap) if cap is not None), default=None),
            max(self.turns, other.turns),
            max(self.held, other.held),
            max((ms for ms in (self.await_ms, other.await_ms) if ms is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class Point:
    """The state from `at` (ms since the epoch) on. `first`: the guard has just started."""

    at: int
    seen: Seen
    first: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """The details of an incident, as of now. `evidence` is "" once the disk is well again."""

    evidence: str
    configured: int | None  # cap
    frozen: int = 0  # turns
    tightened: int | None = None  # bytes/s that all turns may write together


@dataclass(frozen=True, slots=True)
class Incident:
    """The disk was not calm from `at` to `until` (ms since the epoch; None: until now), and what was done.

    `level` and `evidence` are those of its worst moment; `cap` is the lowest, `frozen` the most at a time.
    """

    at: int
    until: int | None
    level: int
    evidence: str
    cap: int | None
    configured: int | None
    frozen: int
    tightened: int | None


class Timeline:
    """The points and incidents in memory, oldest first."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS_KEPT)
        self.incidents: deque[Incident] = deque(maxlen=INCIDENTS_KEPT)
        self._last = Seen()  # the last observation
        self._grain = 0  # of _last
        self._begun = False

    def known(self) -> list[Point]:
        """The points, and the state after the last of them."""
        points = list(self.points)
        if points and _lasting(points[-1].seen) != self._last:
            points.append(Point(self._grain + GRAIN, self._last))
        return points

    def note(self, now: int, seen: Seen, trouble: Trouble) -> None:
        """Note an observation at `now`, in ms since the epoch."""
        if seen == self._last and _grain(now) == self._grain and seen.level == 0:
            return  # as most are
        self._note_point(now, seen)
        self._note_incident(now, seen, trouble)
        self._last, self._grain = _lasting(seen), _grain(now)

    def move(self, ms: int, stored: int) -> None:
        """The clock was set by `ms`: correct the dates. What is stored, all before `stored`, is dropped.

        An incident is stored only once it is over.
        """
        points = [replace(one, at=one.at + ms) for one in self.points if one.at >= stored]
        self.points = deque(points, maxlen=POINTS_KEPT)
        self._grain = _grain(self._grain + ms)
        found = [
            replace(one, at=one.at + ms, until=None if one.until is None else one.until + ms)
            for one in self.incidents
            if one.until is None or one.until >= stored
        ]
        self.incidents = deque(found, maxlen=INCIDENTS_KEPT)

    def _note_point(self, at: int, seen: Seen) -> None:
        grain = _grain(at)
        while self.points and _grain(self.points[-1].at) > grain:
            self.points.pop()  # the clock was set back
        if not self._begun or not self.points:
            # Not at the start of the grain: the previous guard may have noted that one.
            self.points.append(Point(grain if self._begun else at, seen, first=not self._begun))
            self._begun = True
            return
        last = self.points[-1]
        if _grain(last.at) == grain:
            self.points[-1] = replace(last, seen=last.seen.worst(seen))
            return
        after = self.known()[-1]
        if last.at < after.at < grain:
            self.points.append(after)
            last = after
        # If this grain has no point yet, the state before it was as bad.
        now = (_lasting(last.seen) if self._grain == grain else self._last).worst(seen)
        if now.await_ms is not None or now != _lasting(last.seen):
            self.points.append(Point(grain, now))

    def _note_incident(self, now: int, seen: Seen, trouble: Trouble) -> None:
        known = self.incidents[-1] if self.incidents else None
        if known is not None and known.until is not None and not 0 <= now - known.until < APART_MS:
            known = None
        if seen.level == 0:
            if known is not None and known.until is None:
                self.incidents[-1] = replace(known, until=now)
            return
        if known is None:
            known = Incident(now, None, 0, "", None, trouble.configured, 0, None)
            self.incidents.append(known)
        worse = seen.level > known.level or (seen.level == known.level and trouble.evidence)
        level, evidence = max(known.level, seen.level), trouble.evidence if worse else known.evidence
        known = replace(known, until=None, level=level, evidence=evidence)
        cap, frozen = Seen(cap=known.cap).worst(seen).cap, max(known.frozen, trouble.frozen)
        tightened = known.tightened if trouble.tightened is None else trouble.tightened
        self.incidents[-1] = replace(known, cap=cap, frozen=frozen, tightened=tightened)


def _grain(at: int) -> int:
    return at - at % GRAIN


def _lasting(seen: Seen) -> Seen:
    return replace(seen, await_ms=None)


def coarse(points: Sequence[Point], width: int) -> Iterator[Point]:
    """One point for each `width` ms: the worst, and the state after it, if that is better."""
    group: list[Point] = []
    for point, after in pairwise([*points, None]):
        assert point is not None
        group.append(point)
        end = point.at - point.at % width + width
        if after is not None and after.at < end and not after.first:
            continue
        worst = reduce(Seen.worst, (one.seen for one in group))
        yield Point(group[0].at, worst, group[0].first)
        if _lasting(worst) != _lasting(point.seen) and (after is None or after.at > end):
            yield Point(end, _lasting(point.seen))
        group = []


def steps(points: Sequence[Point], begin: int, width: int, count: int) -> list[Seen | None]:
    """The worst of each of `count` spans of `width` ms from `begin` on; None if nothing is known.

    Points are in order of time. Between the last one before a start of the guard and that start nothing ran.
    """
    found: list[Seen | None] = []
    carried: Seen | None = None
    at = 0
    while at < len(points) and points[at].at < begin:
        carried = _lasting(points[at].seen)
        at += 1
    for end in range(begin + width, begin + width * count + 1, width):
        inside = []
        carry = carried
        if at < len(points) and points[at].first and carry is not None:
            carry = Seen(cap=carry.cap)
        if carry is not None and not (at < len(points) and points[at].at == end - width):
            inside.append(carry)
        while at < len(points) and points[at].at < end:
            inside.append(points[at].seen)
            carried = _lasting(points[at].seen)
            at += 1
        found.append(reduce(Seen.worst, inside) if inside else None)
    return found
