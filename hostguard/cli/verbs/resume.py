"""hostguard resume: undo a pause."""

from __future__ import annotations

import click

from hostguard.cli.options import complete_minds, json_option, set_pause


@click.command()
@click.argument("mind", required=False, shell_complete=complete_minds)
@json_option
def command(mind: str | None, as_json: bool) -> None:
    """Undo a pause.

    Without MIND it undoes that of all minds together; a mind paused by name stays so.

    \b
    Examples:
      hostguard resume
      hostguard resume coder
    """
    set_pause("resume", mind, as_json)
