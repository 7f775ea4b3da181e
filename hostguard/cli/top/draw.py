"""The screen of `hostguard top`, as lines of styled text. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from hostguard.cli.top.keys import HELP, Mode, Ui, chosen
from hostguard.cli.top.model import MindRow, TurnRow, View
from hostguard.core.text import columns, cut, safe, table
from hostguard.telemetry.problems import BAD, WARN

Line = list[tuple[str, str]]  # (text, style), from left to right; styles: "", bad, warn, title, head, chosen

KEYS = "q quit  s stop  p pause  P pause all  + - cap  / filter  h help"
MARKS, STYLES = ("  ", "! ", "!!"), ("", "warn", "bad")
NEWS_MAX = 6
# Heads are as wide as their cells may become: no column moves because a number grew.
TURN_HEAD = (
    "  TURN", "MIND", "SESSION", "STATE  ", "AGE  ", "CPU%", "CPU  ", "RD/s", "WR/s", "READ", "WROTE",
)  # fmt: skip
MIND_HEAD = ("  MIND", "STATE", "TURNS", "HELD", "OLDEST", "WHY")
# Columns that a narrow terminal does without, in this order.
DROPPED = (
    "READ", "CPU  ", "RD/s", "SESSION", "CPU%", "STATE  ", "WROTE", "AGE  ", "STATE", "TURNS", "OLDEST",
)  # fmt: skip
NAME_MIN = 10  # columns: a longer text is cut to this before a column is dropped
LEVEL_STYLES = {"strained": "warn", "stalled": "bad"}


Ink = Mapping[str, str]  # the character of each level in the history line
UNICODE: Ink = {"": " ", "calm": "▁", "strained": "▄", "stalled": "█"}
ASCII: Ink = {"": " ", "calm": ".", "strained": "=", "stalled": "#"}


def screen(view: View, ui: Ui, width: int | None, height: int | None, ink: Ink) -> list[Line]:
    """The whole screen in at most `width` columns and `height` lines; None means unlimited.

    Without a height the screen is for a pipe or file: no row is chosen and there are no keys.
    """
    if ui.mode is Mode.HELP:
        lines = _help()
    else:
        lines = _above(view, ui, ink)
        room = None if height is None else height - len(lines) - 1
        lines += _tables(view, ui, None if width is None else width - 1, room)
    if height is not None:
        lines = lines[: height - 1]
        lines += [[] for _ in range(height - 1 - len(lines))]
        lines.append(_bottom(view, ui))
    return lines if width is None else [_fit(line, width) for line in lines]


def failed(shown: list[Line], text: str, width: int) -> list[Line]:
    """The last screen with an error in place of its first line."""
    return [_fit([(f"!! {safe(text)}", "bad")], width), *shown[1:]]


def plain(lines: Iterable[Line]) -> str:
    """The text of the lines."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _above(view: View, ui: Ui, ink: Ink) -> list[Line]:
    clock = time.strftime("%H:%M:%S", time.localtime(view.at / 1000))
    lines: list[Line] = [[(f"hostguard  {clock}  {view.summary}", "title")]]
    for bad, about, said in view.news[:NEWS_MAX]:
        if bad or about != "disk":  # a calm disk is on the device line below
            lines.append([(f"{MARKS[bad]} {about:<9}{safe(said)}", STYLES[bad])])
    lines.append([(f"   {'device':<9}{safe(view.device)}", "")])
    if any(turn.counted == "processes" for turn in view.turns):
        lines.append([(f"   {'bytes':<9}of live processes only: this kernel does not count by scope", "")])
    lines.append([(f"   {'level':<9}", ""), *_history(view.levels, ink)])
    return lines


def _history(levels: Sequence[str], ink: Ink) -> Line:
    spans: Line = []
    for level in levels:
        style = LEVEL_STYLES.get(level, "")
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + ink[level], style)
        else:
            spans.append((ink[level], style))
    return [*spans, (f" {2 * len(levels) // 60} min", "")]


