"""hostguard dead: dead letters, which failed for good."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import complete_dead, complete_minds, each, json_option, print_json
from hostguard.cli.render import terminal_width
from hostguard.cli.verbs.queue import LIMIT_MAX, ended
from hostguard.core.text import clock, table

ids_argument = click.argument("ids", metavar="[ID]...", type=int, nargs=-1, shell_complete=complete_dead)
all_option = click.option("--all", "all_", is_flag=True, help="All dead letters, or all of --mind.")
mind_option = click.option("--mind", help="Only this mind's.", shell_complete=complete_minds)


@click.group()
def command() -> None:
    """Show dead letters, try them again, or drop them.

    A delivery that failed ten times is a dead letter. It stays until somebody decides.

    \b
    Examples:
      hostguard dead list
      hostguard dead retry 17
      hostguard dead drop --all --mind coder
    """


@command.command("list")
@mind_option
@json_option
def list_(mind: str | None, as_json: bool) -> None:
    """List the dead letters.

    \b
    Example:
      hostguard dead list --mind coder
    """
    found = _dead(mind)
    if as_json:
        print_json({"deliveries": found})
    elif not found:
        click.echo("there is no dead letter")
    else:
        rows = [
            (d["id"], d["mind"], d["sender"] or "-", clock(d["ended_at"]), d["attempts"], ended(d["result"]))
            for d in found
        ]
        click.echo(
            table(("ID", "MIND", "SENDER", "DEAD SINCE", "ATTEMPTS", "REASON"), rows, terminal_width())
        )


@command.command()
@ids_argument
@all_option
@mind_option
@json_option
def retry(ids: tuple[int, ...], all_: bool, mind: str | None, as_json: bool) -> int:
    """Queue dead letters again.

    \b
    Examples:
      hostguard dead retry 17 18
      hostguard dead retry --all --mind coder
    """
    return each(_chosen(ids, all_, mind), "retry", "queued again", as_json)


@command.command()
@ids_argument
@all_option
@mind_option
@json_option
def drop(ids: tuple[int, ...], all_: bool, mind: str | None, as_json: bool) -> int:
    """Drop dead letters: they are cancelled.

    \b
    Examples:
      hostguard dead drop 17
      hostguard dead drop --all
    """
    return each(_chosen(ids, all_, mind), "drop", "dropped", as_json)


def _chosen(ids: tuple[int, ...], all_: bool, mind: str | None) -> tuple[int, ...]:
    if bool(ids) == all_:
        raise click.UsageError("name dead letters by their ids, or give --all")
    if ids and mind:
        raise click.UsageError("--mind goes with --all")
    return ids or tuple(row["id"] for row in _dead(mind))


def _dead(mind: str | None) -> list[Any]:
    found: list[Any] = []
    while True:
        params = {
            "state": "dead",
            "mind": mind and mind.removeprefix("@"),
            "limit": LIMIT_MAX,
            "after": found[-1]["id"] if found else 0,
        }
        page = client.call("GET", "/v1/deliveries", params=params)["deliveries"]
        found += page
        if len(page) < LIMIT_MAX:
            return found
