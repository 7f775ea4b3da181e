"""hostguard demo: replay the incident."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hostguard.cli.demo import draw, phases
from hostguard.cli.demo.host import Signals, prepared
from hostguard.cli.demo.plan import BLOCK, SIZE, SIZE_MAX, STOP_MAX_S, STOP_S
from hostguard.cli.demo.results import failures, stop_failures
from hostguard.cli.demo.view import choose
from hostguard.cli.errors import FAILED, CliError
from hostguard.cli.options import DURATION, Parsed, json_option, show
from hostguard.core import paths
from hostguard.core.text import parse_size

STOP_FILE = "CARD_STOP"  # environment variable of packaging/quickstart: the file that stops its card


def _size(text: str) -> int:
    size = parse_size(text, 1024)
    if not BLOCK <= size <= SIZE_MAX:
        raise ValueError(f"{text} is not between {BLOCK >> 10}K and {SIZE_MAX >> 30}G")
    return size


@click.command()
@click.option(
    "--dir", "base", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help=f"Write to a new directory in this one, and so to its device. Default: {paths.STATE}",
)  # fmt: skip
@click.option(
    "--size", default=f"{SIZE >> 20}M", show_default=True, type=Parsed("BYTES", _size),
    help="How much each turn writes.",
)  # fmt: skip
@click.option(
    "--stop", "stop_s", type=DURATION,
    help=f"How long the card stops in the third run; 0 skips that run.  [default: {STOP_S:g}s]",
)  # fmt: skip
@json_option
def command(base: Path | None, size: int, stop_s: float | None, as_json: bool) -> int:
    """Replay the incident, unguarded and guarded.

    Three heartbeats start in the same second, and a message to a channel wakes twelve minds; each of these
    15 turns writes to the device. They run first as plain processes, then under the guard with a global cap
    of 2. A bystander process writes and syncs 4 KiB four times a second and measures the delay. With
    packaging/quickstart, whose card can be stopped, there is a third run, during which the card stops.

    It needs root. During the demo the host has minds demo-*, a channel #demo and, in the guarded runs, a
    global cap of 2 for all minds. All changes are undone at the end, also after an error or Ctrl-C.

    \b
    Examples:
      hostguard demo
      hostguard demo --dir /mnt/card --size 3M
    """
    stop_file = os.environ.get(STOP_FILE)
    if stop_s and stop_s > STOP_MAX_S:
        raise click.BadParameter(f"at most {STOP_MAX_S:g}s", param_hint="--stop")
    if stop_s and stop_file is None:
        raise CliError("only the card of packaging/quickstart can be stopped: remove --stop")
    view, width, ink = choose(as_json)
    signals = Signals()
    with signals.caught(), prepared(base or paths.STATE, size, signals) as host:
        before = phases.plain(host, view, signals)
        host.clear()
        after = phases.guarded(host, view, signals)
        third = None
        if stop_file is not None and stop_s != 0:
            host.clear()
            third = phases.stopped(host, view, signals, Path(stop_file), stop_s or STOP_S)
    broken = failures(before, after, *(third[:1] if third else ()))
    broken += stop_failures(third[1]) if third else []
    answer = draw.as_dict(before, after, broken, str(base or paths.STATE), size, third)
    show(answer, as_json, draw.summary(before, after, width, ink, third))
    for text in broken:
        CliError(text).show()
    return FAILED if broken else 0
