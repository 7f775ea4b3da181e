"""hostguard minds: list the minds."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.options import json_option, show
from hostguard.cli.render import terminal_width
from hostguard.cli.tables import mind_table


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the minds.

    Each with its live turns and its cap, its sessions with their age, and its waiting messages.

    \b
    Example:
      hostguard minds
    """
    answer = client.call("GET", "/v1/minds")
    none = "no mind is configured: hostguard mind add NAME ..."
    show(answer, as_json, mind_table(answer["minds"], terminal_width()) if answer["minds"] else none)
