"""hostguard route: test the routes of a mind."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import complete_minds, json_option, show
from hostguard.core.text import fields, safe


@click.group()
def command() -> None:
    """Test the routes of a mind.

    \b
    Example:
      hostguard route test coder --channel '#general' --sender bob
    """


@command.command()
@click.argument("mind", shell_complete=complete_minds)
@click.option("--channel", help="The channel of the message.")
@click.option("--sender", help="The sender.")
@click.option("--dm", is_flag=True, help="The message is a direct one.")
@click.option(
    "--participants",
    "participantCount",
    metavar="N",
    type=click.IntRange(0),
    help="The number of participants.",
)
@click.option("--content", metavar="TEXT", default="", help="The text, for rules that require a mention.")
@click.option("--session", help="The session that the message names.")
@json_option
def test(mind: str, dm: bool, as_json: bool, **options: Any) -> None:
    """Show which rule of the mind's routes matches a message, and the result. Nothing is sent.

    \b
    Example:
      hostguard route test coder --channel '#general' --sender bob --content "hello @coder"
    """
    body = {name: value for name, value in options.items() if value is not None}
    if dm:  # by default, a message without a channel is one
        body["isDM"] = True
    name = mind.removeprefix("@")
    answer = client.call("POST", f"/v1/minds/{client.quote(name)}/route", body=body)
    batch = answer.get("batch") or {}
    pairs = [
        ("Action", answer["action"]),
        ("Rule", answer["rule"]),
        ("Session", answer["session"]),
        ("File", answer["path"]),
        ("Mode", answer["mode"] if answer["action"] == "deliver" else None),
        ("Debounce", f"{batch['debounce_s']:g} s" if batch else None),
        ("Longest wait", f"{batch['max_wait_s']:g} s" if batch else None),
        ("Triggers", ", ".join(batch["triggers"]) if batch.get("triggers") else None),
    ]
    show(answer, as_json, f"{fields(pairs)}\n{safe(answer['text'])}")
