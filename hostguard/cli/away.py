"""Bears with a daemon that restarts while a command waits for it."""

from __future__ import annotations

from time import monotonic, sleep

from hostguard.cli import client
from hostguard.cli.errors import CliError, ConnectionLost, NotRunning, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AWAY_S = 60.0
PAUSE_S, REFUSED_S = 0.2, 2.0  # until it is asked again: while it is away, and while it cannot do it
UNAVAILABLE = 503  # the disk is full or stalls, or the daemon stops


def passes(error: CliError) -> bool:
    """True if the daemon may do it when it is asked again."""
    if isinstance(error, Refused):
        return error.status == UNAVAILABLE
    return isinstance(error, ConnectionLost | NotRunning)


class Away:
    """How long the daemon has been away since it was met. Before it was, nothing is borne."""

    def __init__(self, hint: str = "") -> None:
        """`hint`: follows the error if it does not come back in time."""
        self._hint = hint
        self._met = False
        self._since: float | None = None
        self._said = ""

    def back(self) -> None:
        """It answered."""
        self._met, self._since = True, None

    def bear(self, error: CliError) -> None:
        """Pause after this error; or raise it, if it does not pass or the daemon was away for AWAY_S."""
        self._met = self._met or isinstance(error, ConnectionLost)
        if not self._met or not passes(error):
            raise error
        if isinstance(error, Refused):
            if error.message != self._said:
                self._said = error.message
                error.show()
            self._since = None
            sleep(REFUSED_S)
            return
        now = monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > AWAY_S:
            raise CliError(f"{error.message}{self._hint}", error.exit_code)
        sleep(PAUSE_S)


def ask(method: str, path: str, away: Away, body: Any = None) -> Any:
    """As client.call, but asked again while the daemon restarts. Raises CliError."""
    while True:
        try:
            answer = client.call(method, path, body=body)
        except CliError as error:
            away.bear(error)
        else:
            away.back()
            return answer
