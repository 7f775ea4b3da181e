"""hostguard mind: what concerns one mind."""

from __future__ import annotations

import click

from hostguard import client
from hostguard.cli.common import complete_minds, json_option, print_json


@click.group()
def command() -> None:
    """Set up one mind.

    \b
    Example:
      hostguard mind token coder
    """


@command.command()
@click.argument("name", shell_complete=complete_minds)
@json_option
def token(name: str, as_json: bool) -> None:
    """Make a new token for a mind, and print it: it is not shown again.

    With it the mind tells the guard that it is done, and sends messages. Only its hash is kept; an older
    token of the mind ends.

    \b
    Examples:
      hostguard mind token coder
      echo "VOLUTE_DAEMON_TOKEN=$(hostguard mind token coder)" >/etc/coder.env
    """
    answer = client.call("POST", f"/v1/minds/{client.quote(name.removeprefix('@'))}/token", body={})
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["token"])
