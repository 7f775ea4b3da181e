"""hostguard stop: stop a turn."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.options import complete_turns, json_option, show
from hostguard.core.text import safe


@click.command()
@click.argument("turn", shell_complete=complete_turns)
@json_option
def command(turn: str, as_json: bool) -> None:
    """Stop a live turn.

    systemd sends SIGTERM to its processes, and SIGKILL later.

    \b
    Example:
      hostguard stop 17
    """
    answer = client.call("POST", f"/v1/turns/{client.quote(turn)}/stop")
    show(answer, as_json, f"stopping {safe(answer['id'])} ({safe(answer['unit'])})")
