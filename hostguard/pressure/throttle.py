"""tighten: all turns together write less while the disk is not calm, by a limit of hostguard.slice set live.

What somebody else set there stays as it is: with any write limit on the slice nothing is done.
"""

from __future__ import annotations

import logging

from hostguard.core import paths
from hostguard.core.signals import Signal, SliceThrottled
from hostguard.core.tasks import Tasks
from hostguard.core.units import SLICE
from hostguard.linux import cgroup, files
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost

log = logging.getLogger(__name__)

CLOSE_S = 5.0  # to give it back, when the guard stops; else the next one does
Limit = tuple[str, int]  # the disk's node, bytes/s


class Throttle:
    """Sets and gives back the slice's IOWriteBandwidthMax over D-Bus."""

    def __init__(self, systemd: Systemd, throttled: Signal[SliceThrottled]) -> None:
        self._systemd = systemd
        self._throttled = throttled
        self.limit: Limit | None = None  # what we set, or are about to
        self._refused: Limit | None = None  # what we leave be, while it is wanted
        self._tasks = Tasks()  # one at a time

    def open(self) -> None:
        """Give back what an earlier guard set. Call it once systemd is connected."""
        left = files.recall(paths.TIGHTENED)
        if left:
            self.limit = (left[0], left[1])
            self.follow(None)

    async def close(self) -> None:
        """Give it back."""
        await self._tasks.settled(CLOSE_S)
        self.follow(None)
        await self._tasks.settled(CLOSE_S)

    def follow(self, wanted: Limit | None) -> None:
        """Have this limit, or none. What could not be done is tried at the next call."""
        if wanted != self._refused:
            self._refused = None
        if not len(self._tasks) and wanted != self.limit and (wanted is None or wanted != self._refused):
            self._tasks.start(self._change(wanted))

    async def _change(self, wanted: Limit | None) -> None:
        try:
            there = await self._systemd.write_limits(SLICE)
            if self.limit is not None:
                there = await self._give_back(self.limit, there)
            if wanted is not None:
                await self._set(wanted, there)
        except (SystemdError, SystemdLost, OSError) as error:
            log.warning("the write limit of %s is not changed: %s", SLICE, error)
            if not isinstance(error, SystemdLost):
                self._refused = wanted

    async def _set(self, wanted: Limit, there: list[Limit]) -> None:
        if there:
            told = ", ".join(f"{node} {limit}" for node, limit in there)
            log.info("%s is not tightened: it has a write limit of its own (%s)", SLICE, told)
            self._refused = wanted
            return
        files.note(paths.TIGHTENED, wanted)
        self.limit = wanted
        await self._systemd.set_write_limits(SLICE, [wanted])
        log.info("%s may write %d bytes/s to %s for now", SLICE, wanted[1], wanted[0])
        await self._systemd.write_limits(SLICE)  # PID 1 writes to the kernel before it reads the next call
        self._throttled.send(SliceThrottled(cgroup.of_unit(SLICE, self._systemd.control_group)))

    async def _give_back(self, ours: Limit, there: list[Limit]) -> list[Limit]:
        others = [limit for limit in there if limit != ours]
        if ours in there:
            await self._systemd.set_write_limits(SLICE, others)
            log.info("%s may write as before", SLICE)
        files.note(paths.TIGHTENED, None)
        self.limit = None
        return others
