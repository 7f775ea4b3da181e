"""hostguard doctor: check which limits this host can enforce, and whether minds can leave their turns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from hostguard.cli.doctor.checks import Check, Level
from hostguard.cli.errors import FAILED
from hostguard.cli.options import json_option, show
from hostguard.cli.render import terminal_width
from hostguard.core.text import safe

INDENT = " " * 9
WIDTH = 80  # without a terminal
COLOURS = {Level.PROBLEM: "red", Level.WARNING: "yellow", Level.OK: "green"}


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Check which limits this host can enforce, and explain how to fix those it cannot.

    It also checks what lets minds run something outside of their turns.

    It changes nothing and works without the daemon. Run it as root: other users see less. It exits with 1 if
    there is a problem, but not for a warning.

    \b
    Examples:
      hostguard doctor
      hostguard doctor --json
    """
    from hostguard.cli.doctor import examine, this_host

    checks = examine(this_host())
    problem = any(check.level is Level.PROBLEM for check in checks)
    answer = {"ok": not problem, "checks": [asdict(check) for check in checks]}
    show(answer, as_json, "\n".join(report(checks, terminal_width() or WIDTH)))
    return FAILED if problem else 0


def report(checks: Sequence[Check], width: int) -> Iterator[str]:
    """The report: each finding with its fix, then the names of the checks that passed."""
    for check in checks:
        if check.level is Level.OK:
            continue
        yield from _paragraph(check.level, safe(f"{check.name}: {check.found}"), width)
        if check.why:
            yield from textwrap.wrap(safe(check.why), width, initial_indent=INDENT, subsequent_indent=INDENT)
        yield from (f"{INDENT}> {safe(line)}" for line in check.mend)
    passed = [check.name for check in checks if check.level is Level.OK]
    if passed:
        yield from _paragraph(Level.OK, ", ".join(passed), width)


def _paragraph(level: Level, text: str, width: int) -> Iterator[str]:
    first, *rest = textwrap.wrap(text, width - len(INDENT))
    yield click.style(f"{level:<9}", fg=COLOURS[level]) + first
    yield from (INDENT + line for line in rest)
