"""hostguard status: how things are, with the daemon or without."""

from __future__ import annotations

import click

from hostguard.cli import overview
from hostguard.cli.options import json_option


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Show how the host, its minds and its turns are.

    What is wrong comes first, the worst at the top; then what waits and why, what runs, and who writes most.
    Without the daemon it shows the live turns straight from systemd, and exits with 3.

    \b
    Examples:
      hostguard status
      hostguard status --json
    """
    return overview.show(as_json)
