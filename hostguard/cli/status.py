"""hostguard status, which does without click to start fast."""

from __future__ import annotations

from time import time

from hostguard.cli import client
from hostguard.cli.errors import CliError, NotRunning, OnStandby
from hostguard.cli.render import colours, terminal_size, to_json
from hostguard.cli.tables import minds_waiting, turn_table, turns_used
from hostguard.core.errors import SystemdFailed
from hostguard.core.text import cut, safe
from hostguard.telemetry.headlines import AWAY, QUIET, busy_minds, news
from hostguard.telemetry.problems import Line

TABLE_MIN = 3  # rows of a table to show on even the smallest screen
MARKS = ("  ", "! ", "!!")  # by severity, for terminals without colour
COLOURS = ("", "33", "1;31")  # yellow, and bold red: ECMA-48, SGR

FIRST_STEPS = """No mind is configured yet. Next steps:
  hostguard setup                # limits that suit this host
  hostguard mind add NAME ...    # a command, a server or a Volute mind
  hostguard reload
  hostguard doctor               # which limits this host can enforce"""

TYPE_CHECKING = False  # typing's own costs its import, which `hostguard status` can do without
if TYPE_CHECKING:
    from typing import Any


def show(as_json: bool) -> int:
    """Print the status; the exit code. Raises CliError."""
    try:
        status = client.call("GET", "/v1/status")
    except (NotRunning, OnStandby) as error:
        try:
            _print(_without_daemon(error), as_json)
        except SystemdFailed as no_systemd:
            CliError(str(no_systemd)).show()
        error.show()
        return error.exit_code
    _print(status, as_json)
    return 0


def _without_daemon(error: CliError) -> Any:
    from hostguard.cli.daemonless import live_scopes
    from hostguard.systemd.dbus_blocking import Bus

    with Bus() as bus:
        scopes = live_scopes(bus)
    at = round(time() * 1000)
    live = [
        {
            "id": scope.turn, "unit": scope.unit, "mind": scope.mind, "session": None, "delivery": None,
            "started_at": at - scope.ran_ms, "ran_ms": scope.ran_ms,
            "state": "running" if scope.turn else "foreign", "frozen": scope.frozen,
            "pids": scope.pids, "description": scope.description,
        }
        for scope in scopes
    ]  # fmt: skip
    state = "standby" if isinstance(error, OnStandby) else "not_running"
    problems = [{"code": state, "text": error.message}]
    return {"state": state, "at": at, "turns": len(live), "live": live, "problems": problems}


def _print(status: Any, as_json: bool) -> None:
    if as_json:
        print(to_json(status))
        return
    width, height = terminal_size()
    print(screen(status, status["at"], width, height, colours()))


def screen(status: Any, now: int, width: int | None, height: int | None, colour: bool) -> str:
    """The status in lines of at most `width` columns, if possible at most `height` lines; None: unlimited.

    `now` is the date of the status, ms since the epoch.
    """
    lines = [_line(one, width, colour) for one in news(status, now)]
    room = None if height is None else height - 1 - len(lines)
    live = status["live"]
    if live:
        shown = live if room is None else live[: max(TABLE_MIN, (room - 4) // 2)]
        in_full = turn_table if status["state"] in AWAY else turns_used
        lines += ["", *in_full(shown, width).splitlines()]
        if len(shown) < len(live):
            lines.append(_fit(f"and {len(live) - len(shown)} more: hostguard turns", width))
    if status.get("minds"):
        room = None if height is None else height - 1 - len(lines) - 5
        lines += ["", *_minds(status, width, room)]
    elif "minds" in status:
        lines += ["", *FIRST_STEPS.splitlines()]
    return "\n".join(lines)


def _fit(text: str, width: int | None) -> str:
    return text if width is None else cut(text, width)


def _line(line: Line, width: int | None, colour: bool) -> str:
    bad, about, said = line
    text = _fit(f"{MARKS[bad]} {about:<9}{safe(said)}", width)
    return f"\x1b[{COLOURS[bad]}m{text}\x1b[m" if colour and bad else text


def _minds(status: Any, width: int | None, room: int | None) -> list[str]:
    """The minds that work or wait, as many as fit, then the names of the rest."""
    busy = busy_minds(status)
    shown = busy if room is None else busy[: max(TABLE_MIN, room)]
    lines = minds_waiting(shown, width).splitlines() if shown else []
    if len(shown) < len(busy):
        lines.append(_fit(f"and {len(busy) - len(shown)} more: hostguard minds", width))
    for state in QUIET:
        if rest := [mind["name"] for mind in status["minds"] if mind["state"] == state and mind not in busy]:
            lines.append(_fit(f"{state}: {safe(', '.join(rest))}", width))
    return lines
