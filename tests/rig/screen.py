"""A terminal for tests: runs a command on a pty and emulates its screen."""

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

# Control sequences of ECMA-48 and DEC's private ones; then those that choose a character set; then the short ones.
_CODE = re.compile(r"\x1b\[(\?)?([0-9;]*)([@-~])|\x1b[()](.)|\x1b(?![\[()])(.)", re.DOTALL)
_IGNORED = "tc"  # the window's title; Linux's shape of the cursor


def rest(fd: int) -> bytes:
    """The rest of the output of a terminal whose other end was closed."""
    said = b""
    with suppress(OSError):  # EIO: that was all
        while part := os.read(fd, 1 << 16):
            said += part
    return said


class Screen:
    """The cells of a terminal, and the SGR codes of each.

    `modes` are the private modes that are set, `unknown` the control sequences that were ignored.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells = [[" "] * width for _ in range(height)]
        self._sgr = [[""] * width for _ in range(height)]
        self._style = ""
        self.modes: set[str] = set()
        self.unknown: set[str] = set()
        self.styles: set[str] = set()  # all SGR sequences
        self._x = self._y = 0
        self._saved = (0, 0)  # a place of the cursor
        self._region = (0, height - 1)  # the lines that scroll
        self._rest = ""

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.cells)

    @property
    def ansi(self) -> str:
        """The text with SGR codes, but without other control sequences."""
        text, style = "", ""
        for row, styles in zip(self.cells, self._sgr, strict=True):
            for char, sgr in zip(row, styles, strict=True):
                text += char if sgr == style else f"\x1b[0;{sgr}m{char}".replace(";m", "m")
                style = sgr
            text += "\n"
        return text.removesuffix("\n")

    def feed(self, text: str) -> None:
        """Process the output of a program."""
        text = self._rest + text
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            found = _CODE.match(text, at)
            if found is None:
                break  # incomplete
            if found[3]:
                self._do(found[1] is not None, found[2], found[3])
            elif found[5] == "7":
                self._saved = (self._x, self._y)
            elif found[5] == "8":
                self._x, self._y = self._saved
            elif found[5] == "M" and self._y == self._region[0]:
                self._scroll(self._y, -1)
            elif found[5] == "M":
                self._y = max(self._y - 1, 0)
            elif found[5] and found[5] not in "=>":  # the keypad's modes
                self.unknown.add(found[5])
            at = found.end()
        self._rest = text[at:]

    def _put(self, char: str) -> None:
        if char == "\r":
            self._x = 0
        elif char == "\n":
            if self._y == self._region[1]:
                self._scroll(self._region[0], 1)
            else:
                self._y = min(self._y + 1, self.height - 1)
        elif char == "\b":
            self._x = max(0, self._x - 1)
        elif char == "\t":
            self._x = min(self._x // 8 * 8 + 8, self.width - 1)
        elif char in "\x0e\x0f\x07":  # another character set, or none; the bell
            pass
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
            _repair(self.cells[self._y])

    def _do(self, private: bool, arguments: str, what: str) -> None:
        numbers = [int(text or 0) for text in arguments.split(";")]
        count = max(numbers[0], 1)
        cells, sgr, x = self.cells[self._y], self._sgr[self._y], self._x
        if private and what in "hl":
            change = self.modes.update if what == "h" else self.modes.difference_update
            change(arguments.split(";"))
        elif what == "H":
            row, column = (*numbers, 1)[:2] if arguments else (1, 1)
            self._y, self._x = min(row or 1, self.height) - 1, min(column or 1, self.width) - 1
        elif what in "AB":
            self._y = min(max(self._y + (count if what == "B" else -count), 0), self.height - 1)
        elif what in "CD":
            self._x = min(max(self._x + (count if what == "C" else -count), 0), self.width - 1)
        elif what == "d":
            self._y = min(count, self.height) - 1
        elif what == "G":
            self._x = min(count, self.width) - 1
        elif what == "r":
            last = numbers[1] if len(numbers) > 1 else self.height
            self._region, self._x, self._y = (count - 1, last - 1), 0, 0
        elif what in "ST":
            self._scroll(self._region[0], count if what == "S" else -count)
        elif what in "LM":
            self._scroll(self._y, count if what == "M" else -count)
        elif what == "b":
            for _ in range(count):
                self._put(cells[x - 1])
        elif what == "P":
            cells[x:], sgr[x:] = cells[x + count :] + [" "] * count, sgr[x + count :] + [""] * count
            _repair(cells)
        elif what == "@":
            cells[x:], sgr[x:] = ([" "] * count + cells[x:])[:-count], ([""] * count + sgr[x:])[:-count]
            _repair(cells)
        elif what == "X":
            self._erase(self._y, x, x + count)
        elif what == "K" and numbers[0] in (0, 1):
            self._erase(self._y, *((x, self.width) if numbers[0] == 0 else (0, x + 1)))
        elif what == "J" and numbers[0] in (0, 2):
            self._erase(self._y, x if numbers[0] == 0 else 0, self.width)
            for row in range(self._y + 1 if numbers[0] == 0 else 0, self.height):
                self._erase(row, 0, self.width)
        elif what == "m":
            self.styles.add(arguments)
            self._style = _styled(self._style, arguments)
        elif what not in _IGNORED and f"{arguments}{what}" != "4l":  # insert mode, which is never on
            self.unknown.add(f"{arguments}{what}")

    def _scroll(self, top: int, by: int) -> None:
        """Move the lines from `top` to the end of the region up, or down if `by` is negative."""
        size = self._region[1] + 1 - top
        by = max(-size, min(by, size))
        for lines, empty in ((self.cells, " "), (self._sgr, "")):
            new = [[empty] * self.width for _ in range(abs(by))]
            kept = lines[top + max(by, 0) : top + size + min(by, 0)]
            lines[top : top + size] = kept + new if by > 0 else new + kept

    def _erase(self, row: int, begin: int, end: int) -> None:
        end = min(end, self.width)
        self.cells[row][begin:end] = [" "] * (end - begin)
        self._sgr[row][begin:end] = [""] * (end - begin)
        _repair(self.cells[row])


def _repair(cells: list[str]) -> None:
    """Blank what is left of a wide character that was written over: its other half is an empty cell."""
    for x, char in enumerate(cells):
        wide = char != "" and unicodedata.east_asian_width(char[0]) in "WF"
        halved = cells[x + 1 : x + 2] == [""]
        if wide and not halved:
            cells[x] = " "
        elif halved and not wide:
            cells[x + 1] = " "


def _styled(style: str, arguments: str) -> str:
    """The style after a change of it: SGR's codes, in their order."""
    codes = set(filter(None, style.split(";")))
    for code in arguments.split(";"):
        if code in ("", "0"):
            codes = set()
        elif code in ("39", "49"):
            codes = {one for one in codes if one[0] != code[0] or len(one) == 1}
        else:
            codes.add(code)
    return ";".join(sorted(codes))


