"""The waiting `hostguard run` processes: each has a row in the queue, and a connection while it waits."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from hostguard.core.model import Row
from hostguard.systemd.fork_client import exited

AWAY_S = 15.0  # after a restart of the guard, a caller has this long to come back


class RunClient:
    """One connected `hostguard run`. `pid` and `uid` are the peer's, from the kernel (SO_PEERCRED).

    The pidfd makes sure that it is still that process which is moved. Raises OSError if it is gone.
    """

    def __init__(self, pid: int, uid: int) -> None:
        self.pid = pid
        self.uid = uid
        self._pidfd = os.pidfd_open(pid)
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def alive(self) -> bool:
        """Whether the process lives and is its uid's own."""
        if exited(self._pidfd):
            return False
        try:
            return os.stat(f"/proc/{self.pid}").st_uid == self.uid
        except OSError:
            return False

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event to the process."""
        self.events.put_nowait(event)

    def close(self) -> None:
        """Forget the process."""
        os.close(self._pidfd)


class RunClients:
    """Callers by row; rows whose caller is away are parked here, outside the backlog, for a while."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Row, RunClient]] = {}
        self._parked: dict[int, tuple[float, Row]] = {}  # with time.monotonic() of the end

    def attach(self, row: Row, caller: RunClient) -> None:
        """The row's caller is connected."""
        self._waiting[row.id] = (row, caller)

    def detach(self, id_: int, caller: RunClient) -> Row | None:
        """The connection closed: the row, or None if it is not this caller's (any more)."""
        row, waiting = self._waiting.get(id_, (None, None))
        if waiting is caller:
            del self._waiting[id_]
            return row
        return None

    def waits(self, id_: int) -> bool:
        """Whether the row's caller is connected."""
        return id_ in self._waiting

    def pid_waits(self, pid: int) -> bool:
        """Whether this process waits already: it cannot be in two scopes."""
        return any(caller.pid == pid for _, caller in self._waiting.values())

    def take(self, id_: int) -> RunClient | None:
        """The row's caller, which waits no more."""
        return self._waiting.pop(id_, (None, None))[1]

    def tell(self, id_: int, event: dict[str, Any]) -> None:
        """Send an event to the row's caller, if it has one."""
        if id_ in self._waiting:
            self._waiting[id_][1].tell(event)

    def park(self, row: Row) -> None:
        """The row's turn has come but its caller is away."""
        self._parked[row.id] = (time.monotonic() + AWAY_S, row)

    def unpark(self, id_: int) -> Row | None:
        """The parked row, which is parked no more."""
        parked = self._parked.pop(id_, None)
        return parked[1] if parked else None

    def lost(self) -> list[int]:
        """Parked rows whose caller did not come back."""
        now = time.monotonic()
        return [id_ for id_, (until, _) in self._parked.items() if until <= now]

    def lost_in(self) -> float | None:
        """Seconds until the next parked row is given up."""
        first = min((until for until, _ in self._parked.values()), default=None)
        return None if first is None else first - time.monotonic()
