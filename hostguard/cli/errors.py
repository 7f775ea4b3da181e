"""Exit codes, and the one exception that ends a command with a message instead of a traceback."""

from __future__ import annotations

import os
import sys

from hostguard.core.text import safe

FAILED = 1
USAGE = 2  # click's own for a usage error
NOT_RUNNING = 3
UNKNOWN = 4
HELD = 75  # EX_TEMPFAIL of sysexits.h: try again later
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class CliError(Exception):
    """What went wrong and how to mend it, in words for the person at the terminal."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code

    def show(self) -> None:
        """Print the message on stderr."""
        lines = "\n".join(safe(line) for line in self.message.splitlines())
        print(f"hostguard: {lines}", file=sys.stderr)


class NotRunning(CliError):
    """Nothing answers on the daemon's socket."""

    def __init__(self, message: str = "") -> None:
        systemctl = "systemctl --user" if os.environ.get("HOSTGUARD_USER_MANAGER") == "1" else "systemctl"
        super().__init__(message or f"hostguard is not running: {systemctl} start hostguard", NOT_RUNNING)


class ConnectionLost(CliError):
    """The daemon went away before it had answered in full."""

    def __init__(self, message: str = "hostguard went away: systemctl status hostguard tells why") -> None:
        super().__init__(message, NOT_RUNNING)
