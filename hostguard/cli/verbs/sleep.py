"""hostguard sleep: let a mind sleep."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.options import as_time, complete_minds, json_option, print_json
from hostguard.cli.verbs.minds import asleep_text


@click.command()
@click.argument("mind", shell_complete=complete_minds)
@click.option("--until", metavar="WHEN", callback=as_time, help="Wake it then.")
@json_option
def command(mind: str, until: int | None, as_json: bool) -> None:
    """Let a mind sleep.

    It is told, and sleeps once its turn is over; its service, if it has one, is stopped. What is sent to it
    waits, but for what wakes it. WHEN is +8h or an ISO time.

    \b
    Examples:
      hostguard sleep coder
      hostguard sleep coder --until 2026-07-22T07:00
    """
    name = mind.removeprefix("@")
    answer = client.call("POST", f"/v1/minds/{client.quote(name)}/sleep", body={"until": until})
    if as_json:
        print_json(answer)
    else:
        click.echo(asleep_text(answer))
