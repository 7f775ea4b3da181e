"""The charts of the page, as SVG. Pure.

A step is 10 units wide, a chart 100 high; the page stretches charts to its width, so they contain no text
but titles. Labels are HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from hostguard.core.text import safe

STEP = 10
TALL = 100.0
OUT_OF_SIGHT = 4  # a cap this many times the most that ran is not drawn: it would flatten the rest
HEADROOM = 1.08  # so that a reached cap is visible
Text = Callable[[int], str]


def html(value: object) -> str:
    """Any text as HTML, with unprintable characters escaped."""
    return escape(safe(value))


def turns(report: Any, describe: Text, title: str) -> tuple[str, float]:
    """Turns at a time, stacked by mind, with the cap; and the value at the top of the chart."""
    busy = [series["busy"] for series in report["turns"]]
    sums = [sum(step) for step in zip(*busy, strict=True)] or [0.0] * len(report["cap"])
    most = max(1, math.ceil(max(sums, default=0)))
    caps = [cap if cap is not None and cap <= OUT_OF_SIGHT * most else None for cap in report["cap"]]
    full = HEADROOM * max(most, *(cap or 0 for cap in caps))
    below = [0.0] * len(sums)
    paths = []
    for at, values in enumerate(busy):
        boxes = [
            _box(i, below[i] / full, (below[i] + value) / full) for i, value in enumerate(values) if value > 0
        ]
        paths.append(f'<path data-key="{at}" class="m{at}" d="{"".join(boxes)}"/>')
        below = [low + value for low, value in zip(below, values, strict=True)]
    line = _line([None if cap is None else 1 - cap / full for cap in caps])
    hover = [
        f'<rect class="hover" x="{STEP * i}" width="{STEP}" height="100"><title>{escape(describe(i))}</title>'
        "</rect>"
        for i in range(len(sums))
    ]
    body = "".join(paths) + f'<path class="cap" d="{line}"/>' + "".join(hover)
    return _svg("turns", "tall", len(sums), title, body), full


def levels(report: Any, title: str) -> str:
    """A strip: half high where the disk was strained, full where it was stalled."""
    boxes = {"strained": "", "stalled": ""}
    for i, level in enumerate(report["level"]):
        if level in boxes:
            boxes[level] += _box(i, 0, 0.5 if level == "strained" else 1)
    body = "".join(f'<path class="{level}" d="{path}"/>' for level, path in boxes.items())
    return _svg("levels", "strip", len(report["level"]), title, body)


def bars(name: str, values: Sequence[int | None], height: Callable[[int], float], title: str) -> str:
    """A bar for each value but 0, of a `height` from 0 to 1."""
    path = "".join(_box(i, 0, height(value)) for i, value in enumerate(values) if value)
    return _svg(name, "low", len(values), title, f'<path class="{name}" d="{path}"/>')


def _svg(name: str, size: str, count: int, title: str, body: str) -> str:
    return (
        f'<svg id="{name}" class="{size}" role="img" aria-labelledby="{name}-title"'
        f' viewBox="0 0 {STEP * count} 100" preserveAspectRatio="none" shape-rendering="crispEdges">'
        f'<title id="{name}-title">{escape(title)}</title>{body}</svg>'
    )


def _box(step: int, low: float, high: float) -> str:
    top, bottom = TALL * (1 - high), TALL * (1 - low)
    return f"M{STEP * step} {top:.1f}h{STEP}V{bottom:.1f}h-{STEP}z"


def _line(heights: Sequence[float | None]) -> str:
    """A line of steps at these heights (0 is the top), with gaps for None."""
    parts: list[str] = []
    before: float | None = None
    for i, height in enumerate(heights):
        if height is not None:
            y = f"{TALL * height:.1f}"
            parts.append(f"M{STEP * i} {y}" if before is None else f"V{y}")
            parts.append(f"H{STEP * (i + 1)}")
        before = height
    return "".join(parts)
