"""The terminal of `hostguard top`: drawn on with curses, and restored however the command ends."""

from __future__ import annotations

import curses
import locale
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hostguard.cli.errors import FAILED
from hostguard.cli.render import colours
from hostguard.cli.top.draw import ASCII, UNICODE, Ink, Line, plain
from hostguard.cli.top.keys import names

DUMB = ("", "dumb", "unknown")  # names of terminals whose cursor cannot be moved (terminfo(5))
OLD = ("vt", "linux")  # with a font, or a line, that may have none but ASCII
ESCAPE_MS = 100  # the rest of a key's code comes within this, on a slow line too
# The keys that curses decodes, as other terminals send them.
CODES = {
    curses.KEY_UP: "\x1b[A", curses.KEY_DOWN: "\x1b[B", curses.KEY_ENTER: "\r", curses.KEY_BACKSPACE: "\x7f",
}  # fmt: skip
ATTRIBUTES = {
    "": 0, "title": curses.A_BOLD, "head": curses.A_BOLD, "chosen": curses.A_REVERSE,
    "warn": 0, "bad": curses.A_BOLD,
}  # fmt: skip
COLOURS = {"warn": curses.COLOR_YELLOW, "bad": curses.COLOR_RED}


class Ended(Exception):
    """The terminal is gone, or a signal ends the command; `code` is the exit code."""

    def __init__(self, code: int = FAILED) -> None:
        super().__init__()
        self.code = code


class Terminal:
    """Standard input and output, which must be a terminal."""

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        term = os.environ.get("TERM", "")
        self.moves = term not in DUMB
        # Not sys.stdout's encoding, which may be UTF-8 in a locale without it: curses goes by the locale.
        self._encoding = locale.getencoding()
        utf8 = self._encoding.lower().replace("-", "") == "utf8"
        self.ink: Ink = UNICODE if utf8 and self.moves and not term.startswith(OLD) else ASCII
        self._window: curses.window | None = None
        self._attributes = ATTRIBUTES
        self._woken, self._wake = os.pipe()
        self._poll = select.poll()
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        for fd in (self._in, self._woken):
            self._poll.register(fd, select.POLLIN)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Within this, keys come one by one and are not echoed. Afterwards all is as it was before."""
        before = termios.tcgetattr(self._in)
        handlers = {
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
            signal.SIGWINCH: lambda *_: self.wake(),
        }
        old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            self._enter()
            yield
        finally:
            with suppress(curses.error):  # not begun, or the terminal is gone
                curses.flushinp()
                curses.endwin()
            with suppress(termios.error):
                termios.tcsetattr(self._in, termios.TCSANOW, before)
            for number, handler in old.items():
                signal.signal(number, handler)

    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 and 24 if the terminal does not report them."""
        return shutil.get_terminal_size((80, 24))

    def wake(self) -> None:
        """Have `pressed` return; from another thread, too."""
        with suppress(BlockingIOError):  # it will
            os.write(self._wake, b"x")

    def pressed(self) -> list[str]:
        """The keys that come until `wake`. Raises Ended."""
        ready = dict(self._poll.poll())
        if self._woken in ready:
            os.read(self._woken, 4096)
        if ready.get(self._in, 0) & ~select.POLLIN:
            raise Ended
        return names(self._typed()) if self._in in ready else []

    def show(self, lines: list[Line]) -> None:
        """Have the terminal show these lines. Raises Ended."""
        if self._window is None:
            try:
                print(self._encodable(plain([*filter(None, lines), []])), flush=True)
            except OSError as error:
                raise Ended from error
            return
        width, height = self.size()
        if (height, width) != self._window.getmaxyx():
            curses.resizeterm(height, width)  # redraws all
        self._window.erase()
        for y, line in enumerate(lines):
            with suppress(curses.error):  # a character that is wider here than Unicode has it
                self._window.move(y, 0)
                for text, style in line:
                    self._window.addstr(self._encodable(text), self._attributes[style])
        self._window.refresh()

    def _enter(self) -> None:
        if not self.moves:
            tty.setcbreak(self._in)
            return
        try:
            curses.setupterm()
        except curses.error:  # it is newer than this host's terminfo
            os.environ["TERM"] = "xterm"
        curses.set_escdelay(ESCAPE_MS)
        self._window = curses.initscr()
        curses.cbreak()
        curses.noecho()
        self._window.keypad(True)
        self._window.nodelay(True)
        with suppress(curses.error):  # this terminal's cursor is always seen
            curses.curs_set(0)
        if colours() and curses.has_colors():
            curses.start_color()
            curses.use_default_colors()
            for pair, (style, colour) in enumerate(COLOURS.items(), 1):
                curses.init_pair(pair, colour, -1)
                self._attributes = {**self._attributes, style: ATTRIBUTES[style] | curses.color_pair(pair)}

    def _typed(self) -> str:
        if self._window is None:
            return os.read(self._in, 4096).decode(errors="replace")
        text = ""
        with suppress(curses.error):  # that was all
            while True:
                key = self._window.get_wch()
                text += key if isinstance(key, str) else CODES.get(key, "")
        return text

    def _encodable(self, text: str) -> str:
        """With a "?" for what cannot be shown: only that keeps the columns."""
        if self.ink is ASCII:
            text = text.replace("…", "~")
        return text.encode(self._encoding, "replace").decode(self._encoding)

    def _end(self, number: int, frame: object) -> None:
        raise Ended(128 + number)  # as shells report it
