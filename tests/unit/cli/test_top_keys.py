"""What keys do in `hostguard top`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statuses import stalled, status, turn
from top_seen import seen

from hostguard.cli.top.draw import ASCII, plain, screen
from hostguard.cli.top.keys import Ask, Mode, Quit, Ui, names, press


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1bOBj", ["up", "down", "j"]),
        ("\x1b[1;5A", ["up"]),
        ("\x1b[3~\x1b[1;2Px", ["x"]),
        ("a\x1b", ["a", "esc"]),
        ("a\x1b[", ["a"]),
        ("\x1b[1;", []),
        ("\x1bq", ["esc", "q"]),
        ("ü漢\r\x7f", ["ü", "漢", "enter", "back"]),
    ],
)
def test_what_a_terminal_sends(typed: str, keys: list[str]) -> None:
    assert names(typed) == keys


@settings(deadline=None)
@given(st.text(max_size=40) | st.text("\x1b[O;1AP~q", max_size=40))
def test_whatever_comes_is_keys(typed: str) -> None:
    ui = Ui()
    for key in names(typed):
        ui, _ = press(ui, key, seen())


def after(*keys: str, told: dict[str, Any] | None = None, ui: Ui | None = None) -> tuple[Ui, Any]:
    shown, asked = seen(told), None
    ui = ui or Ui()
    for key in keys:
        ui, asked = press(ui, key, shown)
    return ui, asked


def test_a_stop_asks_first() -> None:
    ui, asked = after("s")
    assert (ui.mode, asked) == (Mode.STOP, None)
    assert plain(screen(seen(), ui, 80, 24, ASCII)).endswith("stop 17 of ada? y/n")
    assert after("s", "y")[1] == Ask("POST", ("turns", "17", "stop"), None, "stopping 17 of ada")
    assert after("s", "n") == (Ui(chosen="hostguard-turn-ada-17.scope"), None)
    assert after("s", "q")[1] is None, "no key but y means yes, and none of them another thing"


def test_the_turn_that_is_stopped_is_the_one_that_was_asked_for() -> None:
    ui, _ = after("down", "s")
    gone = stalled()
    gone["live"] = gone["live"][:1]  # it ended while the person thought
    assert after("y", told=gone, ui=ui)[1] is None


def test_a_scope_of_somebody_elses_is_not_ours_to_stop() -> None:
    told = status(live=[turn(None, "ada", 5, state="foreign", unit="x.scope", delivery=None)])
    ui, asked = after("s", told=told)
    assert (asked, ui.message) == (None, "not started by hostguard: systemctl stop x.scope")


@pytest.mark.parametrize(
    ("keys", "path", "mind"),
    [
        (("p",), "pause", "ada"),
        (("down", "p"), "pause", "bob"),
        (("j", "j", "p"), "resume", "dave"),
        (("j",) * 3 + ("p",), "pause", "carol"),
        (("j",) * 9 + ("k", "p"), "pause", "ada"),
        (("P",), "pause", None),
    ],
)
def test_pauses(keys: tuple[str, ...], path: str, mind: str | None) -> None:
    _, asked = after(*keys)
    assert (asked.method, asked.path, asked.body) == ("POST", (path,), {"mind": mind})


def test_all_go_on_again() -> None:
    assert after("P", told=status(state="paused"))[1].path == ("resume",)


@pytest.mark.parametrize(
    ("key", "more", "cap"),
    [
        ("+", {"cap": 2}, 3),
        ("=", {"cap": 0}, 1),
        ("-", {"cap": 2}, 1),
        ("-", {"cap": 1}, None),
        ("+", {"cap": None}, None),
        ("-", {"cap": None, "live": [turn("1", "a", 1), turn("2", "b", 1), turn("3", "c", 1)]}, 3),
        ("-", {"cap": None}, 1),
    ],
)
def test_the_cap(key: str, more: dict[str, Any], cap: int | None) -> None:
    ui, asked = after(key, told=status(**more))
    if cap is None:
        assert asked is None
        assert ui.message
    else:
        assert (asked.method, asked.path) == ("PATCH", ("limits",))
        assert asked.body == {"name": "global_concurrent_turns", "mind": None, "value": cap, "runtime": True}


def test_a_filter_is_typed() -> None:
    assert after("/", "d", "q", "back", "a")[0] == Ui(Mode.FILTER, wanted="da")
    assert after("/", "d", "enter")[0] == Ui(wanted="d")
    assert after("/", "d", "esc")[0] == Ui()
    assert after("/", "d", "enter", "esc")[0] == Ui()
    assert after("/", "up", "\x00")[0] == Ui(Mode.FILTER)


@pytest.mark.parametrize("keys", [("q",), ("Q",), ("h", "q"), ("?", "q")])
def test_q_quits(keys: tuple[str, ...]) -> None:
    assert isinstance(after(*keys)[1], Quit)


def test_help_goes_with_any_key() -> None:
    ui, _ = after("h")
    text = plain(screen(seen(), ui, 80, 24, ASCII))
    assert "stop the chosen turn" in text
    assert after("h", "s") == (Ui(), None)


def test_an_answer_after_a_key_is_shown_until_the_next() -> None:
    ui = replace(Ui(), message="the global cap is 3 now")
    assert plain(screen(seen(), ui, 80, 24, ASCII)).endswith("\nthe global cap is 3 now")
    assert press(ui, "j", seen())[0].message == ""
