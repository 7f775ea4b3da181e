"""hostguard reload: read the configuration again."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.errors import FAILED, USAGE, CliError
from hostguard.cli.options import json_option, print_json
from hostguard.core.text import safe


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Read the configuration again.

    Running turns are not touched. A configuration with an error changes nothing: the old one stays in force.

    \b
    Example:
      hostguard reload
    """
    try:
        answer = client.call("POST", "/v1/reload")
    except CliError as error:
        # The files are wrong, not the command line.
        raise CliError(error.message, FAILED if error.exit_code == USAGE else error.exit_code) from None
    if as_json:
        print_json(answer)
    else:
        click.echo("read " + (", ".join(safe(source) for source in answer["sources"]) or "no file: defaults"))
