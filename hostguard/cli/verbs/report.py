"""hostguard report: write a report as an HTML file."""

from __future__ import annotations

import time
from pathlib import Path
from socket import gethostname

import click

from hostguard.cli import client
from hostguard.cli.errors import CliError
from hostguard.cli.options import SINCE
from hostguard.core.text import safe
from hostguard.linux.files import write_whole
from hostguard.telemetry.page import render

LEAST_S = 60


@click.command()
@click.option(
    "--since", "seconds", default="24h", show_default=True, type=SINCE,
    help="The period to report: 90m, 24h or 7d, or since yesterday or 2026-12-01; at most 35d.",
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help='The file to write; "-" is standard output. Default: hostguard-HOST-DATE.html in this directory.',
)  # fmt: skip
def command(seconds: float, output: Path | None) -> None:
    """Write a report on turns, waits and the guard's actions.

    It is one HTML file that needs no network. It contains the names of minds and sessions, but nothing from
    messages.

    \b
    Examples:
      hostguard report
      hostguard report --since yesterday
      hostguard report --since 7d -o week.html
      ssh pi hostguard report -o - >pi.html
    """
    report = client.call("GET", "/v1/report", params={"since_s": str(max(LEAST_S, round(seconds)))})
    host = gethostname()
    page = render(report, host)
    if output == Path("-"):
        click.echo(page, nl=False)
        return
    name = "".join(char if char.isalnum() or char in "._-" else "-" for char in host)
    file = output or Path(time.strftime(f"hostguard-{name}-%Y-%m-%d-%H%M.html"))
    try:
        write_whole(file, page)
    except OSError as error:
        raise CliError(f"cannot write {file}: {error.strerror}") from None
    click.echo(safe(file))
