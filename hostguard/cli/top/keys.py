"""The keys of `hostguard top` and their effects. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from hostguard.cli.top.model import MindRow, TurnRow, View

HELP = (
    ("up, down, k, j", "choose a turn or a mind"),
    ("s", "stop the chosen turn"),
    ("p", "pause or resume the chosen mind; running turns continue"),
    ("P", "pause or resume all minds"),
    ("+, -", "raise or lower the global cap until the next boot; no turn is stopped"),
    ("/", "show only names that contain the text; Esc shows all"),
    ("h, ?", "this help"),
    ("q", "quit"),
)
# An unknown escape sequence is ignored as a whole: a "P" in it must not pause all minds.
_CODE = re.compile(r"\x1b[\[O][0-9;]*([A-Za-z~]?)|.", re.DOTALL)
_ARROWS = {"A": "up", "B": "down"}
_NAMES = {"\x1b": "esc", "\r": "enter", "\n": "enter", "\x7f": "back", "\x08": "back"}


class Mode(StrEnum):
    """What keys act on."""

    LIST = "list"
    FILTER = "filter"  # the text that is being typed
    STOP = "stop"  # the question, y or n
    HELP = "help"


@dataclass(frozen=True, slots=True)
class Ui:
    """The state that keys change. `chosen` is a unit, or "@" and a mind; `message` answers the last key."""

    mode: Mode = Mode.LIST
    wanted: str = ""
    chosen: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to the daemon; `done` is the message after it succeeded."""

    method: str
    path: tuple[str, ...]  # segments, not yet quoted
    body: dict[str, object] | None
    done: str


class Quit:
    """The command ends."""


def names(typed: str) -> list[str]:
    """The keys in the characters that a terminal sent."""
    found = []
    for match in _CODE.finditer(typed):
        text, arrow = match[0], match[1]
        found.append(_NAMES.get(text, text) if arrow is None else _ARROWS.get(arrow, ""))
    return list(filter(None, found))


def places(view: View) -> list[str]:
    """The values of `Ui.chosen` for all rows, in screen order."""
    return [turn.unit for turn in view.turns] + [f"@{mind.name}" for mind in view.minds]


def chosen(ui: Ui, view: View) -> TurnRow | MindRow | None:
    """The chosen row, or the first if that one is gone."""
    rows: list[TurnRow | MindRow] = [*view.turns, *view.minds]
    by_place = dict(zip(places(view), rows, strict=True))
    return by_place.get(ui.chosen or "") or next(iter(rows), None)


def press(ui: Ui, key: str, view: View) -> tuple[Ui, Ask | Quit | None]:
    """The effect of a key: the new state, and what to do."""
    ui = replace(ui, message="")
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
            return replace(ui, message="choose a turn with the arrow keys first"), None
        if row.id is None:
            return replace(ui, message=f"not started by hostguard: systemctl stop {row.unit}"), None
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
    if row is None or row.id is None:  # it has ended
        return None
    return Ask("POST", ("turns", row.id, "stop"), None, f"stopping {row.id} of {row.mind}")


def _pause(mind: str | None, on: bool) -> Ask:
    who = "all minds" if mind is None else mind
    done = f"{who} paused; running turns continue" if on else f"{who} resumed"
    return Ask("POST", ("pause" if on else "resume",), {"mind": mind}, done)


def _cap(ui: Ui, view: View, by: int) -> tuple[Ui, Ask | None]:
    """Raise or lower the cap by one. If there is none, the first step down sets it to the live turns."""
    if view.cap is None and by > 0:
        return replace(ui, message="there is no global cap to raise"), None
    cap = max(view.live, 1) if view.cap is None else view.cap + by
    if cap < 1:
        return replace(ui, message="not below 1; P pauses all minds"), None
    body: dict[str, object] = {
        "name": "global_concurrent_turns", "mind": None, "value": cap, "runtime": True,
    }  # fmt: skip
    return ui, Ask("PATCH", ("limits",), body, f"the global cap is {cap} now, until the next boot")
