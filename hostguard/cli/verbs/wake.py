"""hostguard wake: wake a mind."""

from __future__ import annotations

import click

from hostguard.cli.options import complete_minds, json_option, set_sleep


@click.command()
@click.argument("mind", shell_complete=complete_minds)
@json_option
def command(mind: str, as_json: bool) -> None:
    """Wake a mind.

    Its service, if it has one, is started, and its waiting messages follow in order.

    \b
    Example:
      hostguard wake coder
    """
    set_sleep("wake", mind, {}, as_json)
