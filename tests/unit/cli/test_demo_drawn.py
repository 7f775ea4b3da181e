"""What the demo draws, at its end and live."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from demo_turns import GOOD, STOP, STORY, phase, turn
from hypothesis import given
from hypothesis import strategies as st

from hostguard.cli.demo import draw
from hostguard.cli.demo.draw import ASCII, UNICODE
from hostguard.cli.demo.plan import MINDS
from hostguard.cli.demo.results import Write
from hostguard.cli.demo.view import Lines, Screen
from hostguard.core.text import columns

TIMELINE = """\
mimsy         ####....####
whorl         #####
pip           ....####
bandersnatch
borogove
burble
gimble
jubjub
rath
slithy
tove
wabe           .........
              |0s       |10s
              # runs   2 two turn~"""


def test_a_timeline() -> None:
    story = [replace(t, ended=9.0) if t.id == 4 else t for t in STORY]
    story[3] = replace(story[3], started=8.0, due=4.0, ended=12.0)
    assert "\n".join(draw.timeline(story, 10.0, 20.0, 34, ASCII)) == TIMELINE


def test_a_timeline_in_unicode_shows_two_turns_at_once() -> None:
    rows = draw.timeline([turn(1, "pip", 0, 10), turn(2, "pip", 5, 20, due=5.0)], 20, 20, 34, UNICODE)
    assert rows[2] == "pip           █████22222██████████"


@pytest.mark.parametrize(("at", "column"), [(0.0, 14), (5.01, 19), (19.9, 33), (20.0, 33)])
def test_a_turn_shorter_than_a_column_is_seen(at: float, column: int) -> None:
    rows = draw.timeline([turn(1, "pip", at, at + 0.001, due=at)], 20, 20, 34, ASCII)
    assert rows[2] == "pip".ljust(column) + "#"


@given(
    st.lists(
        st.tuples(st.sampled_from(MINDS), st.floats(0, 50), st.floats(0, 50), st.floats(0, 50)), max_size=15
    ),
    st.integers(1, 200),
    st.floats(0, 100),
    st.sampled_from([ASCII, UNICODE]),
)
def test_a_timeline_never_leaves_its_width(
    spans: list[tuple[str, float, float, float]], width: int, scale: float, ink: draw.Ink
) -> None:
    turns = [turn(i, m, due + a, due + a + b, due=due) for i, (m, due, a, b) in enumerate(spans)]
    rows = draw.timeline(turns, 60.0, scale, width, ink)
    assert len(rows) == len(MINDS) + 2
    assert max(map(columns, rows)) <= width
    assert ink is UNICODE or all(row.isascii() for row in rows)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf-8", UNICODE), ("UTF-8", UNICODE), ("utf8", UNICODE), ("ascii", ASCII), ("iso8859-1", ASCII), (None, ASCII)],
)  # fmt: skip
def test_ink_is_what_the_encoding_can_show(encoding: str | None, expected: draw.Ink) -> None:
    assert draw.ink(encoding) is expected


HOLDS = """\
MIND   TURN       REASON      HELD    AT FIRST BEHIND
pip    heartbeat  global_cap  4.00 s  a.scope
mimsy  message    mind_busy   4.00 s  mimsy-1.scope
wabe   message    global_cap  -       a.scope"""


def test_every_hold_is_in_the_table() -> None:
    assert draw.holds(STORY, 80, ASCII) == HOLDS
    assert draw.holds(STORY[:2], 80, ASCII) == "nothing was held"


def test_a_table_that_is_too_wide_is_cut_in_ascii() -> None:
    cut = draw.holds(STORY, 48, ASCII)
    assert cut.isascii()
    assert "mimsy-1.s~" in cut
    assert max(map(len, cut.splitlines())) <= 48


COMPARED = """\
                      UNGUARDED  GUARDED  RATIO
turns at once         2          2
live scopes at once   0          2
all turns done after  2.00 s     2.00 s
bystander's writes    2          3
  p50                 1.50 s     20 ms    75x
  p99                 2.00 s     400 ms   5.0x
  max                 2.00 s     400 ms   5.0x"""


