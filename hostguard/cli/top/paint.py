"""Bringing lines to a terminal with few bytes: only cells that changed are written, with rich's codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.color import ColorSystem
from rich.control import Control
from rich.style import Style

from hostguard.cli.top.draw import Line
from hostguard.core.text import columns

GAP = 8  # unchanged cells that are written again rather than skipped: about what moving the cursor takes
STYLES = {
    "": Style(),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "title": Style(bold=True),
    "head": Style(bold=True),
    "chosen": Style(reverse=True),
}
ERASE_LINE = "\x1b[K"  # to its end (ECMA-48, EL); rich has it for a whole line only
CLEAR = "\x1b[H\x1b[J"  # ED: the whole screen

Cell = tuple[str, str]  # a character with what combines with it, and its style


class Painter:
    """Knows what the terminal shows. `bright`: it has bold and reverse; `colour`: and colours are wanted."""

    def __init__(self, bright: bool, colour: bool) -> None:
        self._system = ColorSystem.STANDARD if bright else None
        self._colour = colour
        self._shown: list[list[Cell]] | None = None

    def forget(self) -> None:
        """The terminal may show anything: the next screen is painted whole."""
        self._shown = None

    def paint(self, lines: Sequence[Line]) -> str:
        """What to write so that the terminal shows these lines."""
        cells = [_cells(line) for line in lines]
        text = ""
        if self._shown is None or len(self._shown) != len(cells):
            text, self._shown = CLEAR, [[] for _ in cells]
        for y, (old, new) in enumerate(zip(self._shown, cells, strict=True)):
            text += self._line(y, old, new)
        self._shown = cells
        return text

    def whole(self, lines: Sequence[Line]) -> str:
        """All of the lines, for a terminal whose cursor cannot be moved."""
        return "".join(self._text(_cells(line)) + "\r\n" for line in lines)

    def _line(self, y: int, old: list[Cell], new: list[Cell]) -> str:
        if old == new:
            return ""
        if _wide(old) or _wide(new):  # a cell's place is not its index
            return f"{Control.move_to(0, y)}{self._text(new)}{ERASE_LINE}"
        text = "".join(f"{Control.move_to(x, y)}{self._text(new[x:end])}" for x, end in _changed(old, new))
        return f"{text}{Control.move_to(len(new), y)}{ERASE_LINE}" if len(old) > len(new) else text

    def _text(self, cells: Sequence[Cell]) -> str:
        text, at = "", 0
        while at < len(cells):
            style, begin = cells[at][1], at
            while at < len(cells) and cells[at][1] == style:
                at += 1
            text += self._styled("".join(char for char, _ in cells[begin:at]), style)
        return text

    def _styled(self, text: str, name: str) -> str:
        style = STYLES[name] if self._colour else STYLES[name].without_color
        return style.render(text, color_system=self._system)


def _changed(old: Sequence[Cell], new: Sequence[Cell]) -> Iterator[tuple[int, int]]:
    """Ranges of new cells that are not as the old ones; those that are near each other are one."""
    begin = end = None
    for x, cell in enumerate(new):
        if x < len(old) and old[x] == cell:
            continue
        if begin is None or end is None:
            begin = x
        elif x - end > GAP:
            yield begin, end
            begin = x
        end = x + 1
    if begin is not None and end is not None:
        yield begin, end


def _cells(line: Line) -> list[Cell]:
    cells: list[Cell] = []
    for text, style in line:
        for char in text:
            if cells and columns(char) == 0:
                cells[-1] = (cells[-1][0] + char, cells[-1][1])
            else:
                cells.append((char, style))
    return cells


def _wide(cells: Sequence[Cell]) -> bool:
    return any(not char.isascii() and columns(char) != 1 for char, _ in cells)
