"""Options, shell completion and output that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from hostguard.cli import client
from hostguard.cli.errors import CliError, NotRunning
from hostguard.cli.render import to_json
from hostguard.core.clock import now_ms
from hostguard.core.names import MAIN_SESSION
from hostguard.core.quantities import parse_duration, parse_when
from hostguard.core.text import clock, safe

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
TIME = Parsed("WHEN", lambda text: parse_when(text, now_ms()))  # ms since the epoch
WHILE_SLEEPING = click.Choice(("skip", "queue", "trigger-wake"))


def complete_minds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of minds; nothing if the daemon does not answer within a second."""
    at = "@" if incomplete.startswith("@") else ""
    return _starting(incomplete, [(at + mind["name"], "") for mind in _live("/v1/minds", "minds")])


def complete_addresses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of minds as "@name"."""
    wanted = incomplete if incomplete.startswith("@") else f"@{incomplete}"
    return complete_minds(ctx, param, wanted)


def complete_turns(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of live turns."""
    return _starting(incomplete, [(turn["id"], mind_session(turn)) for turn in _live("/v1/turns", "turns")])


def complete_rows(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of deliveries that wait or are in a turn."""
    return _starting(incomplete, _rows("/v1/deliveries"))


def complete_dead(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of dead letters."""
    return _starting(incomplete, _rows("/v1/deliveries?state=dead"))


def _rows(path: str) -> list[tuple[Any, str]]:
    return [(row["id"], f"{mind_session(row)} {row['state']}") for row in _live(path, "deliveries")]


def _live(path: str, name: str) -> list[Any]:
    try:
        found: list[Any] = client.call("GET", path, read_s=1.0)[name]
    except CliError:
        return []
    return found


def _starting(incomplete: str, found: list[tuple[Any, str]]) -> list[CompletionItem]:
    """The matches, each with a note for shells that show one. A turn not started by hostguard has no id."""
    return [
        CompletionItem(str(name), help=note)
        for name, note in found
        if name is not None and str(name).startswith(incomplete)
    ]


def show(answer: Any, as_json: bool, text: str) -> None:
    """Print the answer as JSON, or else the text."""
    click.echo(to_json(answer) if as_json else text)


def mind_session(item: Any) -> str:
    """ "mind", or "mind/session" if it is not the main session; safe to print."""
    session = item.get("session")
    mind = item.get("mind") or "-"
    return safe(mind if session in (None, "", MAIN_SESSION) else f"{mind}/{session}")


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
        lines = [f"{row['id']} {mind_session(row)} {done}" for row in changed]
        show({"deliveries": changed}, as_json, "\n".join(lines))
    return code


def set_pause(action: str, mind: str | None, as_json: bool) -> None:
    """POST "pause" or "resume" for one mind, or for all, and print which minds are paused now."""
    answer = client.call("POST", f"/v1/{action}", body={"mind": mind and mind.removeprefix("@")})
    names = ", ".join(safe(name) for name in answer["paused"])
    if answer["host"]:
        text = "paused: all minds" + (f", and by name: {names}" if names else "")
    else:
        text = f"paused: {names}" if names else "nothing is paused"
    show(answer, as_json, text)


def set_sleep(action: str, mind: str, body: dict[str, Any], as_json: bool) -> None:
    """POST "sleep" or "wake" for a mind, and print its state."""
    mind = mind.removeprefix("@")
    answer = client.call("POST", f"/v1/minds/{client.quote(mind)}/{action}", body=body)
    name, until = safe(answer["name"]), clock(answer.get("asleep_until"))
    end = f" until {until}" if until else ""
    text = {"awake": f"{name} is awake: {answer['state']}", "asleep": f"{name} is asleep{end}"}.get(
        answer["sleep"], f"{name} will sleep{end}, after a notice and when its turn is over"
    )
    show(answer, as_json, text)
