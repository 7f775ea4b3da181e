"""hostguard reload: read the configuration again."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.errors import FAILED, USAGE, CliError
from hostguard.cli.options import json_option, show
from hostguard.core.text import safe


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Read the configuration again.

    Running turns are not affected. An invalid configuration is rejected and the running one kept.

    \b
    Example:
      hostguard reload
    """
    try:
        answer = client.call("POST", "/v1/reload")
    except CliError as error:
        # The error is in the files, not on the command line.
        raise CliError(error.message, FAILED if error.exit_code == USAGE else error.exit_code) from None
    sources = ", ".join(safe(source) for source in answer["sources"])
    show(answer, as_json, f"read {sources or 'no file: the defaults apply'}")
