"""hostguard pause and resume: start no more turns, and go on."""

from __future__ import annotations

import click

from hostguard.cli import client
from hostguard.cli.options import complete_minds, json_option, show
from hostguard.core.text import safe


@click.command()
@click.argument("mind", required=False, shell_complete=complete_minds)
@json_option
def pause(mind: str | None, as_json: bool) -> None:
    """Start no more turns, of one mind or of all.

    Running turns continue. A pause survives restarts.

    \b
    Examples:
      hostguard pause
      hostguard pause coder
    """
    _set("pause", mind, as_json)


@click.command()
@click.argument("mind", required=False, shell_complete=complete_minds)
@json_option
def resume(mind: str | None, as_json: bool) -> None:
    """End a pause.

    Without MIND, end the pause of all minds; a mind that was paused by name stays paused.

    \b
    Examples:
      hostguard resume
      hostguard resume coder
    """
    _set("resume", mind, as_json)


def _set(action: str, mind: str | None, as_json: bool) -> None:
    answer = client.call("POST", f"/v1/{action}", body={"mind": mind and mind.removeprefix("@")})
    names = ", ".join(safe(name) for name in answer["paused"])
    if answer["host"]:
        text = "paused: all minds" + (f", and by name: {names}" if names else "")
    else:
        text = f"paused: {names}" if names else "nothing is paused"
    show(answer, as_json, text)
