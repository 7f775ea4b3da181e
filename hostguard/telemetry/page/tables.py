"""The tables and lists of the page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hostguard.core.text import clock, duration, ms, size
from hostguard.telemetry.headlines import busy_minds, hold_text, reason_text, turn_state, turns, waits
from hostguard.telemetry.page.charts import html

WAITING_SHOWN = 8  # minds, so that what follows stays on the screen
Cell = tuple[str, float | None]  # its HTML, and the number by which it sorts


def running(live: Sequence[Any], steer: bool) -> str:
    """The live turns."""
    heads = ["Turn", "Mind", "Session", "State", "For", "CPU", "Read", "Written", *(["Act"] if steer else [])]
    rows = []
    for turn in live:
        cells = [
            (html(turn["id"] or turn["unit"]), None),
            (html(turn["mind"] or "-"), None),
            (html(turn["session"] or "-"), None),
            (html(turn_state(turn)), None),
            _number(turn["ran_ms"], ms),
            _number(turn["cpu_ms"], ms),
            _number(turn["read_bytes"], size),
            _number(turn["write_bytes"], size),
        ]
        if steer and turn["id"]:
            label = f"Stop turn {turn['id']} of {turn['mind']}"
            path = f"/v1/turns/{turn['id']}/stop"
            cells.append((
                f'<button type="button" id="stop-{html(turn["id"])}" data-post="{html(path)}"'
                f' aria-label="{html(label)}">Stop</button>', None,
            ))  # fmt: skip
        rows.append(cells)
    return _table("running", "Running turns", "The live turns, oldest first.", heads, rows)


def waiting(status: Any) -> str:
    """The minds whose messages wait, and why; the longest wait first."""
    held = [mind for mind in busy_minds(status) if mind.get("hold")]
    rows = [
        [
            (html(mind["name"]), None),
            (str(mind["held"]), float(mind["held"])),
            (html(waits(mind)), 0.0),
            (f'<span class="why">{html(hold_text(mind["hold"], mind["name"]))}</span>', None),
        ]
        for mind in held[:WAITING_SHOWN]
    ]
    caption = "Messages held, how long the first of them has waited, and why. None is lost."
    if len(held) > WAITING_SHOWN:
        caption += f" The first {WAITING_SHOWN} of {len(held)} minds; hostguard minds lists all."
    return _table("waiting", "Waiting messages", caption, ["Mind", "Held", "For", "Why"], rows)


def minds(rows: Sequence[Any]) -> str:
    """What each mind did in the span of the report."""
    heads = [
        "Mind", "Turns", "Failed", "Waited, median", "Waited, 95 %", "Ran", "CPU", "Read", "Written",
        "Most common reason",
    ]  # fmt: skip
    cells = [
        [
            (html(mind["name"] or "not configured"), None),
            _number(mind["turns"], str),
            _number(mind["failed"], str),
            _number(mind["held_p50_ms"], ms),
            _number(mind["held_p95_ms"], ms),
            _number(mind["run_ms"], ms),
            _number(mind["cpu_ms"], ms),
            _number(mind["read_bytes"], size),
            _number(mind["write_bytes"], size),
            (f'<span class="why">{html(_reason(mind["held_for"], mind["name"]))}</span>', None),
        ]
        for mind in rows
    ]
    caption = (
        "The busiest first. Failed: turns with another exit status than 0, and attempts that were tried"
        " again. “-”: unknown, as with hostguard run."
    )
    return _table("minds", "Minds", caption, heads, cells)


def _reason(reason: str | None, mind: str) -> str:
    return "-" if reason is None else reason_text(reason, mind)


def incidents(found: Sequence[Any], now: int) -> str:
    """When the disk was in trouble and what the guard did, the newest first."""
    title = '<h2 id="incidents-title">Incidents</h2>'
    if not found:
        return f"{title}\n<p>The disk was calm in this time.</p>"
    items = "".join(f'<li class="{html(one["level"])}">{_incident(one, now)}</li>' for one in found)
    return f'{title}\n<ol class="incidents" reversed aria-labelledby="incidents-title">{items}</ol>'


def _incident(one: Any, now: int) -> str:
    lasts = duration(max(0, (one["until"] or now) - one["at"]) / 1000)
    until = f"for {lasts}" if one["until"] is not None else f"for {lasts}, until now"
    did = "; ".join(_did(one)) or "no response was needed"
    return (
        f"<b>{html(clock(one['at']))}</b> The disk was {html(one['level'])} {until}:"
        f" {html(one['evidence'])}.<br>The guard's response: {html(did)}."
    )


def _did(one: Any) -> Iterable[str]:
    before = "all" if one["configured"] is None else one["configured"]
    if one["cap"] is not None and one["cap"] != one["configured"]:
        yield f"allowed {turns(one['cap'])} at a time, not {before}"
    if one["frozen"]:
        yield f"froze {one['frozen']} {'turn' if one['frozen'] == 1 else 'turns'} for a while"
    if one["tightened"]:
        yield f"let all turns together write no more than {size(one['tightened'])}/s"


def _number(value: Any, shown: Any) -> Cell:
    return ("-", -1.0) if value is None else (html(shown(value)), float(value))


def _table(name: str, title: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    numeric = [any(cell[i][1] is not None for cell in rows if i < len(cell)) for i in range(len(heads))]
    top = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{head}</th>'
        for head, right in zip(heads, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cell(i, cell) for i, cell in enumerate(row))}</tr>" for row in rows)
    return (
        f'<h2 id="{name}-title">{title}</h2>\n<p class="faint" id="{name}-told">{caption}</p>\n'
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}-title">'
        f'<table id="{name}" aria-labelledby="{name}-title" aria-describedby="{name}-told">'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(at: int, cell: Cell) -> str:
    shown, value = cell
    if at == 0:
        return f'<th scope="row" class="name">{shown}</th>'
    return f"<td>{shown}</td>" if value is None else f'<td class="n" data-v="{value:g}">{shown}</td>'