def test_the_phases_side_by_side() -> None:
    unguarded = phase("unguarded", *GOOD, writes=(Write(0, 1.5), Write(1.5, 2.0)))
    calm = phase("guarded", *GOOD, scopes=2, writes=(Write(0, 0.01), Write(0.3, 0.02), Write(0.6, 0.4)))
    assert draw.compared(unguarded, calm, 80, ASCII) == COMPARED


@pytest.mark.parametrize(
    ("more", "less", "said"), [(2, 1, "2.0x"), (9.94, 1, "9.9x"), (9.96, 1, "10x"), (1, 4, "0.2x"), (1, 0, "-")]
)  # fmt: skip
def test_ratios(more: float, less: float, said: str) -> None:
    assert draw.times(more, less) == said


@pytest.mark.parametrize(
    ("value", "said"), [(None, "-"), (0.0004, "0 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (61.234, "61.23 s")]
)  # fmt: skip
def test_times(value: float | None, said: str) -> None:
    assert draw.seconds(value) == said


STOOD = """\
While the card was stopped for 10.00 s
the guard reported it after   1.70 s
turns allowed at a time       1, before that 2
turns that started meanwhile  0
status was answered           2 times, p99 30 ms
the full cap was back after   25.20 s
turns that ran to their end   3 of 4"""


def test_the_summary_of_a_card_that_stopped() -> None:
    phases = phase("unguarded", *GOOD), phase("guarded", *GOOD)
    third = phase("stopped", *GOOD, turn(4, "d", None, None))
    two, three = draw.summary(*phases, 80, ASCII), draw.summary(*phases, 80, ASCII, (third, STOP))
    assert three.endswith(f"\n\n{STOOD}")
    assert "Stopped: 4 turns, the card is stopped from 1.0 s to 11.0 s\n" in three
    assert "While the card was stopped" not in two
    told = draw.as_dict(*phases, [], "/card", 1024, (third, STOP))
    assert json.loads(json.dumps(told)) == told
    assert (told["stopped"]["stop"]["told"], len(told["stopped"]["turns"])) == (1.7, 4)
    assert draw.as_dict(*phases, [], "/card", 1024)["stopped"] is None


def test_the_json_has_what_the_summary_has() -> None:
    unguarded = phase("unguarded", *GOOD, writes=(Write(0, 1.0),))
    told = draw.as_dict(unguarded, phase("guarded", *STORY, scopes=2), ["x"], "/card", 1024)
    assert json.loads(json.dumps(told)) == told
    assert told["ratio"] == {"p50": 10, "p99": 10, "max": 10}
    assert told["guarded"]["turns"][2]["held"] == {
        "reason": "global_cap",
        "blocker": "a.scope",
        "seconds": 4.0,
    }
    assert told["guarded"]["scopes_at_once"] == 2
    assert told["failures"] == ["x"]


# -- live


def test_one_line_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    view = Lines()
    view.phase("guarded", "15 turns")
    view.line(-0.001, "held", "pip heartbeat: global_cap")
    view.line(12.345, "end", "pip heartbeat")
    view.frame([], 13, 0.1)
    assert capsys.readouterr().out == (
        "guarded: 15 turns\n   0.00 s  held   pip heartbeat: global_cap\n  12.35 s  end    pip heartbeat\n"
    )


def test_a_screen_draws_over_what_it_drew(capsys: pytest.CaptureFixture[str]) -> None:
    view = Screen(40, ASCII)
    view.frame(STORY, 6.0, 0.5)
    view.frame(STORY, 6.1, 0.5)  # too soon to be seen
    first = capsys.readouterr().out
    assert "\x1b" not in first
    assert first.splitlines()[-1] == "1 running, 1 waiting; the bystander's w~"
    view.over(phase("guarded", *GOOD))
    drawn = len(first.splitlines())
    assert capsys.readouterr().out == f"\x1b[{drawn}F\x1b[J  done after 2.00 s\n"
