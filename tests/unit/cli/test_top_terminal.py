"""What `hostguard top` writes to a terminal, and reads from it: curses on a real one."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from screen import OnScreen
from standin import ROOT
from statuses import NOW, stalled
from top_seen import BEFORE, seen

from hostguard.cli.top.draw import ASCII, Line, plain, screen
from hostguard.cli.top.keys import Ui
from hostguard.cli.top.model import view

# Shows one screen after the other, the next at any key, and prints at the end which keys it had.
PROGRAM = """
import json, sys
from hostguard.cli.top.terminal import Terminal
terminal, had = Terminal(), []
with terminal.taken():
    {}
    for lines in json.load(open(sys.argv[1])):
        terminal.show(lines)
        had += (keys := terminal.pressed())
        while not keys:
            terminal.show(lines)
            had += (keys := terminal.pressed())
print("had", ascii(had))
"""


@contextmanager
def shown(folder: Path, screens: Sequence[list[Line]], first: str = "", **more: Any) -> Iterator[OnScreen]:
    file = folder / "screens"
    file.write_text(json.dumps(screens))
    with OnScreen(
        sys.executable, "-c", PROGRAM.format(first or "pass"), str(file), PYTHONPATH=str(ROOT), **more
    ) as terminal:
        yield terminal


def later(seconds: int) -> list[Line]:
    told = stalled()
    told["live"][0]["write_bytes"] += seconds * 300_000
    return screen(view(told, NOW + seconds * 1000, 12.0 + seconds, BEFORE), Ui(), 80, 24, ASCII)


@pytest.mark.parametrize("term", ["vt100", "xterm", "xterm-256color", "linux", "too-new-for-terminfo"])
def test_the_terminal_shows_the_screen_and_only_changes_are_sent(term: str, tmp_path: Path) -> None:
    screens = [later(n) for n in range(5)]
    with shown(tmp_path, screens, TERM=term) as terminal:
        sizes = []
        for lines in screens:
            before = terminal.bytes
            wanted = plain(lines).replace("…", "~") if term in ("vt100", "linux") else plain(lines)
            terminal.wait(lambda text, wanted=wanted: text == wanted)
            sizes.append(terminal.bytes - before)
            terminal.press("n")
        assert sizes[0] > 1000
        assert max(sizes[1:]) < 250, "a second of a line of 9600 bit/s carries 960"
        assert terminal.ended() == 0
        assert not terminal.screen.unknown
        assert terminal.is_as_before


@pytest.mark.parametrize("term", ["vt100", "xterm", "xterm-256color", "linux"])
def test_after_any_screens_the_last_one_is_shown(term: str, tmp_path: Path) -> None:
    chance = random.Random(11)

    def line() -> Line:
        words = ["".join(chance.choices("ab …漢é", k=chance.randint(0, 12))) for _ in range(3)]
        return [(word, chance.choice(["", "warn", "bad", "title", "chosen"])) for word in words]

    screens = [[line() for _ in range(12)]]
    for _ in range(60):  # lines come and go in the middle, as those of minds and turns do
        lines = [line() if chance.random() < 0.2 else old for old in screens[-1]]
        lines.insert(chance.randrange(12), line())
        del lines[chance.randrange(13)]
        screens.append(lines)
    with shown(tmp_path, screens, width=100, height=13, TERM=term) as terminal:
        for lines in screens:
            wanted = plain(lines).rstrip()
            wanted = wanted.replace("…", "~") if term in ("vt100", "linux") else wanted
            terminal.wait(lambda text, wanted=wanted: text.rstrip() == wanted)
            terminal.press("n")
        assert terminal.ended() == 0
        assert not terminal.screen.unknown


@pytest.mark.parametrize(
    ("environment", "red", "codes"),
    [({"TERM": "xterm"}, True, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False, True),
     ({"TERM": "vt100"}, False, True), ({"TERM": "dumb"}, False, False)],
)  # fmt: skip
def test_codes_are_for_terminals_that_have_them(
    environment: dict[str, str], red: bool, codes: bool, tmp_path: Path
) -> None:
    with shown(tmp_path, [screen(seen(), Ui(), 80, 24, ASCII)], **environment) as terminal:
        terminal.wait("quit")
        styles = {code for sgr in terminal.screen.styles for code in sgr.split(";")}
        assert ("31" in styles) == red
        assert ({"1", "7"} <= styles) == codes
        assert ("\x1b" in terminal.raw) == codes


@pytest.mark.parametrize(
    ("typed", "had"),
    [("\x1bOA", ["up"]), ("\x1bOB", ["down"]), ("ü漢", ["ü", "漢"]), ("\x1b", ["esc"]), ("\x7f", ["back"]),
     ("\r", ["enter"]), ("\x1b[1;2Pq", ["q"]), ("\x1b[9;9Pq", ["q"])],
)  # fmt: skip
def test_keys_as_curses_has_them(typed: str, had: list[str], tmp_path: Path) -> None:
    with shown(tmp_path, [[[("here", "")]]]) as terminal:
        terminal.wait("here")
        terminal.press(typed)
        assert terminal.ended() == 0
        assert f"had {had!a}" in terminal.raw


def test_a_key_whose_code_comes_in_parts_is_that_key(tmp_path: Path) -> None:
    with shown(tmp_path, [[[("here", "")]]]) as terminal:
        terminal.wait("here")
        terminal.press("\x1b")
        time.sleep(0.02)  # as on a slow line
        terminal.press("OA")
        assert terminal.ended() == 0
        assert "had ['up']" in terminal.raw


def test_another_size_is_drawn_at_once(tmp_path: Path) -> None:
    with shown(tmp_path, [[[("x" * 70, "")], [("below", "")]]]) as terminal:
        terminal.wait("below")
        terminal.resize(100, 40)
        terminal.wait(r"^x{70}\nbelow", 5)


@pytest.mark.parametrize("hangup", ["", "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"])
def test_a_terminal_that_goes_ends_it(hangup: str, tmp_path: Path) -> None:
    """With the signal for that, and without, as below nohup."""
    with shown(tmp_path, [[[("here", "")]]], hangup) as terminal:
        terminal.wait("here")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, terminal.fd)  # closes the other end
        os.close(nothing)
        terminal.process.wait(10)
