"""What `hostguard status` shows, without click."""

from __future__ import annotations

from hostguard import client
from hostguard.cli.errors import NOT_RUNNING, CliError, NotRunning
from hostguard.cli.show import as_json as as_json_text
from hostguard.cli.show import clock, fields, safe, terminal_width
from hostguard.cli.tables import mind_table, turn_table

FIRST_STEPS = """No mind is configured yet. What to do next:
  hostguard setup                # limits that suit this host
  hostguard mind add NAME ...    # a command, a server, or a mind of Volute's
  hostguard reload
  hostguard doctor               # what this host can enforce, and how to mend what it cannot"""

TYPE_CHECKING = False  # typing's own costs its import, which `hostguard status` can do without
if TYPE_CHECKING:
    from typing import Any


def show(as_json: bool) -> int:
    """Print it; the exit code. Raises CliError."""
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
        print(as_json_text(status))
        return
    width = terminal_width()
    print(fields(_pairs(status)))
    for problem in status.get("problems", []):
        print(f"Problem: {safe(problem['text'])}")
    if status.get("minds"):
        print("\n" + mind_table(status["minds"], width))
    elif "minds" in status:
        print("\n" + FIRST_STEPS)
    if status["live"]:
        print("\n" + turn_table(status["live"], width))


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
        *_pressed(status.get("pressure")),
        *_weak(status.get("enforcement", [])),
    ]


def _pressed(pressure: Any) -> list[tuple[str, object]]:
    """How the disk is, unless it is calm."""
    if pressure is None or pressure["level"] == "calm":
        return []
    told = f"{pressure['level']} since {clock(pressure['since'])}: {pressure['evidence']}"
    return [("Pressure", f"{told} (hostguard pressure)")]


def _weak(enforcement: Any) -> list[tuple[str, object]]:
    """Configured limits that the kernel does not apply, or not wholly."""
    words = {"partial": "in part", "inert": "not at all"}
    weak = [f"{item['limit']} {words[item['label']]}" for item in enforcement if item["label"] in words]
    return [("Enforced", f"{', '.join(weak)} (hostguard doctor)")] if weak else []


def _cap(status: Any) -> str:
    cap, effective = status["cap"], status["effective_cap"]
    text = "unlimited" if cap is None else str(cap)
    return text if effective in (None, cap) else f"{effective} now, under pressure ({text} configured)"
