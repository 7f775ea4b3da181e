"""hostguard resume: end a pause."""

from __future__ import annotations

import click

from hostguard.cli.options import complete_minds, json_option, set_pause


@click.command()
@click.argument("mind", required=False, shell_complete=complete_minds)
@json_option
def command(mind: str | None, as_json: bool) -> None:
    """End a pause.

    Without MIND, end the pause of all minds; a mind that was paused by name stays paused.

    \b
    Examples:
      hostguard resume
      hostguard resume coder
    """
    set_pause("resume", mind, as_json)
