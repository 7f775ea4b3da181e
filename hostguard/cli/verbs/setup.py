"""hostguard setup: propose and write limits for this host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostguard.cli.errors import CliError
from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.core.text import safe
from hostguard.core.units import SLICE
from hostguard.linux.disk import mounts_on, resolve

if TYPE_CHECKING:
    from hostguard.cli.doctor.checks import Host
    from hostguard.cli.doctor.proposal import Facts

NAME = "50-setup"


@click.command()
@click.option("--yes", is_flag=True, help="Ask nothing: measure, and write the file.")
@click.option("--dry-run", is_flag=True, help="Only show the file. Nothing is measured or written.")
def command(yes: bool, dry_run: bool) -> None:
    """Propose limits for this host, and write them if you confirm.

    An SD card, a USB disk or a hard disk gets a global cap of 2; a weight of all turns below that of the rest
    of the host, if the kernel supports it; and a share of its bandwidth, if you allow the measurement, which
    writes at most 32 MB in at most 5 seconds. Settings in other files of the configuration take precedence.

    \b
    Examples:
      hostguard setup
      hostguard setup --dry-run
    """
    from hostguard.cli.doctor import this_host
    from hostguard.cli.doctor.proposal import Facts, file_lines, propose
    from hostguard.config import dropins

    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run exclude each other")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("stdin is not a terminal: use --yes or --dry-run")
    file = dropins.place(NAME)
    try:
        elsewhere = dropins.set_elsewhere(file)
    except ConfigError as error:
        raise CliError(f"fix the configuration first:\n{error}") from None
    host = this_host()
    click.echo(f"disk: {safe(host.device.node or 'none')}: {safe(host.device.reason)}")
    rate = None if dry_run else _measured(host, yes)
    facts = Facts(host.kernel, host.slow, os.cpu_count() or 1, rate)
    head = f"Written by `hostguard setup`: {host.device.reason}"
    text = "\n".join([*file_lines(safe(head), propose(facts), elsewhere), ""])
    click.echo(f"\n{safe(file)}:\n\n" + "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines()))
    weigh = _weigh(host, facts)
    if dry_run or not (yes or click.confirm("Write it?")):
        click.echo("nothing was written")
        return
    if file.exists():
        shutil.copy2(file, f"{file}~")  # this name is not read as a drop-in
        click.echo(f"the previous file is now {safe(file)}~")
    try:
        dropins.write(file, text, replace=True)
    except ConfigError as error:
        raise CliError(f"nothing was written:\n{error}") from None
    if weigh and subprocess.run(weigh, check=False).returncode != 0:
        raise CliError(f"the file was written, but this failed: {' '.join(weigh)}")
    click.echo("\n".join(["written; next:", *(f"  {step}" for step in _next(host))]))


def _weigh(host: Host, facts: Facts) -> list[str]:
    """Print and return the command that sets the weight of all turns together; [] if there is none."""
    from hostguard.cli.doctor.proposal import slice_weight

    weight, why = slice_weight(facts)
    if weight is None:
        if facts.is_slow:
            click.echo(f"no weight for all turns together: {safe(why)} (hostguard doctor)\n")
        return []
    argv = [*host.systemctl.split(), "set-property", SLICE, f"IOWeight={weight}"]
    click.echo(f"and a weight for all turns together, {why}:\n\n    {' '.join(argv)}\n")
    return argv


def _measured(host: Host, yes: bool) -> float | None:
    """Measure the write rate of the disk in bytes/s; None, with a message, if that was not done."""
    from hostguard.cli.doctor.rate import measure

    if host.device.node is None:
        return None
    if host.daemon is not None and host.daemon["turns"]:
        click.echo("not measured: turns are running, which would disturb it and be disturbed by it")
        return None
    question = "Measure the write rate of the disk? It writes at most 32 MB, for at most 5 seconds."
    if not (yes or click.confirm(question)):
        return None
    folder = _folder(host)
    if folder is None:
        click.echo("not measured: the disk has no mounted file system")
        return None
    rate = measure(folder)
    none = "not measured: the disk completed no write in 10 seconds"
    click.echo(none if rate is None else f"measured: {rate / 1e6:.1f} MB/s")
    return rate


def _folder(host: Host) -> Path | None:
    place = paths.STATE
    while not place.exists():
        place = place.parent
    mounted = (Path(mount.place) for mount in mounts_on(host.device) if "ro" not in mount.options)
    return next((one for one in (place, *mounted) if resolve(one).name == host.device.name), None)


def _next(host: Host) -> list[str]:
    steps = ["hostguard reload"] if host.daemon is not None else ["systemctl start hostguard"]
    if not host.config.minds:
        steps.append("hostguard mind add NAME --command LINE --user USER    # or --url URL, or --volute DIR")
    return [*steps, "hostguard doctor    # which limits this host can enforce"]
