"""hostguard retry: queue deliveries again."""

from __future__ import annotations

import click

from hostguard.cli.options import complete_dead, each, json_option


@click.command()
@click.argument("ids", metavar="ID...", type=int, nargs=-1, required=True, shell_complete=complete_dead)
@json_option
def command(ids: tuple[int, ...], as_json: bool) -> int:
    """Queue ended deliveries again, due now.

    \b
    Example:
      hostguard retry 17 18
    """
    return each(ids, "retry", "queued again", as_json)
