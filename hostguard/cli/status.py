"""hostguard status: how things are, with the daemon or without."""

from __future__ import annotations

from typing import Any

import click

from hostguard import client
from hostguard.cli.common import json_option, print_json
from hostguard.cli.errors import NOT_RUNNING, CliError, NotRunning
from hostguard.cli.minds import mind_table
from hostguard.cli.show import clock, fields, safe, terminal_width
from hostguard.cli.turns import turn_table


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Show how the host, its minds and its turns are.

    Without the daemon it shows the live turns straight from systemd, and exits with 3.

    \b
    Examples:
      hostguard status
      hostguard status --json
    """
    try:
        status = client.call("GET", "/v1/status")
    except NotRunning as error:
        try:
            _print(_without_daemon(), as_json)
        except CliError as no_systemd:
            no_systemd.show()
        error.show()
        return NOT_RUNNING
    _print(status, as_json)
    return 0


def _without_daemon() -> Any:
    from hostguard import local  # only here: most often there is a daemon

    with local.Bus() as bus:
        scopes = local.live_scopes(bus)
    live = [
        {
            "id": scope.turn,
            "unit": scope.unit,
            "mind": scope.mind,
            "session": None,
            "delivery": None,
            "started_at": scope.started_at,
            "state": "running" if scope.turn else "foreign",
            "pids": scope.pids,
            "description": scope.description,
        }
        for scope in scopes
    ]
    return {"state": "not_running", "turns": len(live), "live": live}


def _print(status: Any, as_json: bool) -> None:
    if as_json:
        print_json(status)
        return
    width = terminal_width()
    click.echo(fields(_pairs(status)))
    for problem in status.get("problems", []):
        click.echo(f"Problem: {safe(problem['text'])}")
    if status.get("minds"):
        click.echo("\n" + mind_table(status["minds"], width))
    if status["live"]:
        click.echo("\n" + turn_table(status["live"], width))


def _pairs(status: Any) -> list[tuple[str, object]]:
    if status["state"] == "not_running":
        return [("State", "the daemon is not running"), ("Live turns", status["turns"])]
    device = status.get("device") or {}
    node = device.get("node") or device.get("reason") or "none"
    return [
        ("State", status["state"]),
        ("Version", status["version"]),
        ("Process", status["pid"]),
        ("Started", clock(status["started_at"])),
        ("Live turns", f"{status['turns']}, cap {_cap(status)}"),
        ("Queued", f"{status['queued']}, {status['held']} held, {status['due_later']} due later"),
        ("Device", node),
        *_weak(status.get("enforcement", [])),
    ]


def _weak(enforcement: Any) -> list[tuple[str, object]]:
    """Configured limits that the kernel does not apply, or not wholly."""
    words = {"partial": "in part", "inert": "not at all"}
    weak = [f"{item['limit']} {words[item['label']]}" for item in enforcement if item["label"] in words]
    return [("Enforced", f"{', '.join(weak)} (hostguard doctor)")] if weak else []


def _cap(status: Any) -> str:
    cap, effective = status["cap"], status["effective_cap"]
    text = "unlimited" if cap is None else str(cap)
    return text if effective in (None, cap) else f"{effective} now, under pressure ({text} configured)"
