"""`hostguard status` as text: snapshots of the screen, and what is said of single things."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from screen import rest
from standin import ROOT, StandIn
from statuses import NOW, change, hold, mind, pressure, problem, stalled, status, turn

from hostguard.cli.status import screen
from hostguard.core.text import columns
from hostguard.telemetry.headlines import news
from hostguard.telemetry.problems import BAD, INFO, WARN


@pytest.fixture(autouse=True)
def _at_new_year(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


CALM = """\
   disk     calm: requests take 6 ms
   waiting  nothing
   running  no turns, cap 2
   daemon   runs since 2026-12-31 22:00:00, version 0.2.0, disk /dev/mmcblk0

idle: ada, bob, carol"""

STALLED = """\
!! disk     stalled for 12s: 3 requests in flight, none completed for 13.5 s
!  guard    has allowed 1 turn at a time, not 2, for 12s; more once it is calm
!  paused   dave
!  limits   not enforced: io_weight (hostguard doctor)
   waiting  13, 1 due later; the longest dave for 2h: paused: hostguard resume …
   running  2 turns, which may finish; only 1 at a time now (cap 2)
   written  most by ada 46.0 MiB, since the daemon's start
   daemon   runs since 2026-12-31 22:00:00, version 0.2.0, disk /dev/mmcblk0

TURN  MIND  SESSION  STATE    RUNS   CPU   READ     WRITTEN
17    ada   main     running  1m 5s  1.5s  4.0 KiB  6.0 MiB
18    bob   review   running  24s          4.0 KiB

