"""hostguard route: where a message would go."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import complete_minds, json_option, print_json
from hostguard.core.text import fields, safe


@click.group()
def command() -> None:
    """Explain the routes of a mind.

    \b
    Example:
      hostguard route test coder --channel '#general' --sender bob
    """


@command.command()
@click.argument("mind", shell_complete=complete_minds)
@click.option("--channel", help="The channel it comes from.")
@click.option("--sender", help="Who it is from.")
@click.option("--dm", is_flag=True, help="It is a direct message.")
@click.option("--participants", metavar="N", type=click.IntRange(0), help="How many take part.")
@click.option("--content", metavar="TEXT", default="", help="Its text, for rules that ask for a mention.")
@click.option("--session", help="A session that it names itself.")
@json_option
def test(
    mind: str,
    channel: str | None,
    sender: str | None,
    dm: bool,
    participants: int | None,
    content: str,
    session: str | None,
    as_json: bool,
) -> None:
    """Tell which rule of the mind's routes takes a message, and what becomes of it. Nothing is sent.

    \b
    Example:
      hostguard route test coder --channel '#general' --sender bob --content "hello @coder"
    """
    body: dict[str, Any] = {"content": content}
    if dm:  # left out it is one if it comes from no channel
        body["isDM"] = True
    given = {"channel": channel, "sender": sender, "participantCount": participants, "session": session}
    body |= {name: value for name, value in given.items() if value is not None}
    name = mind.removeprefix("@")
    answer = client.call("POST", f"/v1/minds/{client.quote(name)}/route", body=body)
    if as_json:
        print_json(answer)
        return
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
    click.echo(fields(pairs))
    click.echo(safe(answer["text"]))
