"""hostguard top: a live view, refreshed once a second."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from hostguard.cli.options import json_option, show
from hostguard.cli.render import terminal_width


@click.command()
@click.option("--once", is_flag=True, help="Print one screen and exit.")
@json_option
def command(once: bool, as_json: bool) -> int:
    """Show what runs, what waits and how the disk is, once a second.

    Live turns with the CPU time and disk bytes they use, per second and in total, sorted by bytes written;
    the minds that wait and why; the cap; and the disk during the last two minutes. Keys stop a turn, pause
    one mind or all, and change the cap; h lists them. If standard input or output is not a terminal, one
    screen is printed, as with --once; --json prints it as JSON.

    \b
    Examples:
      hostguard top
      hostguard top --once
    """
    # Only here: --help does not need it, and a script does not need curses.
    from hostguard.cli.top import ask, draw, keys

    if not (as_json or once) and sys.stdin.isatty() and sys.stdout.isatty():
        from hostguard.cli.top import loop, terminal

        try:
            loop.run(ask.status())
        except terminal.Ended as ended:
            return ended.code
        return 0
    shown = ask.once()
    text = draw.plain(draw.screen(shown, keys.Ui(), terminal_width(), None, draw.ASCII))
    show(asdict(shown), as_json, text)
    return 0
