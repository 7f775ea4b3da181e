"""hostguard minds: who there is and what each does."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import json_option, print_json
from hostguard.cli.render import terminal_width
from hostguard.cli.tables import mind_table
from hostguard.core.text import clock, safe


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the minds.

    Each stands with its live turns and its cap, the sessions it works in and for how long, and what waits.

    \b
    Example:
      hostguard minds
    """
    answer = client.call("GET", "/v1/minds")
    if as_json:
        print_json(answer)
    elif answer["minds"]:
        click.echo(mind_table(answer["minds"], terminal_width()))
    else:
        click.echo("no mind is configured: hostguard mind add NAME ...")


def asleep_text(mind: Any) -> str:
    """Whether the mind sleeps, in words."""
    name, until = safe(mind["name"]), clock(mind.get("asleep_until"))
    if mind["sleep"] == "awake":
        return f"{name} is awake: {mind['state']}"
    end = f" until {until}" if until else ""
    if mind["sleep"] == "asleep":
        return f"{name} sleeps{end}"
    return f"{name} will sleep{end}, once it was told so and its turn is over"
