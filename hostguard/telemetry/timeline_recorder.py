"""Takes the notes of history.py while the guard runs, and has some of them stored, seldom.

On the disk is what a report after a restart needs: a row for ten minutes in which anything happened, one for
each incident. They are written at most every STORE_MS, by the queue's thread, without an fsync of their own,
while the disk is calm. A power failure takes what is newer. The guard's end stores the rest.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from hostguard.core.clock import now_ms
from hostguard.core.settings import Level
from hostguard.telemetry import timeline_store
from hostguard.telemetry.timeline import LEVELS, Incident, Seen, Timeline, Trouble, coarse

if TYPE_CHECKING:
    from hostguard.gate.dispatcher import Dispatcher

log = logging.getLogger(__name__)

STORE_MS = 2 * 3_600_000
WIDTH_MS = 600_000
# The most that one store writes beside the points, so that a disk in trouble all day gets under 200 KB a day.
INCIDENTS_MAX = 12


class TimelineRecorder:
    """One for the watcher. Nothing here waits for a disk."""

    def __init__(self, manager: Dispatcher) -> None:
        self.history = Timeline()
        self._manager = manager
        self._asked_at = now_ms()  # when it was last stored, or tried to
        self._stored = 0  # points and incidents before this are stored

    def note(self, await_ms: int | None = None) -> None:
        """Note how the host is now; `await_ms`: what a request of the disk took since the look before."""
        manager, watcher, now = self._manager, self._manager.watcher, now_ms()
        host = manager.host()
        cap = min((cap for cap in (host.cap, host.effective_cap) if cap is not None), default=None)
        limit, state = watcher.tightener.limit, watcher.state
        seen = Seen(LEVELS.index(state.level), cap, host.live, len(manager.backlog), await_ms)
        # A stall is called one until the disk has been well for a while.
        over = state.level is Level.STALLED and state.last is not None and state.stalled_at < state.last.at
        evidence = "" if over else state.evidence
        frozen = len(watcher.freezer.frozen)
        trouble = Trouble(evidence, host.cap, frozen, limit[1] if limit else None)
        self.history.note(now, seen, trouble)
        if not 0 <= now - self._asked_at < STORE_MS:
            self.store()

    def store(self) -> asyncio.Future[Any] | None:
        """Have what is new stored, unless the disk is in trouble; None: there is nothing to store now."""
        manager, now = self._manager, now_ms()
        if manager.watcher.state.level is not Level.CALM or manager.queue.trouble is not None:
            return None
        self._asked_at = now
        points = [*coarse([p for p in self.history.known() if p.at >= self._stored], WIDTH_MS)]
        over = [one for one in self.history.incidents if one.until is not None and one.until >= self._stored]
        incidents = sorted(over, key=weight)[-INCIDENTS_MAX:]
        if not points and not incidents:
            return None
        write = manager.queue.submit(
            lambda db: timeline_store.store(db, points, incidents, now), durable=False
        ).future
        write.add_done_callback(lambda done: self._done(done, now))
        return write

    def _done(self, done: asyncio.Future[Any], now: int) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.debug("the history is not stored: %s", error)  # it is tried again
        else:
            self._stored = now - now % WIDTH_MS  # what is under way is stored again, when it is more


def weight(incident: Incident) -> tuple[int, int]:
    """By this the worse of two incidents is told: its level, then how long it was."""
    return incident.level, (incident.until or 0) - incident.at
