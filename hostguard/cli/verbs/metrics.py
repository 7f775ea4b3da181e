"""hostguard metrics: print the metrics for Prometheus."""

from __future__ import annotations

from pathlib import Path

import click

from hostguard.cli import client
from hostguard.cli.errors import CliError
from hostguard.linux.files import write_whole

MODE = 0o644  # node_exporter runs as another user


@click.command()
@click.option(
    "--textfile", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead, for node_exporter.",
)  # fmt: skip
def command(textfile: Path | None) -> None:
    """Print the metrics for Prometheus.

    With --textfile the file is replaced atomically. If the daemon does not answer, the file is removed,
    because old numbers would look like new ones.

    \b
    Examples:
      hostguard metrics
      hostguard metrics --textfile /var/lib/prometheus/node-exporter/hostguard.prom
    """
    try:
        with client.request("GET", "/metrics", read_s=client.READ_S) as answer:
            text = "".join(f"{line}\n" for line in answer.lines())
    except CliError:
        if textfile is not None:
            textfile.unlink(missing_ok=True)
        raise
    if textfile is None:
        click.echo(text, nl=False)
    else:
        try:
            write_whole(textfile, text, MODE)  # its new one is hidden: node_exporter reads *.prom
        except FileNotFoundError:
            raise CliError(f"there is no folder {textfile.parent}: mkdir -p {textfile.parent}") from None
        except OSError as error:
            raise CliError(f"cannot write {textfile}: {error.strerror}") from None
