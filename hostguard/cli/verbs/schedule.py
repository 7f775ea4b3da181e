"""hostguard schedule: messages and scripts at set times."""

from __future__ import annotations

from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.errors import CliError
from hostguard.cli.options import (
    as_duration,
    as_time,
    complete_addresses,
    json_option,
    mind_session,
    print_json,
)
from hostguard.cli.render import terminal_width
from hostguard.core.text import clock, safe, table


def complete_schedules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of schedules for shell completion."""
    try:
        found = client.call("GET", "/v1/schedules", read_s=1.0)["schedules"]
    except CliError:
        return []
    return [one["name"] for one in found if one["name"].startswith(incomplete)]


name_argument = click.argument("name", shell_complete=complete_schedules)


@click.group()
def command() -> None:
    """Show, add and remove schedules: messages and scripts at set times.

    \b
    Examples:
      hostguard schedule list
      hostguard schedule add tidy @coder --cron "0 3 * * *" --message "tidy up"
      hostguard schedule run-now tidy
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the schedules, and when each fires next.

    \b
    Example:
      hostguard schedule list
    """
    answer = client.call("GET", "/v1/schedules")
    if as_json:
        print_json(answer)
    elif not answer["schedules"]:
        click.echo(
            'there is no schedule: hostguard schedule add NAME @MIND --cron "0 3 * * *" --message TEXT'
        )
    else:
        rows = [
            (
                one["name"],
                one["mind"],
                one["cron"] or clock(one["at"]),
                clock(one["next_at"]) if one["enabled"] else "disabled",
                clock(one["last_at"]),
                one["source"],
                one["message"] or one["script"],
            )
            for one in answer["schedules"]
        ]
        headers = ("NAME", "MIND", "WHEN", "NEXT", "LAST", "SOURCE", "WHAT")
        click.echo(table(headers, rows, terminal_width()))


@command.command()
@click.argument("name")
@click.argument("mind", metavar="@MIND", shell_complete=complete_addresses)
@click.option("--cron", metavar="SPEC", help='"minute hour day month weekday".')
@click.option("--at", metavar="WHEN", callback=as_time, help="Once, at this time.")
@click.option("--message", metavar="TEXT", help="What the mind is sent.")
@click.option("--script", metavar="COMMAND", help="A command line; what it prints is what the mind is sent.")
@click.option("--session", metavar="NAME", help='The conversation; "$new" is one of its own each time.')
@click.option("--timezone", metavar="ZONE", help="Such as Europe/Berlin; else the host's.")
@click.option("--catch-up", type=click.Choice(("skip", "once", "all")), help="What to do with missed times.")
@click.option(
    "--catch-up-window", metavar="T", callback=as_duration, help="Times missed longer ago are skipped."
)
@click.option(
    "--while-sleeping", type=click.Choice(("skip", "queue", "trigger-wake")), help="What if the mind sleeps."
)
@json_option
def add(name: str, mind: str, as_json: bool, **options: Any) -> None:
    """Add a schedule. It survives restarts; those of hostguard.toml stand beside it.

    WHEN is +10m or an ISO time. A script runs as the mind's user, as a turn of the mind.

    \b
    Examples:
      hostguard schedule add tidy @coder --cron "0 3 * * *" --message "tidy up"
      hostguard schedule add mail @coder --cron "*/30 * * * *" --script "mail-check --new" --session '$new'
      hostguard schedule add once @coder --at +2h --message "time for a break"
    """
    given = {key: value for key, value in options.items() if value is not None}
    if "catch_up_window" in given:
        given["catch_up_window"] = int(given["catch_up_window"])
    answer = client.call(
        "POST", "/v1/schedules", body={"name": name, "mind": mind.removeprefix("@"), **given}
    )
    if as_json:
        print_json(answer)
    else:
        following = clock(answer["next_at"])
        click.echo(f"{safe(answer['name'])} is kept" + (f"; it fires next {following}" if following else ""))


@command.command()
@name_argument
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a schedule that was added here.

    \b
    Example:
      hostguard schedule remove tidy
    """
    answer = client.call("DELETE", f"/v1/schedules/{client.quote(name)}")
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{safe(name)} is removed")


@command.command("run-now")
@name_argument
@json_option
def run_now(name: str, as_json: bool) -> None:
    """Fire a schedule once more, now.

    \b
    Example:
      hostguard schedule run-now tidy
    """
    answer = client.call("POST", f"/v1/schedules/{client.quote(name)}/run", body={})
    if as_json:
        print_json(answer)
    else:
        for row in answer["deliveries"]:
            click.echo(f"{row['id']} {mind_session(row)} {row['state']}")
