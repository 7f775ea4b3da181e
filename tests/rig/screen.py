"""A terminal for tests: runs a command on a pty, and knows what stands on its screen."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

# What a vt100 does of ECMA-48, and the private modes that we use.
_CODE = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])|\x1b(?!\[)(.)", re.DOTALL)


def rest(fd: int) -> bytes:
    """What is still to be read of a terminal whose other end nobody has any more. It may come in parts."""
    said = b""
    with suppress(OSError):  # EIO: that was all
        while part := os.read(fd, 1 << 16):
            said += part
    return said


class Screen:
    """The cells of a terminal, and the SGR of each.

    `modes` are the private ones that are set, `unknown` the codes that a vt100 has not.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells = [[" "] * width for _ in range(height)]
        self._sgr = [[""] * width for _ in range(height)]
        self._style = ""
        self.modes: set[str] = set()
        self.unknown: set[str] = set()
        self.styles: set[str] = set()  # all that SGR was given
        self._x = self._y = 0
        self._rest = ""

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.cells)

    @property
    def ansi(self) -> str:
        """The text with its colours, and without moves of the cursor."""
        text, style = "", ""
        for row, styles in zip(self.cells, self._sgr, strict=True):
            for char, sgr in zip(row, styles, strict=True):
                text += char if sgr == style else f"\x1b[0;{sgr}m{char}".replace(";m", "m")
                style = sgr
            text += "\n"
        return text.removesuffix("\n")

    def feed(self, text: str) -> None:
        """Take what a program wrote."""
        text = self._rest + text
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            found = _CODE.match(text, at)
            if found is None:
                break  # the rest of it comes later
            self._do(found[1] is not None, found[2] or "", found[3] or "")
            at = found.end()
        self._rest = text[at:]

    def _put(self, char: str) -> None:
        if char == "\r":
            self._x = 0
        elif char == "\n":
            self._y += 1
            if self._y == self.height:
                self.cells = [*self.cells[1:], [" "] * self.width]
                self._sgr = [*self._sgr[1:], [""] * self.width]
                self._y -= 1
        elif char == "\b":
            self._x = max(0, self._x - 1)
        elif unicodedata.combining(char):
            self.cells[self._y][self._x - 1] += char
        else:
            wide = 2 if unicodedata.east_asian_width(char) in "WF" else 1
            if self._x + wide > self.width:
                self._put("\r")
                self._put("\n")
            self.cells[self._y][self._x : self._x + wide] = [char, ""][:wide]
            self._sgr[self._y][self._x : self._x + wide] = [self._style] * wide
            self._x += wide

    def _do(self, private: bool, arguments: str, what: str) -> None:
        numbers = [int(text or 0) for text in arguments.split(";")]
        if private and what in "hl":
            (self.modes.add if what == "h" else self.modes.discard)(arguments)
        elif what == "H":
            row, column = (*numbers, 1)[:2] if arguments else (1, 1)
            self._y, self._x = min(row or 1, self.height) - 1, min(column or 1, self.width) - 1
        elif what == "K" and numbers == [0]:
            self._erase(self._y, self._x)
        elif what == "J" and numbers == [0]:
            self._do(False, "", "K")
            for row in range(self._y + 1, self.height):
                self._erase(row, 0)
        elif what == "m":
            self.styles.add(arguments)
            self._style = "" if arguments in ("", "0") else arguments
        else:
            self.unknown.add(f"{arguments}{what}")

    def _erase(self, row: int, begin: int) -> None:
        self.cells[row][begin:] = [" "] * (self.width - begin)
        self._sgr[row][begin:] = [""] * (self.width - begin)


class OnScreen:
    """A command on a pty of this size. As a context it ends with it."""

    def __init__(self, *command: str, width: int = 80, height: int = 24, **environment: str) -> None:
        self.screen = Screen(width, height)
        self.bytes = 0  # that the command wrote
        self.raw = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self.fd, theirs = pty.openpty()
        self.resize(width, height, tell=False)
        self.before = termios.tcgetattr(self.fd)
        env = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        # A session of its own, with this terminal: Ctrl-C goes to it.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**env, "TERM": "xterm", **environment},
        )  # fmt: skip
        os.close(theirs)

    def __enter__(self) -> OnScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)  # a hangup
        self.process.terminate()
        self.process.wait(20)

    @property
    def text(self) -> str:
        """What stands on the screen now."""
        self._read(0)
        return self.screen.text

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, width: int, height: int, tell: bool = True) -> None:
        if tell:
            self.screen = Screen(width, height)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    def wait(self, shown: str | Callable[[str], object], seconds: float = 20) -> str:
        """Wait until the screen matches a pattern, or a test of it holds; it."""
        until = time.monotonic() + seconds
        while True:
            text = self.text
            if shown(text) if callable(shown) else re.search(shown, text, re.M):
                return text
            assert time.monotonic() < until, f"no {shown!r} in\n{text}"
            self._read(0.1)

    def watch(self, seconds: float) -> int:
        """Look on for so long; how many bytes came."""
        until, before = time.monotonic() + seconds, self.bytes
        while (left := until - time.monotonic()) > 0:
            self._read(left)
        return self.bytes - before

    def ended(self, seconds: float = 20) -> int:
        """Wait for the end; the exit code. What was written by then is on the screen."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, "it goes on"
            self._read(0.05)
        self._read(0)
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal has the settings that it had before."""
        return termios.tcgetattr(self.fd) == self.before

    def pid(self) -> int:
        """The command's own, below setsid."""
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(children) as file:
            found = file.read().split()
        return int(found[0]) if found else self.process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid(), number)

    def _read(self, seconds: float) -> None:
        while select.select([self.fd], [], [], seconds)[0]:
            try:
                raw = os.read(self.fd, 1 << 16)
            except OSError:  # nobody has the other end any more
                return
            if not raw:
                return
            self.bytes += len(raw)
            text = self._decode.decode(raw)
            self.raw += text
            self.screen.feed(text)
            seconds = 0
