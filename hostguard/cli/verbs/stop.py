"""hostguard stop: end a turn."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.options import complete_turns, json_option, print_json
from hostguard.core.text import safe


@click.command()
@click.argument("turn", shell_complete=complete_turns)
@json_option
def command(turn: str, as_json: bool) -> None:
    """Stop a live turn.

    Its processes get SIGTERM, and later SIGKILL, from systemd.

    \b
    Example:
      hostguard stop 17
    """
    answer = client.call("POST", f"/v1/turns/{client.quote(turn)}/stop")
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{safe(answer['id'])} is being stopped ({safe(answer['unit'])})")
