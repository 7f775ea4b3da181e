"""hostguard events: show holds, starts, ends and changes."""

from __future__ import annotations

import json
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.away import Away
from hostguard.cli.errors import CliError, ConnectionLost
from hostguard.core.clock import now_ms
from hostguard.core.text import clock, safe


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Continue with new events.")
@click.option("--since", metavar="ID", type=click.IntRange(min=0), help="Only events with a higher id.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead.")
def command(follow: bool, since: int | None, as_json: bool) -> None:
    """Show holds, starts, ends and changes.

    Without --follow, print the events that the daemon remembers and exit. With it, reconnect if the daemon
    restarts.

    \b
    Examples:
      hostguard events
      hostguard events --follow --json
    """
    last, away = since, Away()
    while True:
        headers = {"Last-Event-ID": str(last or 0)} if last is not None or not follow else {}
        params = {} if follow else {"follow": "0"}
        try:
            with client.request("GET", "/v1/events", headers=headers, params=params) as answer:
                away.back()
                last = last or now_ms()  # below all ids of the daemon's next run
                for event in client.server_sent(answer.lines()):
                    last = event["id"]
                    click.echo(json.dumps(event) if as_json else event_line(event))
            if not follow:
                return
            raise ConnectionLost()
        except CliError as error:
            if not follow:
                raise
            away.bear(error)


def event_line(event: Any) -> str:
    """One line for an event."""
    return f"{event['id']}  {clock(event['at'])}  {safe(event['type']):10}  {safe(event['text'])}"
