"""hostguard limit: the caps."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import complete_minds, json_option, print_json
from hostguard.cli.render import terminal_width
from hostguard.core.text import table

NAMES = ("global_concurrent_turns", "mind_concurrent_turns")


@click.group()
def command() -> None:
    """Show the limits, or change one at once.

    \b
    Examples:
      hostguard limit show
      hostguard limit set global_concurrent_turns=2
    """


@command.command()
@json_option
def show(as_json: bool) -> None:
    """Show the limits and where each comes from.

    \b
    Example:
      hostguard limit show
    """
    _print(client.call("GET", "/v1/limits"), as_json)


@command.command("set")
@click.argument("setting", metavar="NAME=VALUE")
@click.option("--mind", help="Only for this mind.", shell_complete=complete_minds)
@click.option("--runtime", is_flag=True, help="Only until the host is restarted.")
@json_option
def set_(setting: str, mind: str | None, runtime: bool, as_json: bool) -> None:
    """Change a limit at once; no running turn is stopped.

    NAME is global_concurrent_turns or mind_concurrent_turns. VALUE is a number (0 starts nothing),
    "unlimited", or "default": what the configuration says.

    \b
    Examples:
      hostguard limit set global_concurrent_turns=2
      hostguard limit set mind_concurrent_turns=3 --mind coder --runtime
    """
    name, value = parse_setting(setting)
    request = {"name": name, "mind": mind and mind.removeprefix("@"), "value": value, "runtime": runtime}
    _print(client.call("PATCH", "/v1/limits", body=request), as_json)


def parse_setting(text: str) -> tuple[str, int | str]:
    """(name, value) of "NAME=VALUE". Raises click.BadParameter."""
    name, equals, value = text.partition("=")
    if not equals or name not in NAMES:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE with NAME one of {', '.join(NAMES)}")
    if value in ("unlimited", "default"):
        return name, value
    if not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{value!r} is not a whole number, unlimited or default")
    return name, int(value)


def _print(answer: Any, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    rows = [
        (
            limit["name"],
            limit["mind"] or "-",
            "unlimited" if limit["value"] is None else limit["value"],
            limit["source"],
        )
        for limit in answer["limits"]
    ]
    click.echo(table(("LIMIT", "MIND", "VALUE", "SOURCE"), rows, terminal_width()))
