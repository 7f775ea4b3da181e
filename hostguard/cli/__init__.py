"""The `hostguard` command. The file of a verb is imported only when the verb is used."""

from __future__ import annotations

import os
import sys

from hostguard.cli.errors import FAILED, INTERRUPTED, CliError
from hostguard.core.errors import ConfigError, SystemdFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit. A user's mistake ends in a message, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        _leave(_run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except CliError as error:
        error.show()
        sys.exit(error.exit_code)
    except (OSError, SystemdFailed, ConfigError) as error:
        CliError(str(error)).show()
        sys.exit(FAILED)


def _leave(code: int) -> NoReturn:
    """Exit at once: for Python to take its modules apart would be a fifth of what most verbs cost."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _run(arguments: list[str]) -> int:
    # Status is needed when the host is slow, and importing click takes thrice as long as starting Python.
    if arguments in (["status"], ["status", "--json"]):
        from hostguard.cli.status import show

        return show(as_json="--json" in arguments)
    from hostguard.cli.group import run

    return run()
