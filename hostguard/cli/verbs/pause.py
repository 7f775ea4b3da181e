"""hostguard pause: start no more turns."""

from __future__ import annotations

import click

from hostguard.cli.options import complete_minds, json_option, set_pause


@click.command()
@click.argument("mind", required=False, shell_complete=complete_minds)
@json_option
def command(mind: str | None, as_json: bool) -> None:
    """Start no more turns, of one mind or of all.

    Running turns continue. A pause survives restarts.

    \b
    Examples:
      hostguard pause
      hostguard pause coder
    """
    set_pause("pause", mind, as_json)
