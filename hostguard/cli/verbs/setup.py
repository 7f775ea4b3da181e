"""hostguard setup: limits for this host."""

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
    """Propose limits for this host, show them, and write them on yes.

    A card, a USB or a turning disk gets a global cap of 2, a weight of all turns below the rest of the host
    where the kernel weighs, and a share of the bandwidth, if it may be measured: at most 32 MB are written,
    for at most 5 seconds. Other files of the configuration have the last word.

    \b
    Examples:
      hostguard setup
      hostguard setup --dry-run
    """
    from hostguard.cli.doctor import this_host
    from hostguard.cli.doctor.proposal import Facts, file_lines, propose
    from hostguard.config import dropins, load

    if yes and dry_run:
        raise click.UsageError("give --yes or --dry-run, not both")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("there is nobody to ask: give --yes or --dry-run")
    file = dropins.place(NAME)
    try:
        elsewhere = dropins.set_elsewhere(file)
    except load.ConfigError as error:
        raise CliError(f"the configuration has to be right first:\n{error}") from None
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
        shutil.copy2(file, f"{file}~")  # no drop-in, by its name
        click.echo(f"kept the one before as {safe(file)}~")
    try:
        dropins.write(file, text, replace=True)
    except load.ConfigError as error:
        raise CliError(f"nothing was written:\n{error}") from None
    if weigh and subprocess.run(weigh, check=False).returncode != 0:
        raise CliError(f"the file is written, but the weight is not set: {' '.join(weigh)}")
    click.echo("\n".join(["wrote it; next:", *(f"  {step}" for step in _next(host))]))


def _weigh(host: Host, facts: Facts) -> list[str]:
    """The command that sets the weight of all turns together, which is told; [] if there is to be none."""
    from hostguard.cli.doctor.proposal import slice_weight

    weight, why = slice_weight(facts)
    if weight is None:
        if facts.is_slow:
            click.echo(f"no weight for all turns together: {safe(why)} (hostguard doctor)\n")
        return []
    argv = [*host.systemctl.split(), "set-property", SLICE, f"IOWeight={weight}"]
    click.echo(f"and for all turns together, {why}:\n\n    {' '.join(argv)}\n")
    return argv


def _measured(host: Host, yes: bool) -> float | None:
    """Bytes/s that the disk takes; None if that is not measured, which is told."""
    from hostguard.cli.doctor.rate import measure

    if host.device.node is None:
        return None
    if host.daemon is not None and host.daemon["turns"]:
        click.echo("not measured: turns are live, and it would slow them and be slowed by them")
        return None
    if not (yes or click.confirm("Measure how fast it takes writes? At most 32 MB, for at most 5 seconds.")):
        return None
    folder = _folder(host)
    if folder is None:
        click.echo("not measured: it has no mounted file system")
        return None
    rate = measure(folder)
    if rate is None:
        click.echo("not measured: the disk took nothing for 10 seconds")
    else:
        click.echo(f"measured: {rate / 1e6:.1f} MB/s")
    return rate


def _folder(host: Host) -> Path | None:
    """Where to write so that the guarded disk has to take it; None if there is no such place."""
    place = paths.STATE
    while not place.exists():
        place = place.parent
    mounted = (Path(mount.place) for mount in mounts_on(host.device) if "ro" not in mount.options)
    return next((one for one in (place, *mounted) if resolve(one).name == host.device.name), None)


def _next(host: Host) -> list[str]:
    steps = ["hostguard reload"] if host.daemon is not None else ["systemctl start hostguard"]
    if not host.config.minds:
        steps.append("hostguard mind add NAME --command LINE --user USER    # or --url URL, or --volute DIR")
    return [*steps, "hostguard doctor    # what this host can enforce of it"]
