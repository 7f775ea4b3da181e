"""`hostguard top` without a terminal: what is shown, what keys do, and what is written to a terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screen import Screen
from standin import ROOT, StandIn
from statuses import MIB, NOW, change, hold, mind, pressure, stalled, status, turn

from hostguard.cli.show import columns
from hostguard.top.draw import ASCII, UNICODE, Line, _bytes, _time, away, plain, screen
from hostguard.top.keys import Ask, Mode, Quit, Ui, names, press
from hostguard.top.model import Look, Used, View, levels, view
from hostguard.top.paint import Painter


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


BEFORE = Look(10.0, {"hostguard-turn-ada-17.scope": Used(1000, 0, 5 * MIB)})


def seen(told: dict[str, Any] | None = None, wanted: str = "") -> View:
    """Two seconds after BEFORE."""
    return view(stalled() if told is None else told, NOW, 12.0, BEFORE, wanted)


# -- the screen

STALLED = """\
hostguard  00:00:00  2 turns, which may finish; only 1 at a time now (cap 2)
!! disk     stalled for 12s: 3 requests in flight, none completed for 13.5 s
!  guard    has allowed 1 turn at a time, not 2, for 12s; more once it is calm
!  paused   dave
!  enforced io_weight not at all (hostguard doctor)
   waiting  13, 1 due later; the longest dave for >2h: paused: hostguard resum…
   written  most by ada 46.0 MiB, since the daemon's start
   device   /dev/mmcblk0, stalled: none completed, 100 % busy, 3 in flight
   level    .....................................................####### 2 min

  TURN  MIND  SESSION  STATE    AGE    CPU%  CPU    RD/s  WR/s  READ  WROTE
> 17    ada   main     running  1:05   25    1.5s   2.0K  512K  4.0K  6.0M
  18    bob   review   running  0:24   -     -      -     -     4.0K  -

  MIND   STATE    TURNS  HELD  OLDEST  WHY
  dave   paused   0/1    1     >2h     paused: hostguard resume dave
  carol  idle     0/1    11    24s     disk not calm, behind turn 17
  ada    in_turn  1/1    1     3s      session busy, behind turn 17
  bob    in_turn  1/1    0
  2 more minds are idle or asleep



q quit  s stop  p pause  P pause all  + - cap  / filter  h help"""

CALM = """\
hostguard  00:00:00  no turns, cap 2
   waiting  nothing
   device   /dev/mmcblk0, calm: 6 ms a request, 12 % busy, 0 in flight
   level    ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ 2 min

  no turn runs
  3 more minds are idle or asleep

