"""hostguard logs: show the output of turns."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from hostguard.cli import client
from hostguard.cli.errors import UNKNOWN, USAGE, CliError, NotRunning
from hostguard.cli.options import complete_minds, complete_turns
from hostguard.config import load as config
from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.core.units import mind_slice

LINES_MAX = 2_147_483_647  # of journalctl
_TURN_ID = re.compile(r"[0-9]+(\.[0-9]+)?|x[0-9a-f]{8}")


def complete_turns_and_minds(*given: Any) -> list[CompletionItem]:
    """Complete ids of turns and names of minds."""
    return complete_turns(*given) + complete_minds(*given)


@click.command()
@click.argument("what", metavar="TURN|MIND", shell_complete=complete_turns_and_minds)
@click.option("-f", "--follow", is_flag=True, help="Continue with new output.")
@click.option("-n", "--lines", type=click.IntRange(0, LINES_MAX), help="Show only the last N lines.")
def command(what: str, follow: bool, lines: int | None) -> NoReturn:
    """Show the output of a turn, or of all turns of a mind.

    It comes from the journal. A name that looks like a turn's id is taken for one; use @17 for a mind.

    \b
    Examples:
      hostguard logs 17
      hostguard logs -f coder
    """
    options = (["--follow"] if follow else []) + ([] if lines is None else [f"--lines={lines}"])
    argv = ["journalctl", *options, *matches(what)]
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        raise CliError(f"cannot run journalctl: {error.strerror}") from None


def matches(what: str) -> list[str]:
    """The arguments of journalctl that select the lines of a turn or a mind."""
    if not _TURN_ID.fullmatch(what):
        return _of_mind(what.removeprefix("@"))
    option = "--user-unit" if paths.USER else "--unit"
    patterns = [f"{option}=hostguard-turn-*-{what}.scope", f"{option}=hostguard-turn-*-{what}.*.scope"]
    if what.startswith("x"):
        return patterns
    try:
        turn = client.call("GET", f"/v1/turns/{what}")
    except NotRunning:
        return patterns
    except CliError as error:
        if error.exit_code != UNKNOWN:
            raise
        # A failed attempt's turn no longer belongs to its delivery, but the journal still has it.
        client.call("GET", f"/v1/deliveries/{what.partition('.')[0]}")
        return patterns
    return [f"{option}={turn['unit']}"] if turn.get("unit") else patterns


def _of_mind(name: str) -> list[str]:
    if not name:
        raise CliError("the name is empty: give a turn's id or a mind", USAGE)
    _refuse_unknown(name)
    # The slice also matches turns that start later; a unit pattern does not.
    field = "_SYSTEMD_USER_SLICE" if paths.USER else "_SYSTEMD_SLICE"
    users = [f"_UID={uid}" for uid in sorted(_users(name))]
    # If a process ended before journald read its lines, the slice is unknown (with a user's manager, the unit
    # too) and only the name of the stream is left (see journal.stream). Anybody can use that name.
    gone = [f"SYSLOG_IDENTIFIER={name}", "_TRANSPORT=stdout", *users]
    own = users if paths.USER else []
    return [f"{field}={mind_slice(name)}", *own, "+", *gone]


def _refuse_unknown(name: str) -> None:
    """Raise CliError if no mind has the name, nor had it as far as the history goes."""
    try:
        if name not in [mind["name"] for mind in client.call("GET", "/v1/minds")["minds"]]:
            client.call("GET", "/v1/deliveries", params={"mind": name, "limit": 1})
    except NotRunning:
        with suppress(ConfigError):  # perhaps only root can read it
            known = config.load().minds
            if name not in known:
                raise _unknown(f"there is no mind {name}: minds: {', '.join(known)}", name) from None
    except CliError as error:
        if error.exit_code == UNKNOWN:
            raise _unknown(error.message, name) from None


def _unknown(message: str, name: str) -> CliError:
    field = "_SYSTEMD_USER_SLICE" if paths.USER else "_SYSTEMD_SLICE"
    shown = shlex.quote(f"{field}={mind_slice(name)}")
    return CliError(
        f"{message}\nIf it was removed, the journal still has its turns: journalctl {shown}", UNKNOWN
    )


def _users(name: str) -> set[int]:
    """The users whose lines may be matched by the stream's name alone."""
    if paths.USER:
        return {os.getuid()}
    try:
        mind = config.load().minds.get(name)
    except ConfigError:
        mind = None
    return {0, mind.uid} if mind and mind.user else {0}
