"""Summarizes a span of time, cut into equal steps, from what is stored, in memory and live. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hostguard.telemetry.timeline import LEVELS, Incident, Point, steps
from hostguard.telemetry.timeline_rows import Ended

Json = dict[str, Any]

STEPS_MAX = 168  # a week of hours; as many as a phone can show
_MINUTE, _DAY = 60_000, 86_400_000
WIDTHS = (10_000, 30_000, *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)), _DAY)
SPAN_MAX = 35 * _DAY  # as long as anything is stored: see timeline_rows.py
USED = ("cpu_ms", "read_bytes", "write_bytes")
SERIES = 7  # minds with a series of their own: more colours are hard to distinguish


@dataclass
class _Mind:
    turns: int = 0
    failed: int = 0
    held: list[int] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    run_ms: int = 0
    cpu_ms: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    busy: list[float] = field(default_factory=list)  # turns at a time in each step

    def use(self, amounts: Mapping[str, Any]) -> None:
        """Add the known usage of a turn."""
        for name in USED:
            if (amount := amounts[name]) is not None:
                setattr(self, name, (getattr(self, name) or 0) + amount)


def width_of(span_ms: int) -> int:
    """The width of a step in ms: the least in WIDTHS with at most STEPS_MAX steps."""
    return next((width for width in WIDTHS if span_ms <= width * STEPS_MAX), WIDTHS[-1])


def begin_of(now: int, span_ms: int) -> int:
    """The beginning of the first step, in ms since the epoch."""
    width = width_of(span_ms)
    return (now - span_ms) // width * width


def make(
    status: Json,
    ended: Iterable[Ended],
    points: Sequence[Point],
    incidents: Sequence[Incident],
    now: int,
    span_ms: int,
    complete: bool = True,
) -> Json:
    """The report as hostguard-api(7) has it. `status` is that of now, with the live turns."""
    begin, width = begin_of(now, span_ms), width_of(span_ms)
    count = (now - begin) // width + 1
    minds: dict[str, _Mind] = {}

    def mind(name: str) -> _Mind:
        return minds.setdefault(name, _Mind(busy=[0.0] * count))

    for row in ended:
        one = mind(row.mind)
        if row.held_ms is not None:
            one.held.append(row.held_ms)
        if row.held_for is not None:
            one.reasons[row.held_for] += 1
        if row.starts:
            one.turns += 1
            one.failed += row.failed
            one.use(row._asdict())
            if row.run_ms is not None:
                _run(one, row.ended_at - row.run_ms, row.ended_at, begin, width)
    for turn in status["live"]:
        one = mind(turn["mind"])
        one.turns += 1
        one.held.append(turn["held_ms"])
        one.use(turn)
        _run(one, now - turn["ran_ms"], now, begin, width)
    seen = steps(points, begin, width, count)
    ranked = sorted(minds.items(), key=lambda item: (-item[1].run_ms, item[0]))  # the busiest first
    return {
        "from": begin,
        "to": now,
        "span_ms": span_ms,
        "step_ms": width,
        "complete": complete,
        "status": status,
        "minds": [_shown(name, one) for name, one in ranked],
        "turns": _series(ranked),
        "known": [step is not None for step in seen],  # if true, a cap of null means no limit
        "level": [LEVELS[step.level] if step else None for step in seen],
        "cap": [step.cap if step else None for step in seen],
        "held": [step.held if step else None for step in seen],
        "await_ms": [step.await_ms if step else None for step in seen],
        "incidents": [{**asdict(one), "level": LEVELS[one.level]} for one in reversed(incidents)],
    }


def _run(mind: _Mind, start: int, end: int, begin: int, width: int) -> None:
    start = max(start, begin)
    mind.run_ms += max(0, end - start)
    at, last = (start - begin) // width, len(mind.busy) - 1
    while start < end and at <= last:
        until = min(end, begin + (at + 1) * width)
        mind.busy[at] += (until - start) / width
        start, at = until, at + 1


def _shown(name: str, mind: _Mind) -> Json:
    held = sorted(mind.held)
    return {
        "name": name,
        **{key: getattr(mind, key) for key in ("turns", "failed", "run_ms", *USED)},
        "held_p50_ms": quantile(held, 0.5),
        "held_p95_ms": quantile(held, 0.95),
        "held_for": mind.reasons.most_common(1)[0][0] if mind.reasons else None,
    }


def quantile(ordered: Sequence[int], share: float) -> int | None:
    """The quantile by nearest rank; None of no values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _series(ranked: Sequence[tuple[str, _Mind]]) -> list[Json]:
    rest = [one.busy for _, one in ranked[SERIES:]]
    series: list[Json] = [{"mind": name, "busy": _rounded(one.busy)} for name, one in ranked[:SERIES]]
    if rest:
        series.append({"mind": None, "busy": _rounded(map(sum, zip(*rest, strict=True)))})
    return series


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 3) for value in values]
