"""What keys do in `hostguard top`, and what is written to a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screen import Screen
from statuses import NOW, stalled, status, turn
from top_seen import BEFORE, seen

from hostguard.cli.top.draw import ASCII, Line, plain, screen
from hostguard.cli.top.keys import Ask, Mode, Quit, Ui, names, press
from hostguard.cli.top.model import View, view
from hostguard.cli.top.paint import Painter


@pytest.mark.parametrize(
    ("raw", "keys", "rest"),
    [
        (b"q", ["q"], b""),
        (b"\x1b[A\x1bOBj", ["up", "down", "j"], b""),
        (b"\x1b[1;5A", ["up"], b""),
        (b"\x1b[3~\x1b[Hx", ["x"], b""),
        (b"a\x1b", ["a"], b"\x1b"),
        (b"\x1b[", [], b"\x1b["),
        (b"\x1b[1;", [], b"\x1b[1;"),
        (b"\x1bq", ["esc", "q"], b""),
        ("ü漢\r\x7f".encode(), ["ü", "漢", "enter", "back"], b""),
    ],
)
def test_what_a_terminal_sends(raw: bytes, keys: list[str], rest: bytes) -> None:
    assert names(raw) == (keys, rest)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_whatever_comes_is_keys(raw: bytes) -> None:
    ui = Ui()
    for key in names(raw)[0]:
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
    assert after("s", "y")[1] == Ask("POST", ("turns", "17", "stop"), None, "17 of ada is being stopped")
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
    assert (asked, ui.said) == (None, "not a turn of the guard's: systemctl stop x.scope")


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
        assert ui.said
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


# -- painting


def painted(*screens: list[Line], width: int = 80) -> tuple[Screen, list[int]]:
    painter, shown, sizes = Painter(True, True), Screen(width, len(screens[0])), []
    for lines in screens:
        text = painter.paint(lines)
        shown.feed(text)
        sizes.append(len(text))
    return shown, sizes


def later(seconds: int, **more: Any) -> View:
    told = stalled() | more
    told["live"][0]["write_bytes"] += seconds * 300_000
    return view(told, NOW + seconds * 1000, 12.0 + seconds, BEFORE)


def test_the_terminal_shows_the_screen_and_only_changes_are_sent() -> None:
    screens = [screen(later(n), Ui(), 80, 24, ASCII) for n in range(5)]
    shown, sizes = painted(*screens)
    assert shown.text == plain(screens[-1])
    assert not shown.unknown
    assert sizes[0] > 1000
    assert max(sizes[1:]) < 250, "a second of a line of 9600 bit/s carries 960"
    assert painted(screens[0], screens[0])[1][1] == 0


SPAN = st.tuples(
    st.text(st.sampled_from("ab …漢é"), max_size=12), st.sampled_from(["", "warn", "bad", "title", "chosen"])
)
LINE = st.lists(SPAN, max_size=3)


@settings(deadline=None)
@given(st.lists(st.lists(LINE, min_size=3, max_size=3), min_size=1, max_size=4))
def test_after_any_screens_the_last_one_is_shown(screens: list[list[Line]]) -> None:
    painter = Painter(True, True)
    shown = Screen(100, 3)
    for lines in screens:
        shown.feed(painter.paint(lines))
    fresh = Screen(100, 3)
    fresh.feed(Painter(True, True).paint(screens[-1]))
    assert shown.text == fresh.text
    assert not any("漢" in text for line in screens[-1] for text, _ in line) or "漢" in shown.text


def test_changes_near_each_other_are_sent_as_one() -> None:
    painter = Painter(False, False)
    painter.paint([[("a" * 40, "")]])
    assert painter.paint([[("bab" + "a" * 36 + "b", "")]]) == "\x1b[1;1Hbab\x1b[1;40Hb"


@pytest.mark.parametrize(
    ("bright", "colour", "codes"), [(True, True, True), (True, False, True), (False, False, False)]
)
def test_codes_are_for_terminals_that_have_them(bright: bool, colour: bool, codes: bool) -> None:
    text = Painter(bright, colour).whole(screen(seen(), Ui(), 80, 24, ASCII))
    assert ("\x1b[1;31m" in text) == colour
    assert ("\x1b[7m" in text) == codes
    assert ("\x1b" in text) == codes


def test_an_answer_after_a_key_is_shown_until_the_next() -> None:
    ui = replace(Ui(), said="the global cap is 3 now")
    assert plain(screen(seen(), ui, 80, 24, ASCII)).endswith("\nthe global cap is 3 now")
    assert press(ui, "j", seen())[0].said == ""
