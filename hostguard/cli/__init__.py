"""The `hostguard` command. One file per verb; a verb is imported only when it is used."""

from __future__ import annotations

import sys

from hostguard.cli.errors import FAILED, INTERRUPTED, CliError
from hostguard.core.errors import SystemdFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# The line of each verb stands here too, so that --help need not import them all.
VERBS = {
    "Work": {
        "send": "Put a message in the queue of a mind or of a channel's minds",
        "run": "Run a command as a turn of a mind, once there is room",
    },
    "Look": {
        "status": "Show how the host, its minds and its turns are",
        "top": "Show what runs, what waits and how the disk is, once a second",
        "turns": "List the live turns, or show one",
        "queue": "List the waiting deliveries, or show one",
        "why": "Tell why a delivery waits",
        "minds": "List the minds",
        "dead": "Show dead letters, try them again, or drop them",
        "logs": "Show what a turn, or a mind's turns, wrote",
        "events": "Show holds, starts, ends and changes as they happen",
        "report": "Write a page that tells what ran, what waited and why, and what the guard did",
        "metrics": "Print the guard's metrics for Prometheus",
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
        "doctor": "Check which limits this host can enforce, and explain how to fix those it cannot",
        "config": "Check or show the configuration",
        "route": "Explain the routes of a mind",
        "mind": "Set up one mind",
        "reload": "Read the configuration again",
        "demo": "Replay the incident, unguarded and guarded",
    },
}


def main() -> NoReturn:
    """Run the command line and exit. A person's mistake ends in a message, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        sys.exit(_run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except CliError as error:
        error.show()
        sys.exit(error.exit_code)
    except (OSError, SystemdFailed) as error:
        CliError(str(error)).show()
        sys.exit(FAILED)


def _run(arguments: list[str]) -> int:
    # One looks at it when the host is slow, and importing click takes three times as long as starting Python.
    if arguments in (["status"], ["status", "--json"]):
        from hostguard.cli.overview import show

        return show(as_json="--json" in arguments)
    from hostguard.cli.group import run

    return run()
