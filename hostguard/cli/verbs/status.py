"""hostguard status: the state of the host on one screen."""

from __future__ import annotations

import click

from hostguard.cli import status
from hostguard.cli.options import json_option


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Show the state of the host, its minds and its turns.

    First the problems, the worst at the top; then waiting messages with the reason, running turns, and the
    turns that write most. Without the daemon it shows the live turns as systemd lists them, and exits with 3;
    with a daemon that cannot start its work, also the reason, and exits with 1.

    \b
    Examples:
      hostguard status
      hostguard status --json
    """
    return status.show(as_json)