def _tables(view: View, ui: Ui, width: int | None, room: int | None) -> list[Line]:
    row = None if room is None else chosen(ui, view)
    turns, minds = len(view.turns), len(view.minds)
    if room is not None:
        room = max(room - 4, 2)  # two heads, and a line before each
        few = min(minds, max(room // 2, room - turns))
        turns, minds = min(turns, room - few), min(few, room)
    lines: list[Line] = [[]]
    if view.turns:
        cells = [_turn(turn, turn is row) for turn in view.turns]
        lines += _rows(TURN_HEAD, cells, row, view.turns, turns, width)
    else:
        none = f"no running turn matches {safe(ui.wanted)!r}" if ui.wanted else "no turn is running"
        lines.append([(f"  {none}", "head")])
    if view.minds:
        cells = [_mind(mind, mind is row) for mind in view.minds]
        lines += [[], *_rows(MIND_HEAD, cells, row, view.minds, minds, width)]
    if view.idle and not ui.wanted:
        are = "mind is" if view.idle == 1 else "minds are"
        lines.append([(f"  {view.idle} more {are} idle or asleep", "")])
    return lines


def _rows(
    head: Sequence[str],
    cells: list[Sequence[object]],
    row: TurnRow | MindRow | None,  # the chosen one
    rows: Sequence[TurnRow | MindRow],
    count: int,
    width: int | None,
) -> list[Line]:
    """A table of `count` of the rows, the chosen one among them."""
    at = next((index for index, one in enumerate(rows) if one is row), 0)
    first = min(max(0, at - count + 1), max(0, len(rows) - count))
    title, *lines = table(*_fitting(head, cells[first : first + count], width), width).splitlines()
    more = len(rows) - count
    title = f"{title}  ({more} more)" if more > 0 else title
    styles = ["chosen" if one is row else "" for one in rows[first : first + count]]
    return [[(title, "head")], *([pair] for pair in zip(lines, styles, strict=True))]


def _fitting(
    head: Sequence[str], rows: list[Sequence[object]], width: int | None
) -> tuple[Sequence[str], list[Sequence[object]]]:
    """The head and the rows without the DROPPED columns for which there is no room."""
    least = [max(columns(safe(row[n])) for row in (head, *rows)) for n in range(len(head))]
    kept = list(range(len(head)))
    for name in DROPPED:
        if width is None or sum(min(least[n], NAME_MIN) + 2 for n in kept) - 2 <= width:
            break
        kept = [n for n in kept if head[n] != name]
    return [head[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _turn(turn: TurnRow, is_chosen: bool) -> Sequence[object]:
    return (
        _mark(is_chosen) + safe(turn.id or turn.unit), turn.mind or "-", turn.session or "-", turn.state,
        _time(turn.age_s),
        "-" if turn.cpu_percent is None else f"{turn.cpu_percent:.0f}",
        "-" if turn.cpu_ms is None else _time(turn.cpu_ms / 1000),
        _bytes(turn.read_rate), _bytes(turn.write_rate), _bytes(turn.read_bytes), _bytes(turn.write_bytes),
    )  # fmt: skip


def _mind(mind: MindRow, is_chosen: bool) -> Sequence[object]:
    name = _mark(is_chosen) + safe(mind.name)
    return name, mind.state, f"{mind.live}/{mind.cap}", mind.held, mind.oldest, mind.why


def _mark(is_chosen: bool) -> str:
    return "> " if is_chosen else "  "


def _bytes(count: float | None) -> str:
    """At most four characters: 6.0M, 64M, 900K."""
    if count is None:
        return "-"
    for unit in "BKMGT":
        if count < 999.5 or unit == "T":
            break
        count /= 1024
    return f"{count:.1f}{unit}" if count < 9.95 and unit != "B" else f"{count:.0f}{unit}"


def _time(seconds: float) -> str:
    """At most five characters: 1.5s, 1:05, 59:59, 23h59, 6d23h."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours < 24 else f"{hours // 24}d{hours % 24}h"


def _help() -> list[Line]:
    wide = max(len(keys) for keys, _ in HELP)
    rows: list[Line] = [[(f"  {keys:<{wide}}  {text}", "")] for keys, text in HELP]
    return [[("hostguard top", "title")], [], *rows, [], [("  press any key to go back", "")]]


def _bottom(view: View, ui: Ui) -> Line:
    if ui.mode is Mode.FILTER:
        return [(f"show only: {safe(ui.wanted)}_   Enter keeps it, Esc shows all", "title")]
    if ui.mode is Mode.STOP:
        row = chosen(ui, view)
        what = f"{row.id} of {row.mind}" if isinstance(row, TurnRow) else "it"
        return [(f"stop {safe(what)}? y/n", "warn")]
    if ui.message:
        return [(safe(ui.message), "warn")]
    return [(f"[{safe(ui.wanted)}] {KEYS}" if ui.wanted else KEYS, "")]


def _fit(line: Line, width: int) -> Line:
    """Cut to one column less than `width`: writing the last cell may scroll the terminal."""
    room, fitted = width - 1, []
    for text, style in line:
        if columns(text) > room:
            text = cut(text, room) if room > 0 else ""
        if text:
            fitted.append((text, style))
        room -= columns(text)
    return fitted


assert len(STYLES) == 1 + max(WARN, BAD)
