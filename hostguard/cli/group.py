"""The click group with all verbs."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from hostguard import __version__
from hostguard.cli.errors import INTERRUPTED

EPILOG = """
\b
Exit codes:
  0   done
  1   failed
  2   the command line is wrong
  3   the daemon is not running
  4   no such mind, channel, delivery or turn
  75  held for longer than --timeout or --max-wait
"""


# The summary of each verb is repeated here, so that --help need not import them all.
VERBS = {
    "Work": {
        "send": "Queue a message for a mind or for each mind of a channel",
        "run": "Run a command as a turn of a mind",
    },
    "Look": {
        "status": "Show the state of the host, its minds and its turns",
        "top": "Show what runs, what waits and how the disk is, once a second",
        "turns": "List the live turns, or show one",
        "queue": "List the waiting deliveries, or show one",
        "why": "Explain why a delivery waits",
        "minds": "List the minds",
        "dead": "List, retry or drop dead letters",
        "logs": "Show the output of a turn, or of all turns of a mind",
        "events": "Show holds, starts, ends and changes",
        "report": "Write a report on turns, waits and the guard's actions",
        "metrics": "Print the metrics for Prometheus",
        "pressure": "Show the level of the disk, how many turns it allows and why",
    },
    "Steer": {
        "stop": "Stop a live turn",
        "cancel": "Remove deliveries from the queue",
        "retry": "Queue ended deliveries again, due now",
        "pause": "Start no more turns, of one mind or of all",
        "resume": "End a pause",
        "limit": "Show or change the limits",
        "sleep": "Put a mind to sleep",
        "wake": "Wake a mind",
        "schedule": "List, add, remove or run schedules",
    },
    "Set up": {
        "setup": "Propose limits for this host, and write them if you confirm",
        "doctor": "Check which limits this host can enforce, and explain how to fix those it cannot",
        "config": "Check or show the configuration",
        "route": "Test the routes of a mind",
        "mind": "Add a mind, or make a token for it",
        "volute": "Put the guard in front of a Volute that runs on this host",
        "reload": "Read the configuration again",
        "demo": "Replay the incident, unguarded and guarded",
    },
    "Help": {
        "help": "Show the help of a command",
        "version": "Show the version",
    },
}


# Verbs in the module of another one; there, each has its own name.
TOGETHER = {
    "resume": "pause", "wake": "sleep", "retry": "cancel", "stop": "turns", "why": "queue", "minds": "mind",
    "version": "help",
}  # fmt: skip


class Utf8(click.types.StringParamType):
    """A string that the guard can store. What may be in another encoding is a click.Path, or UNPROCESSED."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value. Raises click.BadParameter."""
        text = super().convert(value, param, ctx)
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            self.fail(f"{text!r:.100} is not UTF-8", param, ctx)
        return text


def _in_utf8(command: click.Command) -> click.Command:
    """The command, whose strings are Utf8, and those of the commands below it."""
    for param in command.params:
        if param.type is click.STRING:
            param.type = Utf8()
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _in_utf8(inner)
    return command


class LazyGroup(click.Group):
    """Imports the verb VERB from hostguard.cli.verbs.VERB, attribute `command`, or as TOGETHER says."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the help."""
        return [name for verbs in VERBS.values() for name in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb; None if there is no verb of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = TOGETHER.get(cmd_name, cmd_name)
        attribute = cmd_name if module in TOGETHER.values() else "command"
        command: click.Command = getattr(import_module(f"hostguard.cli.verbs.{module}"), attribute)
        return _in_utf8(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with the verb that was perhaps meant. Raises click.UsageError."""
        name = args[0]
        if self.get_command(ctx, name) is None and name[:1].isalnum():
            from difflib import get_close_matches

            meant = get_close_matches(name, self.list_commands(ctx), 1)
            hint = f" Did you mean {meant[0]}?" if meant else ""
            raise click.UsageError(f"No such command {name!r:.100}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per group of verbs."""
        for title, verbs in VERBS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


def _user(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Set the environment before a verb imports the paths."""
    if value:
        os.environ["HOSTGUARD_USER_MANAGER"] = "1"


@click.command(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--user", is_flag=True, is_eager=True, expose_value=False, callback=_user,
    help="Talk to the hostguardd of the calling user's service manager.",
)  # fmt: skip
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
