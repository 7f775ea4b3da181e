"""What the keys of `hostguard top` do. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from hostguard.cli.top.model import MindRow, TurnRow, View

HELP = (
    ("up, down, k, j", "choose a turn or a mind"),
    ("s", "stop the chosen turn"),
    ("p", "pause the chosen mind, or let it go on: what runs goes on"),
    ("P", "pause all minds, or let them go on"),
    ("+, -", "raise or lower the global cap, until the next boot: no turn is stopped"),
    ("/", "show only what has this in its name; Esc: all"),
    ("h, ?", "this help"),
    ("q", "quit"),
)
_SEQUENCES = {b"A": "up", b"B": "down"}
_KEY = re.compile(rb"\x1b[\[O][0-9;]*([A-Za-z~])|[\xc2-\xf4][\x80-\xbf]+|.", re.DOTALL)
_NAMES = {b"\x1b": "esc", b"\r": "enter", b"\n": "enter", b"\x7f": "back", b"\x08": "back"}


class Mode(StrEnum):
    """What keys go to."""

    LIST = "list"
    FILTER = "filter"  # being typed
    STOP = "stop"  # y or n
    HELP = "help"


@dataclass(frozen=True, slots=True)
class Ui:
    """What the person did. `chosen` is a unit, or "@" and a mind; `said` is the answer to the last key."""

    mode: Mode = Mode.LIST
    wanted: str = ""
    chosen: str | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to the daemon; `done` is said once it was answered."""

    method: str
    path: tuple[str, ...]  # its segments, not quoted yet
    body: dict[str, object] | None
    done: str


class Quit:
    """The person is done."""


def names(raw: bytes) -> tuple[list[str], bytes]:
    """The keys in what the terminal sent, and the rest, which may be the beginning of one."""
    rest = b""
    if (begun := re.search(rb"\x1b([\[O][0-9;]*)?$", raw)) is not None:
        raw, rest = raw[: begun.start()], begun[0]
    found: list[str] = []
    for match in _KEY.finditer(raw):
        text = match[0]
        if match[1] is not None:
            found += filter(None, [_SEQUENCES.get(match[1])])
        else:
            found.append(_NAMES.get(text, text.decode(errors="replace")))
    return found, rest


def places(view: View) -> list[str]:
    """What can be chosen, in its order on the screen."""
    return [turn.unit for turn in view.turns] + [f"@{mind.name}" for mind in view.minds]


def chosen(ui: Ui, view: View) -> TurnRow | MindRow | None:
    """The row that is chosen, the first if that has gone."""
    rows: list[TurnRow | MindRow] = [*view.turns, *view.minds]
    by_place = dict(zip(places(view), rows, strict=True))
    return by_place.get(ui.chosen or "") or next(iter(rows), None)


def press(ui: Ui, key: str, view: View) -> tuple[Ui, Ask | Quit | None]:
    """What a key does: the new state, and what is to be done."""
    ui = replace(ui, said="")
    if ui.mode is Mode.FILTER:
        return _typed(ui, key), None
    if ui.mode is Mode.HELP:
        return replace(ui, mode=Mode.LIST), Quit() if key == "q" else None
    if ui.mode is Mode.STOP:
        ask = _stop(ui, view) if key in ("y", "Y") else None
        return replace(ui, mode=Mode.LIST), ask
    if key in ("q", "Q"):
        return ui, Quit()
    if key in ("h", "?"):
        return replace(ui, mode=Mode.HELP), None
    if key == "/":
        return replace(ui, mode=Mode.FILTER), None
    if key == "esc":
        return replace(ui, wanted=""), None
    return _on_list(ui, key, view)


def _on_list(ui: Ui, key: str, view: View) -> tuple[Ui, Ask | None]:
    row = chosen(ui, view)
    if key in ("up", "down", "j", "k"):
        return _moved(ui, view, 1 if key in ("down", "j") else -1), None
    if key == "s":
        if not isinstance(row, TurnRow):
            return replace(ui, said="choose a turn to stop, with the arrows"), None
        if row.id is None:
            return replace(ui, said=f"not a turn of the guard's: systemctl stop {row.unit}"), None
        return replace(ui, mode=Mode.STOP, chosen=row.unit), None
    if key == "p" and row is not None:
        mind = row.mind if isinstance(row, TurnRow) else row.name
        return ui, _pause(mind, mind not in view.paused_minds)
    if key == "P":
        return ui, _pause(None, not view.paused)
    if key in ("+", "=", "-"):
        return _cap(ui, view, -1 if key == "-" else 1)
    return ui, None


def _moved(ui: Ui, view: View, by: int) -> Ui:
    order = places(view)
    if not order:
        return ui
    at = order.index(ui.chosen) if ui.chosen in order else 0
    return replace(ui, chosen=order[min(max(at + by, 0), len(order) - 1)])


def _typed(ui: Ui, key: str) -> Ui:
    if key == "esc":
        return replace(ui, mode=Mode.LIST, wanted="")
    if key == "enter":
        return replace(ui, mode=Mode.LIST)
    if key == "back":
        return replace(ui, wanted=ui.wanted[:-1])
    return replace(ui, wanted=ui.wanted + key) if len(key) == 1 and key.isprintable() else ui


def _stop(ui: Ui, view: View) -> Ask | None:
    row = next((turn for turn in view.turns if turn.unit == ui.chosen), None)
    if row is None or row.id is None:  # it has ended meanwhile
        return None
    return Ask("POST", ("turns", row.id, "stop"), None, f"{row.id} of {row.mind} is being stopped")


def _pause(mind: str | None, on: bool) -> Ask:
    who = "all minds" if mind is None else mind
    done = f"{who} paused: what runs goes on" if on else f"{who} resumed"
    return Ask("POST", ("pause" if on else "resume",), {"mind": mind}, done)


def _cap(ui: Ui, view: View, by: int) -> tuple[Ui, Ask | None]:
    """One more or less. Without a cap the first step down is to what runs now."""
    if view.cap is None and by > 0:
        return replace(ui, said="there is no global cap to raise"), None
    cap = max(view.live, 1) if view.cap is None else view.cap + by
    if cap < 1:
        return replace(ui, said="not below 1; P pauses all minds"), None
    body: dict[str, object] = {
        "name": "global_concurrent_turns", "mind": None, "value": cap, "runtime": True,
    }  # fmt: skip
    return ui, Ask("PATCH", ("limits",), body, f"the global cap is {cap} now, until the next boot")