class OnScreen:
    """A command on a pty of this size. As a context manager it ends the command."""

    def __init__(self, *command: str, width: int = 80, height: int = 24, **environment: str) -> None:
        self.screen = Screen(width, height)
        self.bytes = 0  # written by the command
        self.raw = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self.fd, theirs = pty.openpty()
        self.resize(width, height, tell=False)
        self.before = termios.tcgetattr(self.fd)
        env = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        # A new session with this controlling terminal, so that Ctrl-C reaches it.
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
        """The text of the screen."""
        self._read(0)
        return self.screen.text

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, width: int, height: int, tell: bool = True) -> None:
        if tell:
            self.screen = Screen(width, height)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    def wait(self, shown: str | Callable[[str], object], seconds: float = 20) -> str:
        """Wait until the screen matches a pattern or a predicate; its text."""
        until = time.monotonic() + seconds
        while True:
            text = self.text
            if shown(text) if callable(shown) else re.search(shown, text, re.M):
                self._read(0.1)  # the rest of a screen that comes in parts
                return self.screen.text
            assert time.monotonic() < until, f"no {shown!r} in\n{text}"
            self._read(0.1)

    def watch(self, seconds: float) -> int:
        """Read output for this long; the number of bytes."""
        until, before = time.monotonic() + seconds, self.bytes
        while (left := until - time.monotonic()) > 0:
            self._read(left)
        return self.bytes - before

    def ended(self, seconds: float = 20) -> int:
        """Wait for the command to end, and read all its output; the exit code."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, "it still runs"
            self._read(0.05)
        self._read(0)
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal has its original settings."""
        return termios.tcgetattr(self.fd) == self.before

    def pid(self) -> int:
        """The pid of the command, which setsid may have forked."""
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
            except OSError:  # the other end was closed
                return
            if not raw:
                return
            self.bytes += len(raw)
            text = self._decode.decode(raw)
            self.raw += text
            self.screen.feed(text)
            seconds = 0
