"""The `hostguard` command. One file per verb; a verb is imported only when it is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

import click

from hostguard import __version__
from hostguard.cli.errors import FAILED, INTERRUPTED, CliError

# The line of each verb stands here too, so that --help need not import them all.
VERBS = {
    "Work": {
        "send": "Put a message in the queue of a mind or of a channel's minds",
        "run": "Run a command as a turn of a mind, once there is room",
    },
    "Look": {
        "status": "Show how the host, its minds and its turns are",
        "turns": "List the live turns, or show one",
        "queue": "List the waiting deliveries, or show one",
        "why": "Tell why a delivery waits",
        "minds": "List the minds",
        "dead": "Show dead letters, try them again, or drop them",
        "logs": "Show what a turn, or a mind's turns, wrote",
        "events": "Show holds, starts, ends and changes as they happen",
        "pressure": "Show how the disk is, how many turns that allows and why, and the last changes",
    },
    "Steer": {
        "stop": "Stop a live turn",
        "cancel": "Take deliveries out of the queue",
        "retry": "Queue deliveries again",
        "pause": "Start no more turns, of one mind or of all",
        "resume": "Undo a pause",
        "limit": "Show the limits, or change one at once",
        "sleep": "Let a mind sleep",
        "wake": "Wake a mind",
        "schedule": "Show, add and remove schedules: messages and scripts at set times",
    },
    "Set up": {
        "setup": "Propose limits for this host, show them, and write them on yes",
        "doctor": "Check what this host can and cannot enforce, and tell how to mend what it cannot",
        "config": "Check or show the configuration",
        "route": "Explain the routes of a mind",
        "mind": "Set up one mind",
        "reload": "Read the configuration again",
        "demo": "Replay the incident, unguarded and guarded",
    },
}

EPILOG = """
\b
Exit codes:
  0   done
  1   failed
  2   the command line is wrong
  3   the daemon is not running
  4   no such mind, channel, delivery or turn
  75  held for longer than was asked for
"""


class LazyGroup(click.Group):
    """Verbs that are modules hostguard.cli.VERB with the attribute `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs whose modules exist, in the order of the help."""
        return [name for verbs in VERBS.values() for name in verbs if find_spec(f"hostguard.cli.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb, or None if there is none of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"hostguard.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per group of verbs."""
        present = self.list_commands(ctx)
        for title, verbs in VERBS.items():
            if lines := [(name, line) for name, line in verbs.items() if name in present]:
                with formatter.section(title):
                    formatter.write_dl(lines)


def _user(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Before a verb is imported, and with it the paths."""
    if value:
        os.environ["HOSTGUARD_USER_MANAGER"] = "1"


@click.command(cls=LazyGroup, epilog=EPILOG)
@click.option(
    "--user",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_user,
    help="Ask the hostguardd of this user's own service manager.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Keeps a small host alive while several AI minds work on it."""


def main() -> NoReturn:
    """Run the command line and exit. A person's mistake ends in a message, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = cli.main(prog_name="hostguard", standalone_mode=False)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except (CliError, click.ClickException) as error:
        error.show()
        sys.exit(error.exit_code)
    except OSError as error:
        CliError(str(error)).show()
        sys.exit(FAILED)
    sys.exit(code if isinstance(code, int) else 0)
