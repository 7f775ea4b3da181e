"""hostguard top: what happens now, once a second."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from hostguard.cli.options import json_option, print_json
from hostguard.cli.render import terminal_width


@click.command()
@click.option("--once", is_flag=True, help="Print one screen, and end.")
@json_option
def command(once: bool, as_json: bool) -> int:
    """Show what runs and waits, and how the disk is, once a second.

    Turns with what they use of CPU and disk, per second and in all, those that have written most first;
    the minds that wait, and why; the cap, and how the disk was in the last two minutes. h shows the keys:
    they stop a turn, pause a mind or all, and change the cap. Where standard output or input is no terminal
    it is as with --once; --json prints that as JSON.

    \b
    Examples:
      hostguard top
      hostguard top --once
    """
    # Only here: --help need not have it, and a script need not have rich.
    from hostguard.cli.top import ask, draw, keys

    if not (as_json or once) and sys.stdin.isatty() and sys.stdout.isatty():
        from hostguard.cli.top import loop, terminal

        try:
            loop.run(ask.status())
        except terminal.Ended as ended:
            return ended.code
        return 0
    shown = ask.once()
    if as_json:
        print_json(asdict(shown))
    else:
        click.echo(draw.plain(draw.screen(shown, keys.Ui(), terminal_width(), None, draw.ASCII)))
    return 0
