"""hostguard turns and stop: list, show or stop turns."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.errors import CliError
from hostguard.cli.options import DURATION, complete_turns, json_option, show
from hostguard.cli.render import terminal_width
from hostguard.cli.tables import turn_table
from hostguard.cli.verbs.queue import result_pairs
from hostguard.cli.verbs.send import FINAL
from hostguard.core.text import clock, fields, safe
from hostguard.telemetry.headlines import turn_state

FORCE_AFTER_S = 60.0  # enough for a model's last answer
POLL_S = 10.0  # a row that is tried again is not final when its turn ends


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
@click.option("--interrupt", is_flag=True, help="Ask the mind first, with a message; stop it by force later.")
@click.option("--force-after", type=DURATION, help="With --interrupt: when to use force. Default: 60s.")
@json_option
def stop(turn: str, interrupt: bool, force_after: float | None, as_json: bool) -> None:
    """Stop a live turn.

    Of a resident mind's turn use --interrupt: a message that interrupts the mind asks it to end the turn.
    By force, a Volute mind loses the conversation of the turn's session.

    By force: systemd sends SIGTERM to its processes, and SIGKILL later. What a turn left outside of its scope
    (its state is outside) continues: only its slot comes free.

    \b
    Examples:
      hostguard stop 17 --interrupt
      hostguard stop 17 --interrupt --force-after 5min
      hostguard stop 17
    """
    if force_after is not None and not interrupt:
        raise click.UsageError("--force-after needs --interrupt")
    path = f"/v1/turns/{client.quote(turn)}"
    if interrupt:
        within = FORCE_AFTER_S if force_after is None else force_after
        asked = client.call("POST", f"{path}/stop", body={"interrupt_s": within})
        CliError(f"{asked['mind']} is asked to end turn {asked['id']}; by force in {within:g} s").show()
        if (ended := _ended(path, asked["delivery"], within)) is not None:
            show(ended, as_json, turn_text(ended))
            return
    answer = client.call("POST", f"{path}/stop")
    show(answer, as_json, f"stopping {safe(answer['id'])} ({safe(answer['unit'])})")
    if answer.get("resident") and not interrupt:
        lost = "the mind may lose the conversation of this session"
        CliError(f"{lost}: next time, hostguard stop --interrupt asks it first").show()


def _ended(path: str, row: int | None, seconds: float) -> Any:
    """Wait for the end of the turn: what is stored of it, or None if it still works then."""
    end = monotonic() + seconds
    while True:
        turn = client.call("GET", path)
        if turn["state"] in ("ended", "outside"):
            return turn
        left = end - monotonic()
        if left <= 0:
            return None
        if row is None:
            sleep(min(left, 1.0))
        else:
            wait = {"wait_s": round(min(left, POLL_S), 1)}
            if client.call("GET", f"/v1/deliveries/{row}", params=wait)["state"] in FINAL:
                sleep(min(left, 0.1))  # its turn ends at this moment
