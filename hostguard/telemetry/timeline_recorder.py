"""Notes the state of the host in the timeline while the guard runs, and stores some of it from time to time.

Stored is what a report after a restart needs: a row for each ten minutes in which anything happened, and one
for each incident. They are written at most every STORE_MS, by the store's thread, without an fsync of their
own, and only while the disk is calm. A power failure loses the newest; the end of the guard stores the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized
from functools import partial
from typing import Any

from hostguard.core.clock import JUMP_MS, Clock, Now
from hostguard.core.settings import Level
from hostguard.store.writer import Queue
from hostguard.telemetry import timeline_rows
from hostguard.telemetry.timeline import LEVELS, Seen, Timeline, Trouble, coarse

log = logging.getLogger(__name__)

STORE_MS = 2 * 3_600_000
WIDTH_MS = 600_000
INCIDENTS_MAX = 12  # of one store, the worst: a disk in trouble all day gets less than 200 KB a day


class TimelineRecorder:
    """Nothing here waits for a disk."""

    def __init__(self, queue: Queue, backlog: Sized, clock: Clock) -> None:
        self.timeline = Timeline()
        self._queue = queue
        self._backlog = backlog
        self._clock = clock
        self._level = Level.CALM
        now = clock.now()
        self._offset = now.date - now.ticks
        self._tried = now.stamp  # the last store
        self._stored = 0  # points and incidents before this are stored

    def note(
        self, level: Level, cap: int | None, turns: int, trouble: Trouble, await_ms: int | None = None
    ) -> None:
        """Note the state now, the lowest cap in force, and how long a request of the disk took since then."""
        self._level = level
        now = self._look()
        seen = Seen(LEVELS.index(level), cap, turns, len(self._backlog), await_ms)
        self.timeline.note(now.date, seen, trouble)
        if now.since(self._tried) >= STORE_MS:
            self.store()

    def _look(self) -> Now:
        """The clocks now. If the date was set, what is in memory gets the dates that it would have had."""
        now = self._clock.now()
        jump = now.date - now.ticks - self._offset
        if abs(jump) > JUMP_MS:
            self._offset += jump
            self.timeline.move(jump, self._stored)
            self._stored = 0
        return now

    def store(self) -> asyncio.Future[Any] | None:
        """Store what is new, unless the disk is in trouble; None if there is nothing to store now."""
        clocks = self._look()
        now = clocks.date
        if self._level is not Level.CALM or self._queue.trouble is not None:
            return None
        self._tried = clocks.stamp
        points = [*coarse([p for p in self.timeline.known() if p.at >= self._stored], WIDTH_MS)]
        over = [one for one in self.timeline.incidents if one.until is not None and one.until >= self._stored]
        incidents = sorted(over, key=lambda one: (one.level, (one.until or 0) - one.at))[-INCIDENTS_MAX:]
        if not points and not incidents:
            return None
        store = partial(timeline_rows.store, points=points, incidents=incidents, now=now)
        write = self._queue.submit(store, durable=False).future
        offset = self._offset
        write.add_done_callback(lambda done: self._done(done, now, offset))
        return write

    def _done(self, done: asyncio.Future[Any], now: int, offset: int) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.debug("the timeline is not stored: %s", error)  # it is tried again
        elif offset == self._offset:
            self._stored = now - now % WIDTH_MS  # what goes on is stored again once there is more of it
