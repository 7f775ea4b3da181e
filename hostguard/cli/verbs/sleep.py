"""hostguard sleep: put a mind to sleep."""

from __future__ import annotations

import click

from hostguard.cli.options import TIME, complete_minds, json_option, set_sleep


@click.command()
@click.argument("mind", shell_complete=complete_minds)
@click.option("--until", type=TIME, help="Wake it at this time.")
@json_option
def command(mind: str, until: int | None, as_json: bool) -> None:
    """Put a mind to sleep.

    The mind gets a notice, and sleeps when its turn is over; its service, if it has one, is stopped. Messages
    wait, except those that wake it. WHEN is +8h, 7:00 or an ISO time.

    \b
    Examples:
      hostguard sleep coder
      hostguard sleep coder --until 2026-07-22T07:00
    """
    set_sleep("sleep", mind, {"until": until}, as_json)
