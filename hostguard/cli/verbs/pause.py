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
    name = mind and mind.removeprefix("@")
    answer = client.call("POST", f"/v1/{action}", body={"mind": name})
    names = ", ".join(safe(name) for name in answer["paused"])
    paused = names
    if answer["host"]:
        paused = "all minds" + (f", and by name: {names}" if names else "")
    if action == "pause":
        text = f"paused: {paused}"
    else:
        did = "resumed" if answer["changed"] else "not paused"
        text = f"{did}: {safe(name or 'all minds')}" + (f"; still paused: {paused}" if paused else "")
    show(answer, as_json, text)
