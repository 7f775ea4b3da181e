"""hostguard wake: wake a mind."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.options import complete_minds, json_option, print_json
from hostguard.cli.verbs.minds import asleep_text


@click.command()
@click.argument("mind", shell_complete=complete_minds)
@json_option
def command(mind: str, as_json: bool) -> None:
    """Wake a mind.

    Its service, if it has one, is started, and what waited for it follows in order.

    \b
    Example:
      hostguard wake coder
    """
    name = mind.removeprefix("@")
    answer = client.call("POST", f"/v1/minds/{client.quote(name)}/wake", body={})
    if as_json:
        print_json(answer)
    else:
        click.echo(asleep_text(answer))
