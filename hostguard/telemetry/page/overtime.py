"""The charts over time with their labels, and their data as a table. Pure."""

from __future__ import annotations

import math
import time
from html import escape
from typing import Any

from hostguard.core.text import duration, safe
from hostguard.telemetry.page import charts

MINUTE_MS, DAY_MS = 60_000, 86_400_000
QUICK_MS = 1.0  # at the bottom of the chart of the disk, whose scale is logarithmic


def over_time(report: Any) -> str:
    """All charts, with the same time axis."""
    step = duration(report["step_ms"] / 1000)
    names = ", ".join(map(safe, _names(report))) or "none"
    title = f"Turns at a time over the last {duration(report['span_ms'] / 1000)}, of these minds: {names}."
    chart, top = charts.turns(report, lambda at: _described(report, at), title)
    held = [value or 0 for value in report["held"]]
    waits = [value or 0 for value in report["await_ms"]]
    most, slowest = max(held, default=0), max(10.0, *waits) if waits else 10.0
    parts = [
        '<h2 id="time-title">Over time</h2>',
        _figure(
            f"<b>Turns at a time</b>, by mind; the line is how many could run. A step is {step}.",
            chart, (f"{top:.0f}", "0"), _times(report),
        ),
        _keys(report),
        _figure(
            "<b>Pressure</b>: half high is strained, full is stalled.",
            charts.levels(report, _pressure(report)), ("", ""), "",
        ),
        _figure(
            "<b>Messages held</b>, the most of each step.",
            charts.bars("held", held, lambda value: value / max(most, 1), f"Messages held, at most {most}."),
            (str(most), "0"), "",
        ),
        _figure(
            "<b>Disk</b>: time per request, the longest of each step; logarithmic.",
            charts.bars(
                "await", waits, lambda value: max(0.02, _log(value) / _log(slowest)),
                f"A request of the disk took up to {_ms(slowest)}.",
            ),
            (_ms(slowest), _ms(QUICK_MS)), _times(report),
        ),
        _table(report),
    ]  # fmt: skip
    return "\n".join(parts)


def _log(value: float) -> float:
    return math.log10(max(value, QUICK_MS) / QUICK_MS)


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.3g} s"


def _figure(caption: str, chart: str, scale: tuple[str, str], times: str) -> str:
    labels = "".join(f"<span>{label}</span>" for label in scale)
    return (
        f'<figure><figcaption>{caption}</figcaption><div class="scale" aria-hidden="true">{labels}</div>'
        f"{chart}{times}</figure>"
    )


def _clock(report: Any, at: int) -> str:
    """The beginning of a step, as short as the span allows."""
    seconds = ":%S" if report["step_ms"] < MINUTE_MS else ""
    pattern = f"%H:%M{seconds}" if report["span_ms"] <= 1.5 * DAY_MS else "%a %d, %H:%M"
    return time.strftime(pattern, time.localtime((report["from"] + at * report["step_ms"]) / 1000))


def _times(report: Any) -> str:
    count = len(report["held"])
    labels = [*(_clock(report, round(count * part / 4)) for part in range(4)), "now"]
    spans = "".join(
        f"<span{' class=some' if part % 2 else ''}>{escape(label)}</span>"
        for part, label in enumerate(labels)
    )
    return f'<div class="times" aria-hidden="true">{spans}</div>'


def _names(report: Any) -> list[str]:
    return [series["mind"] if series["mind"] is not None else "all others" for series in report["turns"]]


def _keys(report: Any) -> str:
    items = "".join(
        f'<li data-key="{at}"><svg aria-hidden="true" viewBox="0 0 1 1">'
        f'<rect class="m{at}" width="1" height="1"/>'
        f"</svg><span>{charts.html(name)}</span></li>"
        for at, name in enumerate(_names(report))
    )
    return f'<ul class="keys" aria-label="Minds in the chart">{items}</ul>'


def _pressure(report: Any) -> str:
    levels = report["level"]
    counts = {level: levels.count(level) for level in ("strained", "stalled")}
    parts = [f"{level} in {count} of {len(levels)} steps" for level, count in counts.items() if count]
    return f"The disk was {' and '.join(parts)}." if parts else "The disk was calm all the time."


def _cells(report: Any, at: int) -> list[str]:
    """The cells of a step after those of its minds."""
    level, cap, held, took = (report[name][at] for name in ("level", "cap", "held", "await_ms"))
    if not report["known"][at]:
        return ["-"] * 4
    return [level, "any" if cap is None else str(cap), str(held), "-" if took is None else _ms(took)]


def _described(report: Any, at: int) -> str:
    level, cap, held, took = _cells(report, at)
    ran = [
        f"{safe(name)} {series['busy'][at]:.2g}"
        for name, series in zip(_names(report), report["turns"], strict=True)
        if series["busy"][at]
    ]
    return (
        f"{_clock(report, at)}: {', '.join(ran) or 'no turns'}; cap {cap}; {held} held; {level}; disk {took}"
    )


def _quiet(report: Any, at: int) -> bool:
    busy = any(series["busy"][at] for series in report["turns"])
    return not (busy or report["held"][at] or report["level"][at] not in (None, "calm"))


def _table(report: Any) -> str:
    heads = ["From", *(safe(name) for name in _names(report)), "Disk", "Cap", "Held", "Time per request"]
    rows = [
        [
            _clock(report, at),
            *(f"{series['busy'][at]:.2g}" if series["busy"][at] else "" for series in report["turns"]),
            *_cells(report, at),
        ]
        for at in range(len(report["held"]))
        if not _quiet(report, at)
    ]
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row" class="name">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in (map(escape, row) for row in rows)
    )
    return f"""<details id="steps"><summary>The charts as a table</summary>
<p class="faint" id="steps-told">Turns at a time of each mind; steps without any activity are left out.</p>
<div class="scroll" role="region" tabindex="0" aria-labelledby="time-title">
<table aria-labelledby="time-title" aria-describedby="steps-told">
<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div></details>"""
