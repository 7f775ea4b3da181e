"""hostguard why: explain why a delivery waits."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.options import complete_rows, json_option, show
from hostguard.core.text import clock, fields, safe


@click.command()
@click.argument("id_", metavar="ID", type=int, shell_complete=complete_rows)
@json_option
def command(id_: int, as_json: bool) -> None:
    """Explain why a delivery waits.

    Shows the reason, the turn or pause that blocks it, since when, and its place in the queue.

    \b
    Example:
      hostguard why 17
    """
    answer = client.call("GET", f"/v1/deliveries/{id_}/why")
    pairs = [
        ("State", answer.get("state")),
        ("Reason", answer.get("reason")),
        ("Behind", answer.get("blocker")),
        ("Since", clock(answer.get("since"))),
        ("Due", clock(answer.get("due"))),
        ("Place in queue", answer.get("place")),
    ]
    show(answer, as_json, f"{safe(answer['text'])}\n{fields(pairs)}")
