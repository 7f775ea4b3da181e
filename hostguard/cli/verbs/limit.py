"""hostguard limit: show or change the caps."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from hostguard.cli import client
from hostguard.cli.options import complete_minds, json_option, show
from hostguard.cli.render import terminal_width
from hostguard.core.text import table, whole

NAMES = ("global_concurrent_turns", "mind_concurrent_turns")
WORDS = ("unlimited", "default")


def complete_setting(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of the limits, and the words among their values."""
    known = [f"{name}={value}" for name in NAMES for value in ("", *WORDS)]
    return [CompletionItem(one) for one in known if one.startswith(incomplete) and one != incomplete]


@click.group()
def command() -> None:
    """Show or change the limits.

    \b
    Examples:
      hostguard limit show
      hostguard limit set global_concurrent_turns=2
    """


@command.command("show")
@json_option
def show_(as_json: bool) -> None:
    """Show the limits and the source of each.

    \b
    Example:
      hostguard limit show
    """
    _print(client.call("GET", "/v1/limits"), as_json)


@command.command("set")
@click.argument("setting", metavar="NAME=VALUE", shell_complete=complete_setting)
@click.option("--mind", help="Only for this mind.", shell_complete=complete_minds)
@click.option("--runtime", is_flag=True, help="Only until the next boot.")
@json_option
def set_(setting: str, mind: str | None, runtime: bool, as_json: bool) -> None:
    """Change a limit immediately; no running turn is stopped.

    NAME is global_concurrent_turns or mind_concurrent_turns. VALUE is a number (0 starts nothing),
    "unlimited", or "default" for the value in the configuration.

    \b
    Examples:
      hostguard limit set global_concurrent_turns=2
      hostguard limit set mind_concurrent_turns=3 --mind coder --runtime
    """
    name, value = parse_setting(setting)
    request = {"name": name, "mind": mind and mind.removeprefix("@"), "value": value, "runtime": runtime}
    _print(client.call("PATCH", "/v1/limits", body=request), as_json)


def parse_setting(text: str) -> tuple[str, int | str]:
    """Split "NAME=VALUE". Raises click.BadParameter."""
    name, equals, value = text.partition("=")
    if not equals or name not in NAMES:
        names = " or ".join(NAMES)
        raise click.BadParameter(f"invalid setting {text!r}: use NAME=VALUE, where NAME is {names}")
    if value in WORDS:
        return name, value
    try:
        return name, whole(value)
    except ValueError:
        wanted = "use a whole number, unlimited or default"
        raise click.BadParameter(f"invalid value {value!r:.100}: {wanted}") from None


def _print(answer: Any, as_json: bool) -> None:
    values = [
        (limit, "unlimited" if limit["value"] is None else limit["value"]) for limit in answer["limits"]
    ]
    rows = [(limit["name"], limit["mind"] or "-", value, limit["source"]) for limit, value in values]
    show(answer, as_json, table(("LIMIT", "MIND", "VALUE", "SOURCE"), rows, terminal_width()))
