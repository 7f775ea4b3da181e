"""Options that several verbs share, and the live names behind shell completion."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from hostguard.cli import client
from hostguard.cli.errors import CliError, NotRunning
from hostguard.cli.render import as_json as to_json
from hostguard.core.clock import now_ms
from hostguard.core.names import MAIN_SESSION
from hostguard.core.quantities import parse_duration, parse_when
from hostguard.core.text import safe

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")


def as_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback of an option that is a duration: seconds."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def as_time(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of an option that is a point in time: ms since the epoch."""
    try:
        return None if value is None else parse_when(value, now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def complete_minds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of minds for shell completion; none if the daemon does not answer at once."""
    at = "@" if incomplete.startswith("@") else ""
    return _starting(incomplete, [(at + mind["name"], "") for mind in _live("/v1/minds", "minds")])


def complete_addresses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of minds as a message is addressed to them, "@name", for shell completion."""
    wanted = incomplete if incomplete.startswith("@") else f"@{incomplete}"
    return complete_minds(ctx, param, wanted)


def complete_turns(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of live turns for shell completion."""
    return _starting(incomplete, [(turn["id"], mind_session(turn)) for turn in _live("/v1/turns", "turns")])


def complete_rows(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of deliveries that wait or are in a turn for shell completion."""
    return _starting(incomplete, _rows("/v1/deliveries"))


def complete_dead(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of dead letters for shell completion."""
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
    """Those that begin so, each with a note for shells that show one. A turn that is not ours has no id."""
    return [
        CompletionItem(str(name), help=note)
        for name, note in found
        if name is not None and str(name).startswith(incomplete)
    ]


def print_json(value: Any) -> None:
    """Print `value` as JSON on stdout."""
    click.echo(to_json(value))


def mind_session(item: Any) -> str:
    """ "mind", or "mind/session" unless it is the main one, safe to print."""
    session = item.get("session")
    mind = item.get("mind") or "-"
    return safe(mind if session in (None, "", MAIN_SESSION) else f"{mind}/{session}")


def each(ids: tuple[int, ...], action: str, done: str, as_json: bool) -> int:
    """POST `action` for each delivery and print what became of it; returns the exit code.

    One that is refused is reported and does not stop the others.
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
    if as_json:
        print_json({"deliveries": changed})
    else:
        for row in changed:
            click.echo(f"{row['id']} {mind_session(row)} {done}")
    return code


def set_pause(action: str, mind: str | None, as_json: bool) -> None:
    """POST "pause" or "resume" for one mind, or for the host, and print what is paused now."""
    answer = client.call("POST", f"/v1/{action}", body={"mind": mind and mind.removeprefix("@")})
    if as_json:
        print_json(answer)
        return
    names = ", ".join(safe(name) for name in answer["paused"])
    if answer["host"]:
        click.echo("paused: all minds" + (f", and by name: {names}" if names else ""))
    else:
        click.echo(f"paused: {names}" if names else "nothing is paused")
