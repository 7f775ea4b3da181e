"""hostguard why: what a delivery waits for."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.options import complete_rows, json_option, print_json
from hostguard.core.text import clock, fields, safe


@click.command()
@click.argument("id_", metavar="ID", type=int, shell_complete=complete_rows)
@json_option
def command(id_: int, as_json: bool) -> None:
    """Tell why a delivery waits.

    It names the reason, what is in the way, since when, and the place in line.

    \b
    Example:
      hostguard why 17
    """
    answer = client.call("GET", f"/v1/deliveries/{id_}/why")
    if as_json:
        print_json(answer)
        return
    click.echo(safe(answer["text"]))
    pairs = [
        ("State", answer.get("state")),
        ("Reason", answer.get("reason")),
        ("Behind", answer.get("blocker")),
        ("Since", clock(answer.get("since"))),
        ("Due", clock(answer.get("due"))),
        ("Place in line", answer.get("place")),
    ]
    click.echo(fields(pairs))
