"""The verbs as click has them."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import click

from hostguard import __version__
from hostguard.cli import VERBS
from hostguard.cli.errors import INTERRUPTED

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
    """Verbs that are modules hostguard.cli.verbs.VERB with the attribute `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs whose modules exist, in the order of the help."""
        return [
            name for verbs in VERBS.values() for name in verbs if find_spec(f"hostguard.cli.verbs.{name}")
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb, or None if there is none of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"hostguard.cli.verbs.{cmd_name}").command
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


def run() -> int:
    """Run the command line; its exit code. Raises CliError."""
    try:
        code = cli.main(prog_name="hostguard", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0
