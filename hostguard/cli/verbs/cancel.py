"""hostguard cancel and retry: take deliveries out of the queue, or put them back."""

from __future__ import annotations

import click

from hostguard.cli.options import complete_dead, complete_rows, each, json_option


@click.command()
@click.argument("ids", metavar="ID...", type=int, nargs=-1, required=True, shell_complete=complete_rows)
@json_option
def cancel(ids: tuple[int, ...], as_json: bool) -> int:
    """Remove deliveries from the queue.

    Running turns are not affected: use `hostguard stop` for them.

    \b
    Example:
      hostguard cancel 17 18
    """
    return each(ids, "cancel", "cancelled", as_json)


@click.command()
@click.argument("ids", metavar="ID...", type=int, nargs=-1, required=True, shell_complete=complete_dead)
@json_option
def retry(ids: tuple[int, ...], as_json: bool) -> int:
    """Queue ended deliveries again, due now.

    \b
    Example:
      hostguard retry 17 18
    """
    return each(ids, "retry", "queued again", as_json)