q quit  s stop  p pause  P pause all  + - cap  / filter  h help"""


def test_the_screen_of_a_stopped_card() -> None:
    assert plain(screen(seen(), Ui(), 80, 24, ASCII)) == STALLED


def test_the_screen_of_a_calm_one() -> None:
    assert plain(screen(seen(status()), Ui(), 80, 9, UNICODE)) == CALM


def test_for_scripts_nothing_is_chosen_and_there_are_no_keys() -> None:
    text = plain(screen(seen(), Ui(), None, None, ASCII))
    assert "\n  17    ada " in text
    assert "hostguard resume dave\n" in text
    assert "quit" not in text


def many() -> dict[str, Any]:
    return status(
        turns=30, held=2000, live=[turn(str(n), "漢字" * 20, n) for n in range(30)],
        minds=[mind(f"mind{n}", held=40, hold=hold(n + 1, 5, "global_cap")) for n in range(50)],
        problems=[{"code": "x", "text": "wörds\x1b[2J " * 60}] * 9,
    )  # fmt: skip


@pytest.mark.parametrize("size", [(80, 24), (40, 24), (132, 50), (200, 24), (20, 6), (1, 1)])
@pytest.mark.parametrize("told", [many(), stalled(), status(minds=[])])
@pytest.mark.parametrize("mode", list(Mode))
def test_it_fits_and_leaves_the_last_cell_alone(
    told: dict[str, Any], size: tuple[int, int], mode: Mode
) -> None:
    lines = screen(seen(told), Ui(mode, chosen="@mind49"), *size, ASCII)
    assert len(lines) == size[1]
    assert max(columns(text) for text in plain(lines).split("\n")) < size[0]
    assert "\x1b" not in plain(lines)


@pytest.mark.parametrize("chosen", ["hostguard-turn-漢字漢字-29.scope", "@mind49", "@mind20"])
def test_the_chosen_row_is_on_the_screen(chosen: str) -> None:
    told = many() | {"live": [turn(str(n), "漢字漢字", n) for n in range(30)], "problems": []}
    lines = screen(seen(told), Ui(chosen=chosen), 80, 24, ASCII)
    [row] = [text for line in lines for text, style in line if style == "chosen"]
    assert row.startswith("> ")
    assert chosen.removeprefix("@").removeprefix("hostguard-turn-漢字漢字-").removesuffix(".scope") in row
    assert "more)" in plain(lines)


def test_who_has_written_most_stands_first() -> None:
    told = status(
        live=[turn("1", "a", 50, write_bytes=1), turn("2", "b", 5, write_bytes=9), turn("3", "c", 9)]
    )
    assert [row.id for row in seen(told).turns] == ["3", "2", "1"]


def test_a_filter_finds_turns_and_minds_also_idle_ones() -> None:
    shown = seen(wanted="a")
    assert [row.mind for row in shown.turns] == ["ada"]
    assert [row.name for row in shown.minds] == ["ada", "carol", "dave", "frank"]
    assert [row.mind for row in seen(wanted="review").turns] == ["bob"]
    text = plain(screen(seen(wanted="zz"), Ui(wanted="zz"), 80, 24, ASCII))
    assert "no turn of 'zz' runs" in text
    assert "[zz] q quit" in text


def test_rates_are_of_what_was_used_between_two_looks() -> None:
    ada, bob = seen().turns
    assert (ada.cpu_percent, ada.read_rate, ada.write_rate) == (25.0, 2048.0, MIB / 2)
    assert (bob.cpu_percent, bob.read_rate, bob.write_rate) == (None, None, None), "not seen before"
    shrunk = stalled()
    shrunk["live"][0]["write_bytes"] = MIB  # a process that had written the rest is gone
    assert seen(shrunk).turns[0].write_rate == 0


def test_how_bytes_are_counted_is_said() -> None:
    told = stalled()
    told["live"][0]["counted"] = "processes"
    assert "bytes    by process" in plain(screen(seen(told), Ui(), 80, 24, ASCII))


@pytest.mark.parametrize(
    ("pressed", "said"),
    [
        (pressure(), "/dev/mmcblk0, calm: 6 ms a request, 12 % busy, 0 in flight"),
        (pressure(looked_ms=60_000), "/dev/mmcblk0, calm: not looked at now, nothing runs"),
        (pressure(looked_ms=None), "/dev/mmcblk0, calm: not looked at now, nothing runs"),
        (pressure(await_ms=None, busy_percent=None, in_flight=None), "/dev/mmcblk0, calm: -, -, -"),
    ],
)
def test_the_device(pressed: dict[str, Any], said: str) -> None:
    assert seen(status(pressure=pressed)).device == said
    assert seen(status(device={"node": None, "reason": "in memory"})).device == "none is watched: in memory"


def test_the_history_of_the_level() -> None:
    changes = [
        change(60, "strained", 2),
        change(31, "stalled", 1),
        change(30, "calm", 1),
        change(10, "calm", None),
    ]
    shown = "".join(ASCII.of(level) for level in levels(changes, "calm", NOW - 100_000, NOW, 60))
    assert shown == " " * 9 + "." * 20 + "=" * 14 + "#" + "." * 16
    assert levels(changes, "stalled", NOW - 100_000, NOW, 60)[-1] == "stalled", (
        "what it is now is shown at once"
    )
    assert levels(changes, "calm", NOW - 100_000, NOW + 1999, 60) == levels(
        changes, "calm", NOW - 100_000, NOW, 60
    )
    kept = [change(40 - n, "calm", n) for n in range(20)]
    assert set(levels(kept, "calm", 0, NOW, 60)[:39]) == {""}, "older changes than those kept are not known"


def test_the_guard_that_is_away_is_told_of_in_the_first_line() -> None:
    lines = screen(seen(), Ui(), 80, 24, ASCII)
    text = plain(away(lines, "hostguard is not running: systemctl start hostguard", 80))
    assert text.splitlines()[0] == "!! hostguard is not running: systemctl start hostguard"
    assert text.splitlines()[1:] == STALLED.splitlines()[1:]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "-"), (0, "0B"), (999, "999B"), (1000, "1.0K"), (1024, "1.0K"), (10_188, "9.9K"), (10_200, "10K"),
     (1023 * 1024, "1.0M"), (6 * MIB, "6.0M"), (1 << 50, "1024T")],
)  # fmt: skip
def test_bytes_take_four_columns(count: int | None, shown: str) -> None:
    assert _bytes(count) == shown


@settings(deadline=None)
@given(st.integers(0, 1 << 49))
def test_bytes_never_take_more(count: int) -> None:
    assert len(_bytes(count)) <= 4


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0s"), (9.94, "9.9s"), (9.96, "0:09"), (65, "1:05"), (3599, "59:59"), (3600, "1h00"), (86399, "23h59"),
     (86400 * 6 + 3600 * 23, "6d23h")],
)  # fmt: skip
def test_times_take_five_columns(seconds: float, shown: str) -> None:
    assert _time(seconds) == shown


# -- keys


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


# -- the command


def test_once_prints_text_or_json_without_rich(daemon: StandIn) -> None:
    daemon.answer("GET /v1/status", stalled())
    done = daemon.run("top", "--once")
    assert done.returncode == 0, done
    assert "\n  17    ada " in done.stdout
    assert "\x1b" not in done.stdout
    code = "import sys; sys.argv = ['hostguard', 'top', '--json']\nfrom hostguard.cli import _run\n_run(['top'])\n"
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=daemon.env, capture_output=True, text=True, check=True
    )
    assert '"write_rate"' in done.stdout
    assert "rich" not in done.stderr.split()


def test_without_the_daemon_it_ends_with_its_code(away: StandIn) -> None:
    done = away.run("top", "--once")
    assert (done.returncode, done.stdout) == (3, "")
    assert "systemctl start hostguard" in done.stderr


def test_an_answer_after_a_key_is_shown_until_the_next() -> None:
    ui = replace(Ui(), said="the global cap is 3 now")
    assert plain(screen(seen(), ui, 80, 24, ASCII)).endswith("\nthe global cap is 3 now")
    assert press(ui, "j", seen())[0].said == ""
