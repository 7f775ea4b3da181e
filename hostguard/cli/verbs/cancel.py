"""hostguard cancel: take deliveries out of the queue."""

from __future__ import annotations

import click

from hostguard.cli.options import complete_rows, each, json_option


@click.command()
@click.argument("ids", metavar="ID...", type=int, nargs=-1, required=True, shell_complete=complete_rows)
@json_option
def command(ids: tuple[int, ...], as_json: bool) -> int:
    """Take deliveries out of the queue.

    A turn that runs is not touched: use `hostguard stop`.

    \b
    Example:
      hostguard cancel 17 18
    """
    return each(ids, "cancel", "cancelled", as_json)
