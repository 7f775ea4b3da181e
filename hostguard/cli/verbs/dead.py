"""hostguard dead: list, retry or drop dead letters."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import complete_dead, complete_minds, each, json_option, show
from hostguard.cli.render import terminal_width
from hostguard.cli.verbs.queue import LIMIT_MAX, ended
from hostguard.core.text import clock, table

ids_argument = click.argument("ids", metavar="[ID]...", type=int, nargs=-1, shell_complete=complete_dead)
all_option = click.option(
    "--all", "all_", is_flag=True, help="All dead letters; with --mind, all for that mind."
)
mind_option = click.option("--mind", help="Only dead letters for this mind.", shell_complete=complete_minds)


@click.group()
def command() -> None:
    """List, retry or drop dead letters.

    A dead letter is a delivery that failed ten times. It stays until you retry or drop it.

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
    rows = [
        (d["id"], d["mind"], d["sender"] or "-", clock(d["ended_at"]), d["attempts"], ended(d["result"]))
        for d in found
    ]
    text = table(("ID", "MIND", "SENDER", "DEAD SINCE", "ATTEMPTS", "REASON"), rows, terminal_width())
    show({"deliveries": found}, as_json, text if found else "no dead letters")


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
    """Cancel dead letters.

    \b
    Examples:
      hostguard dead drop 17
      hostguard dead drop --all
    """
    return each(_chosen(ids, all_, mind), "drop", "dropped", as_json)


def _chosen(ids: tuple[int, ...], all_: bool, mind: str | None) -> tuple[int, ...]:
    if bool(ids) == all_:
        raise click.UsageError("give the ids of dead letters, or --all")
    if ids and mind:
        raise click.UsageError("--mind needs --all")
    return ids or tuple(row["id"] for row in _dead(mind))


def _dead(mind: str | None) -> list[Any]:
    found: list[Any] = []
    while True:
        params = {"state": "dead", "mind": mind and mind.removeprefix("@"), "limit": LIMIT_MAX}
        params["after"] = found[-1]["id"] if found else 0
        page = client.call("GET", "/v1/deliveries", params=params)["deliveries"]
        found += page
        if len(page) < LIMIT_MAX:
            return found
