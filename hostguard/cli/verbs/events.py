"""hostguard events: show holds, starts, ends and changes."""

from __future__ import annotations

import json
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.errors import ConnectionLost
from hostguard.core.text import clock, safe


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Continue with new events.")
@click.option("--since", metavar="ID", type=click.IntRange(min=0), help="Only events with a higher id.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead.")
def command(follow: bool, since: int | None, as_json: bool) -> None:
    """Show holds, starts, ends and changes.

    Without --follow, print the events that the daemon remembers and exit.

    \b
    Examples:
      hostguard events
      hostguard events --follow --json
    """
    headers = {"Last-Event-ID": str(since or 0)} if since is not None or not follow else {}
    params = {} if follow else {"follow": "0"}
    with client.request("GET", "/v1/events", headers=headers, params=params) as answer:
        for event in client.server_sent(answer.lines()):
            click.echo(json.dumps(event) if as_json else event_line(event))
    if follow:
        raise ConnectionLost()


def event_line(event: Any) -> str:
    """One line for an event."""
    return f"{event['id']}  {clock(event['at'])}  {safe(event['type']):10}  {safe(event['text'])}"
