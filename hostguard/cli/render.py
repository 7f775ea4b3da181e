"""Output: the size and the colours of the terminal, and JSON."""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # typing's own costs its import, which `hostguard status` can do without
if TYPE_CHECKING:
    from typing import Any


def terminal_width() -> int | None:
    """The terminal's columns, or None if stdout is not a terminal: pipes get full values."""
    return terminal_size()[0]


def terminal_size() -> tuple[int | None, int | None]:
    """The terminal's columns and lines, both None if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return None, None
    from shutil import get_terminal_size

    return get_terminal_size()


def colours() -> bool:
    """Whether stdout is a terminal with colours and the user wants them (https://no-color.org)."""
    term = os.environ.get("TERM", "dumb")
    plain = term in ("", "dumb") or term.startswith("vt")  # DEC's terminals of that name are monochrome
    return sys.stdout.isatty() and not plain and not os.environ.get("NO_COLOR")


def to_json(value: Any) -> str:
    """Indented JSON in ASCII, which cannot contain control characters."""
    return json.dumps(value, indent=2)
