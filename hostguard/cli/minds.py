"""hostguard minds: who there is and what each does."""

from __future__ import annotations

import shlex
from typing import Any

import click

from hostguard import client
from hostguard.cli.common import json_option, print_json
from hostguard.cli.show import ms, table, terminal_width


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the minds.

    Each stands with its live turns and its cap, and what waits for it.

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
        click.echo("no mind is configured: see [minds.NAME] in hostguard.toml")


def mind_table(minds: list[Any], width: int | None) -> str:
    """One mind a line, cut to `width` columns."""
    rows = [
        (
            mind["name"],
            mind["state"],
            f"{mind['live']}/{mind['cap']}",
            mind["queued"],
            mind["held"],
            ms(mind.get("oldest_wait_ms")),
            mind.get("user"),
            _command(mind.get("command")),
        )
        for mind in minds
    ]
    return table(("NAME", "STATE", "TURNS", "QUEUED", "HELD", "OLDEST", "USER", "COMMAND"), rows, width)


def _command(command: Any) -> str:
    return shlex.join(command) if isinstance(command, list) else str(command or "")
