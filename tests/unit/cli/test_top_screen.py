"""What `hostguard top` shows, without a terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import ROOT, StandIn
from statuses import MIB, NOW, change, hold, mind, pressure, stalled, status, turn
from top_seen import seen

from hostguard.cli.top.draw import ASCII, UNICODE, _bytes, _time, failed, plain, screen
from hostguard.cli.top.keys import Mode, Ui
from hostguard.cli.top.model import levels
from hostguard.core.text import columns


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


STALLED = """\
hostguard  00:00:00  2 turns, which may finish; only 1 at a time now (cap 2)
!! disk     stalled for 12s: 3 requests in flight, none completed for 13.5 s
!  guard    has allowed 1 turn at a time, not 2, for 12s; more once it is calm
!  paused   dave
!  limits   not enforced: io_weight (hostguard doctor)
   waiting  13, 1 due later; the longest dave for 2h: paused: hostguard resume…
   written  most by ada 46.0 MiB, since the daemon's start
   device   /dev/mmcblk0, stalled: none completed, 100 % busy, 3 in flight
   level    .....................................................####### 2 min

  TURN  MIND  SESSION  STATE    AGE    CPU%  CPU    RD/s  WR/s  READ  WROTE
> 17    ada   main     running  1:05   25    1.5s   2.0K  512K  4.0K  6.0M
  18    bob   review   running  0:24   -     -      -     -     4.0K  -

  MIND   STATE    TURNS  HELD  OLDEST  WHY
  dave   paused   0/1    1     2h      paused: hostguard resume dave
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

  no turn is running
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


NARROW = """\
  TURN  MIND  AGE    WR/s  WROTE
> 17    ada   1:05   512K  6.0M
  18    bob   0:24   -     -

  MIND   HELD  OLDEST  WHY
  dave   1     2h      paused: hostgua…
  carol  11    24s     disk not calm, …
  ada    1     3s      session busy, b…
  bob    0"""


def test_a_narrow_terminal_shows_fewer_columns_and_these_whole() -> None:
    assert NARROW in plain(screen(seen(), Ui(), 40, 24, ASCII))
    told = status(live=[turn("17", "a-mind-of-a-long-name", 5, session="a-session-of-a-long-name")])
    text = plain(screen(seen(told), Ui(), 70, 24, ASCII))
    assert "> 17    a-mind-of-a…  a-session-o…  running  5.0s " in text, "names are cut before a column goes"


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
    assert "no running turn matches 'zz'" in text
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
    assert "bytes    of live processes only" in plain(screen(seen(told), Ui(), 80, 24, ASCII))


@pytest.mark.parametrize(
    ("pressed", "said"),
    [
        (pressure(), "/dev/mmcblk0, calm: 6 ms a request, 12 % busy, 0 in flight"),
        (pressure(looked_ms=60_000), "/dev/mmcblk0, calm: idle, nothing runs"),
        (pressure(looked_ms=None), "/dev/mmcblk0, calm: idle, nothing runs"),
        (pressure(await_ms=None, busy_percent=None, in_flight=None), "/dev/mmcblk0, calm: -, -, -"),
    ],
)
def test_the_device(pressed: dict[str, Any], said: str) -> None:
    assert seen(status(pressure=pressed)).device == said
    assert seen(status(device={"node": None, "reason": "in memory"})).device == "none: in memory"


def test_the_history_of_the_level() -> None:
    changes = [
        change(60, "strained", 2),
        change(31, "stalled", 1),
        change(30, "calm", 1),
        change(10, "calm", None),
    ]
    shown = "".join(ASCII[level] for level in levels(changes, "calm", NOW - 100_000, NOW, 60))
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
    text = plain(failed(lines, "hostguard is not running: systemctl start hostguard", 80))
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


# -- the command


def test_once_prints_text_or_json_without_curses(daemon: StandIn) -> None:
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
    assert "curses" not in done.stderr.split()


def test_without_the_daemon_it_ends_with_its_code(away: StandIn) -> None:
    done = away.run("top", "--once")
    assert (done.returncode, done.stdout) == (3, "")
    assert "systemctl start hostguard" in done.stderr
