"""The person's terminal: keys one by one, the size, and all as it was once we leave."""

from __future__ import annotations

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
from hostguard.cli.top.draw import ASCII, UNICODE, Ink, Line
from hostguard.cli.top.keys import names
from hostguard.cli.top.paint import Painter

DUMB = ("", "dumb", "unknown")  # names of terminals whose cursor cannot be moved (terminfo(5))
OLD = ("vt", "linux")  # with a font, or a line, that may have none but ASCII
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # xterm's other screen, without a cursor
REST_S = 0.1  # the rest of a key's code comes within this, on a slow line, too


class Ended(Exception):
    """The terminal is gone, or a signal asked us to end; `code` is the exit code."""

    def __init__(self, code: int = FAILED) -> None:
        super().__init__()
        self.code = code


class Terminal:
    """Standard input and output, which must be a terminal."""

    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._before = termios.tcgetattr(self._in)
        term = os.environ.get("TERM", "")
        self.moves = term not in DUMB
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        self.ink: Ink = UNICODE if utf8 and self.moves and not term.startswith(OLD) else ASCII
        self._painter = Painter(self.moves, colours())
        self._rest = b""
        self._woken, self._wake = os.pipe()
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        self._stop_asked = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While this lasts keys come one by one and are not shown. As it was afterwards, whatever happens."""
        handlers = {
            signal.SIGWINCH: self._resized,
            signal.SIGTSTP: self._asked_to_stop,
            signal.SIGTERM: self._asked_to_end,
            signal.SIGHUP: self._asked_to_end,
        }
        old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            self._enter()
            yield
        finally:
            self._leave()
            for number, handler in old.items():
                signal.signal(number, handler)

    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 and 24 on a line that does not tell."""
        return shutil.get_terminal_size((80, 24))

    def wake(self) -> None:
        """Have `pressed` return; from another thread, too."""
        with suppress(BlockingIOError):  # it will
            os.write(self._wake, b"x")

    def pressed(self) -> list[str]:
        """The keys that come until `wake`. Raises Ended."""
        ready, _, _ = select.select([self._in, self._woken], [], [], REST_S if self._rest else None)
        if self._stop_asked:
            self._suspend()
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._in in ready:
            raw = os.read(self._in, 4096)
            if not raw:
                raise Ended
            found, self._rest = names(self._rest + raw)
            return found
        if self._rest and not ready:
            self._rest = b""
            return ["esc"]
        return []

    def show(self, lines: list[Line]) -> None:
        """Have the terminal show these lines. Raises Ended."""
        if self.moves:
            self._write(self._painter.paint(lines))
        else:
            self._write(self._painter.whole([*filter(None, lines), []]))

    def _enter(self) -> None:
        tty.setcbreak(self._in)
        self._painter.forget()
        if self.moves:
            self._write(ENTER)

    def _leave(self) -> None:
        with suppress(Ended, termios.error):  # it is gone
            termios.tcsetattr(self._in, termios.TCSANOW, self._before)  # also while the line is stopped
            termios.tcflush(self._in, termios.TCIFLUSH)
            if self.moves:
                # What knows no other screen keeps ours: the prompt goes below it.
                self._write(f"\x1b[m\x1b[{self.size()[1]};1H\r\n{LEAVE}")

    def _write(self, text: str) -> None:
        if self.ink is ASCII:
            text = text.replace("…", "~")
        # A "?" for what cannot be shown keeps the columns, as nothing else does.
        raw = text.encode(sys.stdout.encoding or "ascii", "replace")
        try:
            while raw:
                raw = raw[os.write(self._out, raw) :]
        except OSError as error:
            raise Ended from error

    # -- signals

    def _resized(self, number: int, frame: object) -> None:
        self._painter.forget()
        self.wake()

    def _asked_to_end(self, number: int, frame: object) -> None:
        raise Ended(128 + number)  # as shells report it

    def _asked_to_stop(self, number: int, frame: object) -> None:
        self._stop_asked = True
        self.wake()

    def _suspend(self) -> None:
        """Ctrl-Z: the shell gets its terminal back until it has us go on."""
        self._stop_asked = False
        self._leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._enter()
