"""The terminal: how wide it is, whether it has colours; and JSON for it."""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # typing's own costs its import, which `hostguard status` can do without
if TYPE_CHECKING:
    from typing import Any


def terminal_width() -> int | None:
    """Columns of the terminal, or None if stdout is none: a pipe gets whole values."""
    return terminal_size()[0]


def terminal_size() -> tuple[int | None, int | None]:
    """Columns and lines of the terminal, or None for both if stdout is none."""
    if not sys.stdout.isatty():
        return None, None
    from shutil import get_terminal_size

    return get_terminal_size()


def colours() -> bool:
    """Whether stdout is a terminal that has colours, and the user wants them (https://no-color.org)."""
    term = os.environ.get("TERM", "dumb")
    plain = term in ("", "dumb") or term.startswith("vt")  # DEC's terminals of that name are monochrome
    return sys.stdout.isatty() and not plain and not os.environ.get("NO_COLOR")


def as_json(value: Any) -> str:
    """Indented JSON in plain ASCII, so that it too moves no cursor."""
    return json.dumps(value, indent=2)
