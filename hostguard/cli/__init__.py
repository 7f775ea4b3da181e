"""The `hostguard` command. Each verb has a file, which is imported only when the verb is used."""

from __future__ import annotations

import sys

from hostguard.cli.errors import FAILED, INTERRUPTED, CliError
from hostguard.core.errors import SystemdFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

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
        "reload": "Read the configuration again",
        "demo": "Replay the incident, unguarded and guarded",
    },
}


def main() -> NoReturn:
    """Run the command line and exit. A user's mistake ends in a message, never in a traceback."""
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
    # Status is needed when the host is slow, and importing click takes thrice as long as starting Python.
    if arguments in (["status"], ["status", "--json"]):
        from hostguard.cli.status import show

        return show(as_json="--json" in arguments)
    from hostguard.cli.group import run

    return run()
