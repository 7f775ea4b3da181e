"""Exit codes, and the exception that ends a command with a message."""

from __future__ import annotations

import os
import sys

from hostguard.core.text import safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FAILED = 1
USAGE = 2  # as click exits for a usage error
NOT_RUNNING = 3
UNKNOWN = 4
HELD = 75  # EX_TEMPFAIL of sysexits.h: try again later
INTERRUPTED = 130  # 128 + SIGINT, as in shells


class CliError(Exception):
    """An error with a message for the user: what failed and how to fix it."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code

    def show(self) -> None:
        """Print the message on stderr."""
        lines = "\n".join(safe(line) for line in self.message.splitlines())
        print(f"hostguard: {lines}", file=sys.stderr)


class Refused(CliError):
    """The daemon refused the request, with this HTTP status and problem document (RFC 9457)."""

    def __init__(self, message: str, exit_code: int, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(message, exit_code)
        self.status = status
        self.document = document


class NotRunning(CliError):
    """The daemon is not running."""

    def __init__(self, message: str = "") -> None:
        systemctl = "systemctl --user" if os.environ.get("HOSTGUARD_USER_MANAGER") == "1" else "systemctl"
        super().__init__(message or f"hostguard is not running: {systemctl} start hostguard", NOT_RUNNING)


class NotAccepting(NotRunning):
    """The socket takes connections, but no daemon accepts them."""


class OnStandby(Refused):
    """The daemon runs but cannot start its work; the message has the reason."""


class ConnectionLost(CliError):
    """The daemon closed the connection, or stopped answering, before its answer was complete."""

    def __init__(self, message: str = "") -> None:
        lost = "lost the connection to hostguard: see systemctl status hostguard"
        super().__init__(message or lost, NOT_RUNNING)
