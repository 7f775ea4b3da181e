"""hostguard schedule: list, add, remove or run schedules."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import (
    DURATION,
    TIME,
    WHILE_SLEEPING,
    complete_addresses,
    completer,
    json_option,
    show,
)
from hostguard.cli.render import terminal_width
from hostguard.cli.tables import row_line
from hostguard.core.text import clock, safe, table

complete_schedules = completer("/v1/schedules", "schedules", lambda one: (one["name"], ""))
name_argument = click.argument("name", shell_complete=complete_schedules)


@click.group()
def command() -> None:
    """List, add, remove or run schedules.

    \b
    Examples:
      hostguard schedule list
      hostguard schedule add tidy @coder --cron "0 3 * * *" --message "tidy up"
      hostguard schedule run-now tidy
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the schedules and their next runs.

    SKIPPED is how many runs were skipped since the last one, because its message still waits.

    \b
    Example:
      hostguard schedule list
    """
    answer = client.call("GET", "/v1/schedules")
    rows = [
        (
            one["name"], one["mind"], one["cron"] or clock(one["at"]),
            _next(one),
            clock(one["last_at"]), one["skipped"] or "", one["source"], one["message"] or one["script"],
        )
        for one in answer["schedules"]
    ]  # fmt: skip
    headers = ("NAME", "MIND", "WHEN", "NEXT", "LAST", "SKIPPED", "SOURCE", "WHAT")
    none = 'no schedules: hostguard schedule add NAME @MIND --cron "0 3 * * *" --message TEXT'
    show(answer, as_json, table(headers, rows, terminal_width()) if rows else none)


def _next(one: Any) -> str | None:
    if one.get("held"):
        return f"held: {one['held']}"
    return clock(one["next_at"]) if one["enabled"] else "disabled"


@command.command()
@click.argument("name")
@click.argument("mind", metavar="@MIND", shell_complete=complete_addresses)
@click.option("--cron", metavar="SPEC", help='When to run: "minute hour day month weekday".')
@click.option("--at", type=TIME, help="Run once, at this time.")
@click.option("--message", metavar="TEXT", help="The message to send.")
@click.option("--script", metavar="COMMAND", help="A command line; its output is sent to the mind.")
@click.option("--session", metavar="NAME", help='The conversation; "$new" starts a new one each time.')
@click.option("--timezone", metavar="ZONE", help="Such as Europe/Berlin. Default: that of the host.")
@click.option("--catch-up", type=click.Choice(("skip", "once", "all")), help="What to do about missed runs.")
@click.option("--catch-up-window", type=DURATION, help="Skip runs missed longer ago than this.")
@click.option("--while-sleeping", type=WHILE_SLEEPING, help="What to do if the mind sleeps.")
@click.option(
    "--overlap", type=click.Choice(("skip", "queue")), help="What to do while the last run's message waits."
)
@json_option
def add(name: str, mind: str, as_json: bool, **options: Any) -> None:
    """Add a schedule, in addition to those in hostguard.toml. It survives restarts.

    WHEN is +10m, 14:30 or an ISO time. A script runs as the mind's user.

    \b
    Examples:
      hostguard schedule add tidy @coder --cron "0 3 * * *" --message "tidy up"
      hostguard schedule add mail @coder --cron "*/30 * * * *" --script "mail-check --new" --session '$new'
      hostguard schedule add once @coder --at +2h --message "time for a break"
    """
    given = {key: value for key, value in options.items() if value is not None}
    if "catch_up_window" in given:
        given["catch_up_window"] = int(given["catch_up_window"])
    body = {"name": name, "mind": mind.removeprefix("@"), **given}
    answer = client.call("POST", "/v1/schedules", body=body)
    following = clock(answer["next_at"])
    show(answer, as_json, f"{safe(answer['name'])} saved" + (f"; next run {following}" if following else ""))


@command.command()
@name_argument
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a schedule that `schedule add` made.

    \b
    Example:
      hostguard schedule remove tidy
    """
    answer = client.call("DELETE", f"/v1/schedules/{client.quote(name)}")
    show(answer, as_json, f"{safe(name)} removed")


@command.command("run-now")
@name_argument
@json_option
def run_now(name: str, as_json: bool) -> None:
    """Run a schedule once, now, in addition to its times.

    \b
    Example:
      hostguard schedule run-now tidy
    """
    answer = client.call("POST", f"/v1/schedules/{client.quote(name)}/run", body={})
    show(answer, as_json, "\n".join(map(row_line, answer["deliveries"])))
