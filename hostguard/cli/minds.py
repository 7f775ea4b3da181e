"""hostguard minds: who there is and what each does."""

from __future__ import annotations

import shlex
from time import time
from typing import Any

import click

from hostguard import client
from hostguard.cli.common import json_option, print_json
from hostguard.cli.show import clock, ms, safe, table, terminal_width


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the minds.

    Each stands with its live turns and its cap, the sessions it works in and for how long, and what waits.

    \b
    Example:
      hostguard minds
    """
    answer = client.call("GET", "/v1/minds")
    if as_json:
        print_json(answer)
    elif answer["minds"]:
        click.echo(mind_table(answer["minds"], terminal_width()))
    else:
        click.echo("no mind is configured: see [minds.NAME] in hostguard.toml")


def mind_table(minds: list[Any], width: int | None) -> str:
    """One mind a line, cut to `width` columns."""
    rows = [
        (
            mind["name"],
            _state(mind),
            f"{mind['live']}/{mind['cap']}",
            _sessions(mind),
            mind["queued"],
            mind["held"],
            ms(mind.get("oldest_wait_ms")),
            _kept(mind),
            mind.get("user"),
            mind.get("url") or _command(mind.get("command")),
        )
        for mind in minds
    ]
    headers = (
        "NAME", "STATE", "TURNS", "SESSION", "QUEUED", "HELD", "OLDEST", "KEPT", "USER", "COMMAND OR URL",
    )  # fmt: skip
    return table(headers, rows, width)


def asleep_text(mind: Any) -> str:
    """Whether the mind sleeps, in words."""
    name, until = safe(mind["name"]), clock(mind.get("asleep_until"))
    if mind["sleep"] == "awake":
        return f"{name} is awake: {mind['state']}"
    end = f" until {until}" if until else ""
    if mind["sleep"] == "asleep":
        return f"{name} sleeps{end}"
    return f"{name} will sleep{end}, once it was told so and its turn is over"


def _state(mind: Any) -> str:
    """What it does, and whether it sleeps, or will, beside that."""
    words = [mind["state"]]
    if mind.get("sleep", "awake") not in ("awake", mind["state"]):
        words.append(mind["sleep"])
    text = ", ".join(words)
    until = clock(mind.get("asleep_until"))
    return f"{text} until {until}" if until else text


def _kept(mind: Any) -> str:
    """Rows that do not wait for the gate yet, by what they wait for."""
    return ", ".join(f"{mind[name]} {name}" for name in ("batching", "gated") if mind.get(name))


def _sessions(mind: Any) -> str:
    now = time() * 1000
    return ", ".join(f"{one['session'] or '-'} {ms(now - one['since'])}" for one in mind.get("sessions", []))


def _command(command: Any) -> str:
    return shlex.join(command) if isinstance(command, list) else str(command or "")
