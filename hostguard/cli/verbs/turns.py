"""hostguard turns and stop: list, show or stop turns."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import complete_turns, json_option, show
from hostguard.cli.render import terminal_width
from hostguard.cli.tables import turn_table
from hostguard.cli.verbs.queue import result_pairs
from hostguard.core.text import clock, fields, safe
from hostguard.telemetry.headlines import turn_state


@click.command()
@click.argument("id_", metavar="[ID]", required=False, shell_complete=complete_turns)
@json_option
def turns(id_: str | None, as_json: bool) -> None:
    """List the live turns, or show one.

    With ID, show that turn, live or ended.

    \b
    Examples:
      hostguard turns
      hostguard turns 17
    """
    if id_ is not None:
        turn = client.call("GET", f"/v1/turns/{client.quote(id_)}")
        show(turn, as_json, turn_text(turn))
        return
    answer = client.call("GET", "/v1/turns")
    live = answer["turns"]
    show(answer, as_json, turn_table(live, terminal_width()) if live else "no turn is running")


def turn_text(turn: Any) -> str:
    """The details of a turn, one per line."""
    return fields(
        [
            ("Turn", turn["id"]),
            ("Mind", turn.get("mind")),
            ("Session", turn.get("session")),
            ("State", turn_state(turn)),
            ("Delivery", turn.get("delivery")),
            ("Unit", turn.get("unit")),
            ("Description", turn.get("description") or None),
            ("Started", clock(turn.get("started_at"))),
            ("Ended", clock(turn.get("ended_at"))),
            ("Processes", turn.get("pids")),
            *result_pairs(turn.get("result") or turn),
        ]
    )


@click.command()
@click.argument("turn", shell_complete=complete_turns)
@json_option
def stop(turn: str, as_json: bool) -> None:
    """Stop a live turn.

    systemd sends SIGTERM to its processes, and SIGKILL later. What a turn left outside of its scope (its
    state is outside) continues: only its slot comes free.

    \b
    Example:
      hostguard stop 17
    """
    answer = client.call("POST", f"/v1/turns/{client.quote(turn)}/stop")
    show(answer, as_json, f"stopping {safe(answer['id'])} ({safe(answer['unit'])})")
