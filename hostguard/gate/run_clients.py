"""The waiting `hostguard run` processes: each has a row in the queue, and a connection while it waits."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from hostguard.core.model import Row
from hostguard.systemd.fork_client import exited

RUN_LEFT = "its `hostguard run` ended"
AWAY_S = 15.0  # after a restart of the guard, a caller has this long to come back


class RunClient:
    """One connected `hostguard run`. `pid` and `uid` are the peer's, from the kernel (SO_PEERCRED).

    The pidfd ensures that only this process is moved. Raises OSError if it is gone.
    """

    def __init__(self, pid: int, uid: int) -> None:
        self.pid = pid
        self.uid = uid
        self.pidfd = os.pidfd_open(pid)
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def alive(self) -> bool:
        """True if the process is alive and still runs as its uid."""
        if exited(self.pidfd):
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
        os.close(self.pidfd)


class RunClients:
    """Callers by row. A row whose caller is not connected is parked here for a while, outside the backlog."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Row, RunClient]] = {}
        self._parked: dict[int, tuple[float, Row]] = {}  # with time.monotonic() of the end

    def attach(self, row: Row, caller: RunClient) -> None:
        """The row's caller is connected."""
        self._waiting[row.id] = (row, caller)

    def detach(self, id_: int, caller: RunClient) -> Row | None:
        """The connection closed. Returns the row, or None if it is no longer this caller's."""
        row, waiting = self._waiting.get(id_, (None, None))
        if waiting is caller:
            del self._waiting[id_]
            return row
        return None

    def waits(self, id_: int) -> bool:
        """True if the row's caller is connected."""
        return id_ in self._waiting

    def pid_waits(self, pid: int) -> bool:
        """True if this process waits already: it cannot be in two scopes."""
        return any(caller.pid == pid for _, caller in self._waiting.values())

    def take(self, id_: int) -> RunClient | None:
        """Remove and return the row's caller."""
        return self._waiting.pop(id_, (None, None))[1]

    def tell(self, id_: int, event: dict[str, Any]) -> None:
        """Send an event to the row's caller, if it has one."""
        if id_ in self._waiting:
            self._waiting[id_][1].tell(event)

    def park(self, row: Row) -> None:
        """Park the row: it could start, but its caller is not connected."""
        self._parked[row.id] = (time.monotonic() + AWAY_S, row)

    def unpark(self, id_: int) -> Row | None:
        """Remove and return the parked row."""
        parked = self._parked.pop(id_, None)
        return parked[1] if parked else None

    def lost(self) -> list[Row]:
        """Remove and return the parked rows whose caller did not reconnect in time."""
        now = time.monotonic()
        rows = [row for until, row in self._parked.values() if until <= now]
        for row in rows:
            del self._parked[row.id]
        return rows

    def lost_in(self) -> float | None:
        """Seconds until the next parked row is given up."""
        first = min((until for until, _ in self._parked.values()), default=None)
        return None if first is None else first - time.monotonic()
