"""hostguard run: run a command as a turn, in the foreground."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NoReturn
from uuid import uuid4

import click
from click.shell_completion import CompletionItem

from hostguard.cli import client, daemonless
from hostguard.cli.away import passes
from hostguard.cli.errors import FAILED, HELD, CliError, ConnectionLost, NotRunning, OnStandby
from hostguard.cli.options import DURATION, complete_minds
from hostguard.core.names import MAIN_SESSION
from hostguard.core.text import safe
from hostguard.core.units import parse_turn_unit
from hostguard.telemetry.headlines import hold_text

RECONNECT_S = 60.0
TEXT_MAX = 200  # characters, the limit of the API
NOT_EXECUTABLE = 126  # as in shells
NOT_FOUND = 127

OnHeld = Callable[[str, str], None]


def complete_cmd(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the command by what is in PATH, and its arguments by files."""
    if ctx.params.get("cmd") or "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    found = set()
    for folder in os.get_exec_path():
        with suppress(OSError):
            found |= {name for name in os.listdir(folder) if name.startswith(incomplete)}
    return [CompletionItem(name) for name in sorted(found)]


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--mind", required=True, help="The mind that runs it.", shell_complete=complete_minds)
@click.option("--session", default=MAIN_SESSION, show_default=True, help="The conversation.")
@click.option("--max-wait", type=DURATION, help="Give up, with exit code 75, if held for longer.")
@click.option("--description", default="", help="The description that systemctl shows. Default: the command.")
@click.option("-v", "--verbose", is_flag=True, help="Report why it waits even if stderr is not a terminal.")
@click.argument(
    "cmd", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_cmd
)
def command(
    mind: str, session: str, max_wait: float | None, description: str, verbose: bool, cmd: tuple[str, ...]
) -> NoReturn:
    """Run a command as a turn of a mind.

    It waits in the same queue as the mind's messages. Then the command replaces this process, with its
    terminal, its signals and its exit status. 127 and 126: it was not found, or cannot be executed.

    \b
    Examples:
      hostguard run --mind coder -- make test
      hostguard run --mind coder --max-wait 10m -- ./nightly.sh
    """
    if shutil.which(program := cmd[0]) is None:  # better to know before it waits
        if os.path.exists(program) and "/" in program:
            raise CliError(f"{program} is not executable: chmod +x {program}", NOT_EXECUTABLE)
        raise CliError(f"{program}: command not found", NOT_FOUND)
    mind = mind.removeprefix("@")
    on_held = _reporter(mind, verbose or sys.stderr.isatty())
    deadline = None if max_wait is None else monotonic() + max_wait
    # systemctl and the journal show it.
    description = safe(description or shlex.join(cmd))[:TEXT_MAX]
    request = {
        "mind": mind, "session": session, "key": str(uuid4()), "description": description,
        "argv0": safe(cmd[0])[:TEXT_MAX],
    }  # fmt: skip
    entered = None
    while entered is None:
        try:
            entered = _through_daemon(request, deadline, on_held)
        except NotRunning:
            _refuse_own(mind)
            entered = daemonless.enter_scope(mind, session, description, deadline, on_held)
    _become(cmd)


def _refuse_own(mind: str) -> None:
    """Refuse to wait, without the daemon, for the turn that this process is in. Raises CliError."""
    inside = daemonless.own_turn()
    if inside is not None and (parse_turn_unit(inside) or ("",))[0] == mind:
        where = f"this is in a turn of {mind}, {inside}"
        raise CliError(f"{where}, and would wait for itself: run the command as it is")


def _reporter(mind: str, wanted: bool) -> OnHeld:
    """A function that prints each reason for a hold once."""
    reported = set()

    def on_held(reason: str, blocker: str) -> None:
        if wanted and reason not in reported:
            reported.add(reason)
            CliError(f"held: {hold_text({'reason': reason, 'blocker': blocker}, mind)}").show()

    return on_held


def _through_daemon(request: Any, deadline: float | None, on_held: OnHeld) -> str:
    """Wait until the daemon has moved this process into its scope; the name of the unit.

    Raises NotRunning if there was no daemon at first, otherwise another CliError.
    """
    before = daemonless.own_turn()  # not None inside another turn
    lost_at = None
    while True:
        tried_at = monotonic()
        left = None if deadline is None else max(0.0, deadline - tried_at)
        try:
            return _await_start({**request, "max_wait_s": left}, on_held)
        except CliError as error:
            lost = isinstance(error, ConnectionLost)
            if lost_at is None and not lost:
                raise
            unit = daemonless.own_turn()
            if unit is not None and unit != before:
                return unit  # moved, but the answer was lost
            if not passes(error):
                raise
            why = error.message if isinstance(error, OnStandby) else "hostguard stopped and did not come back"
            if deadline is not None and monotonic() > deadline:
                raise CliError("held for longer than --max-wait; hostguard stopped answering", HELD) from None
        if lost_at is None or monotonic() - tried_at > 1:  # it was connected for a while
            lost_at = monotonic()
        if monotonic() - lost_at > RECONNECT_S:
            raise ConnectionLost(f"{why}\nThis command waited meanwhile: it was not run")
        sleep(0.2)


def _await_start(request: Any, on_held: OnHeld) -> str:
    with client.request("POST", "/v1/run", body=request) as answer:
        for line in answer.lines():
            event = json.loads(line)
            kind = event["event"]
            if kind == "held":
                on_held(event["reason"], event.get("blocker") or "")
            elif kind == "start":
                unit: str = event["unit"]
                if daemonless.own_turn() != unit:
                    raise CliError(
                        f"this process is not in {unit}, the scope of its turn: the command was not run"
                    )
                return unit
            elif kind == "expired":
                raise CliError("held for longer than --max-wait: the command was not run", HELD)
            elif kind == "cancelled":
                why = event.get("detail") or "cancelled while it waited"
                raise CliError(f"the command was not run: {why}", FAILED)
            elif kind == "failed":
                raise CliError(f"the turn could not be started: {event.get('detail')}", FAILED)
    raise ConnectionLost()


def _become(cmd: tuple[str, ...]) -> NoReturn:
    # Python ignores these signals; the command must not inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(cmd[0], cmd)  # noqa: S606
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        raise CliError(f"{cmd[0]} cannot be executed: {error.strerror}", code) from None
