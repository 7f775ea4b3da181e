"""Options, shell completion and output that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from hostguard.cli import client
from hostguard.cli.errors import CliError, NotRunning
from hostguard.cli.render import to_json
from hostguard.cli.tables import mind_session, row_line
from hostguard.core.clock import now_ms
from hostguard.core.text import parse_duration, parse_since, parse_when

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")


class Parsed(click.ParamType):  # type: ignore[type-arg] # generic in newer versions only
    """The type of an option that a function parses; `name` is what --help shows for the value."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the value. Raises click.BadParameter."""
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Parsed("T", parse_duration)  # seconds
SINCE = Parsed("SINCE", lambda text: parse_since(text, now_ms()))  # seconds
TIME = Parsed("WHEN", lambda text: parse_when(text, now_ms()))  # ms since the epoch
WHILE_SLEEPING = click.Choice(("skip", "queue", "trigger-wake"))


Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(path: str, key: str, entry: Callable[[Any], tuple[Any, str]]) -> Completer:
    """Completes from the daemon's list `key` at `path`; nothing if it does not answer within a second.

    `entry` makes the value, and a note for shells that show one.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = map(entry, client.call("GET", path, read_s=1.0)[key])
        except CliError:
            return []
        # A turn not started by hostguard has no id.
        known = [(str(value), note) for value, note in found if value is not None]
        return [CompletionItem(value, help=note) for value, note in known if value.startswith(incomplete)]

    return complete


def _row(row: Any) -> tuple[Any, str]:
    return row["id"], f"{mind_session(row)} {row['state']}"


def complete_minds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of minds, with the "@" that was typed."""
    at = "@" if incomplete.startswith("@") else ""
    return completer("/v1/minds", "minds", lambda mind: (at + mind["name"], ""))(ctx, param, incomplete)


def complete_addresses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of minds as "@name", and those of channels as "#name"."""
    if incomplete.startswith("#"):
        return complete_channels(ctx, param, incomplete)
    minds = complete_minds(ctx, param, f"@{incomplete.removeprefix('@')}")
    return minds if incomplete else minds + complete_channels(ctx, param, incomplete)


complete_channels = completer("/v1/config", "channels", lambda name: (f"#{name}", ""))
complete_turns = completer("/v1/turns", "turns", lambda turn: (turn["id"], mind_session(turn)))
complete_rows = completer("/v1/deliveries", "deliveries", _row)  # that wait or are in a turn
complete_dead = completer("/v1/deliveries?state=dead", "deliveries", _row)


def show(answer: Any, as_json: bool, text: str) -> None:
    """Print the answer as JSON, or else the text."""
    click.echo(to_json(answer) if as_json else text)


def each(ids: tuple[int, ...], action: str, done: str, as_json: bool) -> int:
    """POST `action` for each delivery and print the results; the exit code.

    An error is reported and does not stop the others.
    """
    changed, code = [], 0
    for id_ in ids:
        try:
            changed.append(client.call("POST", f"/v1/deliveries/{id_}/{action}"))
        except NotRunning:
            raise
        except CliError as error:
            error.show()
            code = error.exit_code
    if changed or as_json:
        show({"deliveries": changed}, as_json, "\n".join(row_line(row, done) for row in changed))
    return code
