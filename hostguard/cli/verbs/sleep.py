"""hostguard sleep and wake: put a mind to sleep, and wake it."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.away import Away, ask
from hostguard.cli.options import TIME, complete_minds, json_option, show
from hostguard.core.text import clock, safe


@click.command()
@click.argument("mind", shell_complete=complete_minds)
@click.option("--until", type=TIME, help="Wake it at this time.")
@json_option
def sleep(mind: str, until: int | None, as_json: bool) -> None:
    """Put a mind to sleep.

    The mind gets a notice, and sleeps when its turn is over; its service, if it has one, is stopped. Messages
    wait, except those that wake it. WHEN is +8h, 7:00 or an ISO time.

    \b
    Examples:
      hostguard sleep coder
      hostguard sleep coder --until 2026-07-22T07:00
    """
    _set("sleep", mind, {"until": until}, as_json)


@click.command()
@click.argument("mind", shell_complete=complete_minds)
@json_option
def wake(mind: str, as_json: bool) -> None:
    """Wake a mind.

    Its service, if it has one, is started, and its waiting messages follow in order.

    \b
    Example:
      hostguard wake coder
    """
    _set("wake", mind, {}, as_json)


def _set(action: str, mind: str, body: dict[str, Any], as_json: bool) -> None:
    mind = mind.removeprefix("@")
    answer = ask("POST", f"/v1/minds/{client.quote(mind)}/{action}", Away(), body)
    name, until = safe(answer["name"]), clock(answer.get("asleep_until"))
    end = f" until {until}" if until else ""
    text = {"awake": f"{name} is awake: {answer['state']}", "asleep": f"{name} is asleep{end}"}.get(
        answer["sleep"], f"{name} will sleep{end}, after a notice and when its turn is over"
    )
    show(answer, as_json, text)