MIND   STATE    TURNS  HELD  OLDEST  WHY
dave   paused   0/1    1     2h      paused: hostguard resume dave
carol  idle     0/1    11    24s     disk not calm, behind turn 17
ada    in_turn  1/1    1     3s      session busy, behind turn 17
bob    in_turn  1/1    0
idle: erin
asleep: frank"""


@pytest.mark.parametrize(("told", "shown"), [(status(), CALM), (stalled(), STALLED)])
def test_the_screen(told: dict[str, Any], shown: str) -> None:
    assert screen(told, NOW, 80, 24, False) == shown


def test_a_pipe_gets_whole_lines() -> None:
    text = screen(stalled(), NOW, None, None, False)
    assert "the longest dave for 2h: paused: hostguard resume dave\n" in text


def many() -> dict[str, Any]:
    return status(
        turns=30,
        cap=None,
        effective_cap=None,
        held=2000,
        minds=[mind(f"mind{n}", held=40, hold=hold(n + 1, 5, "global_cap")) for n in range(50)],
        live=[turn(str(n), "漢字" * 40, 5) for n in range(30)],
        problems=[{"code": "x", "text": "wörds " * 60}],
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (132, 50), (200, 24), (20, 10)])
@pytest.mark.parametrize("told", [many(), stalled(), status()])
def test_it_fits_the_screen_and_nothing_wraps(told: dict[str, Any], width: int, height: int) -> None:
    lines = screen(told, NOW, width, height, False).splitlines()
    assert max(map(columns, lines)) <= width
    if height >= 24:
        assert len(lines) < height, "the prompt needs a line, too"


def test_what_there_is_no_room_for_is_counted() -> None:
    text = screen(many(), NOW, 80, 24, False)
    assert re.search(r"^and 2\d more: hostguard turns$", text, re.M)
    assert re.search(r"^and 4\d more: hostguard minds$", text, re.M)
    assert "more:" not in screen(many(), NOW, None, None, False)


def test_colour_is_for_what_is_wrong_alone() -> None:
    lines = screen(stalled(), NOW, 80, 24, True).splitlines()
    assert lines[0].startswith("\x1b[1;31m!! disk")
    assert lines[1].startswith("\x1b[33m!  guard")
    assert not any("\x1b" in line for line in lines[4:])
    assert "\x1b" not in screen(status(), NOW, 80, 24, True)


def test_what_a_mind_is_called_moves_no_cursor() -> None:
    told = status(
        problems=[{"code": "x", "text": "a\x1b[2Jb"}], minds=[mind("m\x1b[1m"), mind("n\r", live=1)]
    )
    assert "\x1b" not in screen(told, NOW, 80, 24, False)
    assert "\r" not in screen(told, NOW, 80, 24, False)


# -- the lines


def told(about: str, **more: Any) -> list[tuple[int, str]]:
    return [(bad, text) for bad, named, text in news(status(**more), NOW) if named == about]


STALL = [change(300, "stalled", 1), change(280, "calm", 1), change(260, "calm", None)]


@pytest.mark.parametrize(
    ("pressed", "said"),
    [
        (pressure(), []),
        (
            pressure(changes=STALL),
            [(INFO, "allowed 1 turn at a time 5m ago, for 40s: the disk was stalled")],
        ),
        (
            pressure(changes=[change(300, "strained", None), change(290, "calm", None)]),
            [(INFO, "changed nothing 5m ago, for 10s: the disk was strained")],
        ),
        (pressure(changes=[change(9000, "stalled", 1), change(8000, "calm", None)]), []),
        (
            pressure(cap=1, admit=1, next_step_in_s=14.2, changes=[*STALL, change(40, "stalled", 1), change(20, "calm", 1)]),
            [(WARN, "has allowed 1 turn at a time, not 2, for 40s; 1 more in 14s if calm")],
        ),
        (pressure("stalled", frozen=["a.scope"]), [(WARN, "keeps these frozen for a moment: a.scope")]),
        (pressure("strained", tightened=True), [(WARN, "limits the writes of all turns")]),
    ],
)  # fmt: skip
def test_what_the_guard_did(pressed: dict[str, Any], said: list[tuple[int, str]]) -> None:
    limited = pressed["cap"] is not None
    assert told("guard", pressure=pressed, effective_cap=1 if limited else 2) == said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "nothing"),
        ({"due_later": 2}, "nothing, 2 due later"),
        (
            {"held": 3, "minds": [mind("a", hold=hold(4, 9.5, "global_cap", "hostguard-turn-c-7.1.scope")),
                                  mind("b", hold=hold(5, 3, "asleep"))]},
            "3; the longest a for 9.5s: no slot free, behind turn 7.1",
        ),
        (
            {"held": 1, "minds": [mind("a", hold=hold(4, 9, "mind_busy", "run-u12.scope"))]},
            "1; the longest a for 9s: mind busy, behind run-u12.scope",
        ),
        (
            {"held": 1, "minds": [mind("a", hold=hold(4, 9, "global_cap", "the global cap is 0"))], "cap": 0},
            "1; the longest a for 9s: no slot free: the global cap is 0",
        ),
        (
            {"held": 1, "minds": [mind("a", hold=hold(4, 9, "mind_busy", "the cap of a is 0"))]},
            "1; the longest a for 9s: mind busy: the cap of a is 0",
        ),
        (
            {"held": 1, "minds": [mind("a", hold=hold(4, 90, "mind_down", "connection refused"))]},
            "1; the longest a for 1m 30s: server down: connection refused",
        ),
        (
            {"held": 1, "minds": [mind("a", hold=hold(4, 9, "paused"))], "state": "paused"},
            "1; the longest a for 9s: all are paused: hostguard resume",
        ),
        (
            {"held": 1, "minds": [mind("a", hold=hold(4, 7200, "a_new_one"))]},
            "1; the longest a for 2h: a_new_one",
        ),
    ],
)  # fmt: skip
def test_what_waits_and_why(more: dict[str, Any], said: str) -> None:
    assert told("waiting", **more) == [(INFO, said)]


@pytest.mark.parametrize(
    ("turns", "cap", "effective", "said"),
    [
        (0, 2, 2, "no turns, cap 2"),
        (1, None, None, "1 turn, no cap"),
        (2, 1, 1, "2 turns, which may finish; cap 1"),
        (2, 2, 1, "2 turns, which may finish; only 1 at a time now (cap 2)"),
        (1, 2, 1, "1 turn, only 1 at a time now (cap 2)"),
        (9, None, 4, "9 turns, which may finish; only 4 at a time now (no cap)"),
    ],
)
def test_more_that_run_than_may_are_said_to_finish(
    turns: int, cap: int | None, effective: int | None, said: str
) -> None:
    assert told("running", turns=turns, cap=cap, effective_cap=effective) == [(INFO, said)]


def test_what_is_allowed_without_a_cap_and_while_nothing_was_cut() -> None:
    """While nothing completes the floor holds, also where pressure has cut no cap."""
    more = {"pressure": pressure("stalled", changes=[change(5, "stalled", None)]), "cap": None}
    said = "has allowed 1 turn at a time, not all, for 5s; more once it is calm"
    assert told("guard", **more, effective_cap=1) == [(WARN, said)]


def test_who_writes_most_counts_live_turns_and_those_that_ended() -> None:
    minds = [
        mind("a", write_bytes=1 << 20),
        mind("b", write_bytes=3 << 20),
        mind("c"),
        mind("d", write_bytes=1),
    ]
    live = [turn("1", "a", 5, write_bytes=4 << 20), turn("2", "c", 5, write_bytes=None)]
    assert told("written", minds=minds, live=live) == [
        (INFO, "most by a 5.0 MiB, b 3.0 MiB, d 1 B, since the daemon's start")
    ]


NO_DISK = [problem("no_disk", "unknown, so it is not watched and has no limits: it is on overlay")]
OFF = {"path": "none", "node": None, "name": None, "reason": "switched off"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, [(INFO, "calm: requests take 6 ms")]),
        ({"problems": NO_DISK}, [(WARN, NO_DISK[0]["text"])]),  # nobody knows that it is calm
        (
            {"problems": NO_DISK, "pressure": pressure("strained", since=NOW - 9000)},
            [(WARN, NO_DISK[0]["text"]), (WARN, "strained for 9s: requests take 6 ms")],
        ),
        ({"device": OFF}, [(INFO, "not watched: switched off")]),
    ],
)
def test_a_disk_that_is_not_watched_is_not_called_calm(
    more: dict[str, Any], said: list[tuple[int, str]]
) -> None:
    assert told("disk", **more) == said


def test_minds_in_trouble_are_in_the_table() -> None:
    failing = {"in_a_row": 6, "turn": "7", "reason": "exit status 3", "at": NOW}
    minds = [mind("a", failures=failing), mind("b", dead=1), mind("c"), mind("d", state="frozen", live=1)]
    lines = screen(status(minds=minds), NOW, None, None, False).splitlines()
    assert [line.split()[:4] for line in lines if line[:2] in ("a ", "b ", "d ")] == [
        ["a", "idle,", "6", "failed"],
        ["b", "idle,", "1", "dead"],
        ["d", "frozen", "1/1", "0"],
    ]
    assert lines[-1] == "idle: c"


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ({"problems": [problem("no_systemd")], "pressure": pressure("stalled")}, "systemd"),
        ({"problems": [{"code": "of_later", "text": "the card is full"}], "state": "paused"}, "problem"),
        ({"problems": [problem("no_disk")], "paused_minds": ["a"]}, "disk"),
        ({"problems": [problem("mind_failing")], "pressure": pressure("strained")}, "failing"),
        ({"state": "paused", "pressure": pressure("stalled")}, "disk"),
        ({"state": "paused", "pressure": pressure("calm")}, "paused"),
        ({"pressure": pressure("strained"), "paused_minds": ["a"]}, "disk"),
        ({"enforcement": [{"limit": "l", "label": "partial"}, {"limit": "m", "label": "enforced"}]}, "limits"),
    ],
)  # fmt: skip
def test_the_worst_comes_first(more: dict[str, Any], first: str) -> None:
    lines = news(status(**more), NOW)
    assert lines[0][1] == first
    assert [bad for bad, _, _ in lines] == sorted((bad for bad, _, _ in lines), reverse=True)
    assert lines[0][0] in (WARN, BAD)


# -- the command


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "vt100"}, False)],
)
def test_colour_only_on_a_terminal_that_has_it(
    daemon: StandIn, environment: dict[str, str], coloured: bool
) -> None:
    daemon.answer("GET /v1/status", stalled())
    ours, theirs = pty.openpty()
    env = {key: value for key, value in daemon.env.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    done = subprocess.run(
        [sys.executable, "-m", "hostguard", "status"],
        cwd=ROOT, env=env | environment, stdout=theirs, check=True, timeout=60,
    )  # fmt: skip
    os.close(theirs)
    shown = rest(ours)
    os.close(ours)
    assert done.returncode == 0
    assert (b"\x1b[" in shown) == coloured
    daemon.answer("GET /v1/status", stalled())
    assert "\x1b" not in daemon.run("status").stdout


def test_status_loads_little(daemon: StandIn) -> None:
    """It must be shown on a host that is slow: tests/vm/test_slow_cpu."""
    daemon.answer("GET /v1/status", stalled())
    code = (
        "import sys; sys.argv = ['hostguard', 'status']\nfrom hostguard.cli import _run\n_run(['status'])\n"
    )
    code += "print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=daemon.env, check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "hostguard.cli.status" in loaded
    assert not loaded & {
        "click",
        "http",
        "http.client",
        "curses",
        "dataclasses",
        "typing",
        "hostguard.core.model",
    }
