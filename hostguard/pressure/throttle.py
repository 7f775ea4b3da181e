"""tighten: while the disk is not calm, a write limit on hostguard.slice for all turns together.

If the slice has a write limit already, that one stays and nothing is done.
"""

from __future__ import annotations

import logging
from typing import Any

from hostguard.core import paths
from hostguard.core.signals import Signal, SliceThrottled
from hostguard.core.tasks import Tasks
from hostguard.core.units import SLICE
from hostguard.linux import cgroup, files
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost

log = logging.getLogger(__name__)

CLOSE_S = 5.0  # to remove the limit when the guard stops; otherwise the next guard does
Limit = tuple[str, int]  # the disk's node, bytes/s


def _limit(note: Any) -> Limit:
    node, bytes_per_s = note
    if not isinstance(node, str) or type(bytes_per_s) is not int:
        raise TypeError("not a node and a limit")
    return node, bytes_per_s


class Throttle:
    """Sets and removes the slice's IOWriteBandwidthMax over D-Bus."""

    def __init__(self, systemd: Systemd, throttled: Signal[SliceThrottled]) -> None:
        self._systemd = systemd
        self._throttled = throttled
        self.limit: Limit | None = None  # that we set, or are setting
        self._refused: Limit | None = None  # that we do not set as long as it is wanted
        self._tasks = Tasks()  # one at a time

    def open(self) -> None:
        """Remove what an earlier guard set. Call it once systemd is connected."""
        self.limit = files.recall(paths.TIGHTENED, _limit)
        if self.limit is not None:
            self.follow(None)

    async def close(self) -> None:
        """Remove the limit."""
        await self._tasks.settled(CLOSE_S)
        self.follow(None)
        await self._tasks.settled(CLOSE_S)

    def follow(self, wanted: Limit | None) -> None:
        """Set this limit, or none. What failed is tried again at the next call."""
        if wanted != self._refused:
            self._refused = None
        if not len(self._tasks) and wanted != self.limit and (wanted is None or wanted != self._refused):
            self._tasks.start(self._change(wanted))

    async def _change(self, wanted: Limit | None) -> None:
        try:
            found = await self._systemd.write_limits(SLICE)
            if self.limit is not None:
                found = await self._remove(self.limit, found)
            if wanted is not None:
                await self._set(wanted, found)
        except (SystemdError, SystemdLost, OSError) as error:
            log.warning("the write limit of %s could not be changed: %s", SLICE, error)
            if not isinstance(error, SystemdLost):
                self._refused = wanted

    async def _set(self, wanted: Limit, found: list[Limit]) -> None:
        if found:
            theirs = ", ".join(f"{node} {limit}" for node, limit in found)
            log.info("%s gets no write limit: it has one already (%s)", SLICE, theirs)
            self._refused = wanted
            return
        files.note(paths.TIGHTENED, wanted)
        self.limit = wanted
        await self._systemd.set_write_limits(SLICE, [wanted])
        log.info("%s may write %d bytes/s to %s for now", SLICE, wanted[1], wanted[0])
        await self._systemd.write_limits(SLICE)  # PID 1 writes to the kernel before it reads the next call
        self._throttled.send(SliceThrottled(cgroup.of_unit(SLICE, self._systemd.control_group)))

    async def _remove(self, ours: Limit, found: list[Limit]) -> list[Limit]:
        others = [limit for limit in found if limit != ours]
        if ours in found:
            await self._systemd.set_write_limits(SLICE, others)
            log.info("%s may write without our limit again", SLICE)
        files.note(paths.TIGHTENED, None)
        self.limit = None
        return others
