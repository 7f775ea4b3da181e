"""hostguard doctor: what this host can and cannot enforce, and how to mend it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from hostguard.cli.doctor.checks import Check, Level
from hostguard.cli.errors import FAILED
from hostguard.cli.options import json_option, print_json
from hostguard.cli.render import terminal_width
from hostguard.core.text import safe

INDENT = " " * 9
WIDTH = 80  # where there is no terminal
COLOURS = {Level.PROBLEM: "red", Level.WARNING: "yellow", Level.OK: "green"}


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Check what this host can and cannot enforce, and tell how to mend what it cannot.

    Changes nothing, and works without the daemon. Run it as root: other users see less. Exits with 1 if there
    is a problem; warnings are for you to weigh.

    \b
    Examples:
      hostguard doctor
      hostguard doctor --json
    """
    from hostguard.cli.doctor import examine, this_host

    checks = examine(this_host())
    problem = any(check.level is Level.PROBLEM for check in checks)
    if as_json:
        print_json({"ok": not problem, "checks": [asdict(check) for check in checks]})
    else:
        click.echo("\n".join(report(checks, terminal_width() or WIDTH)))
    return FAILED if problem else 0


def report(checks: Sequence[Check], width: int) -> Iterator[str]:
    """The screen: what is wrong with its mend, then what is well, in one paragraph."""
    for check in checks:
        if check.level is Level.OK:
            continue
        yield from _paragraph(check.level, safe(f"{check.name}: {check.found}"), width)
        if check.why:
            yield from textwrap.wrap(safe(check.why), width, initial_indent=INDENT, subsequent_indent=INDENT)
        yield from (f"{INDENT}> {safe(line)}" for line in check.mend)
    fine = [check.name for check in checks if check.level is Level.OK]
    if fine:
        yield from _paragraph(Level.OK, ", ".join(fine), width)


def _paragraph(level: Level, text: str, width: int) -> Iterator[str]:
    first, *rest = textwrap.wrap(text, width - len(INDENT))
    yield click.style(f"{level:<9}", fg=COLOURS[level]) + first
    yield from (INDENT + line for line in rest)
