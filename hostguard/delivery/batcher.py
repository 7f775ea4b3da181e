"""Gathers messages for sessions of minds, and sends them on together, as batch_rule decides.

The rows are stored before they come here; what is in memory is built again from them at a start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hostguard.core.clock import Clock
from hostguard.core.model import Delivery, Kind
from hostguard.core.payload import ITEM_BYTES, items, told
from hostguard.core.ports import Configured, Dispatching
from hostguard.core.signals import SessionChanged
from hostguard.core.tasks import Tasks
from hostguard.delivery import batch_rows
from hostguard.delivery.batch_rule import Flush, Heard, Item, Session, decide, interrupts, triggered
from hostguard.delivery.routes import DEBOUNCE_S, MAX_WAIT_S, Batch
from hostguard.delivery.wake_rules import text_of
from hostguard.gate.ledger import Ledger
from hostguard.gate.times import began
from hostguard.store.connection import Connection
from hostguard.store.requests import Waiters
from hostguard.store.writer import Faulty, Queue
from hostguard.turns.live import Live

log = logging.getLogger(__name__)

Key = tuple[str, str]  # mind, session


@dataclass(eq=False)
class _Buffer:
    """The batch of one session. `due`: when it goes out if nothing happens before; None: nothing waits."""

    messages: dict[int, Item] = field(default_factory=dict)  # by id, in order
    leaving: frozenset[int] = frozenset()  # ids being stored as a batch: the others wait, to keep the order
    session: Session = field(default_factory=Session)
    heard: Heard | None = None
    interrupted: float | None = None
    due: float | None = None


@dataclass(eq=False)
class Batcher:
    """The batches of all sessions, on one timer. Times are seconds of the monotonic clock."""

    _policy: Configured
    _live: Live
    _queue: Queue
    _ledger: Ledger
    _waiters: Waiters
    _dispatcher: Dispatching
    _tasks: Tasks
    _clock: Clock
    _buffers: dict[Key, _Buffer] = field(default_factory=dict, init=False)
    _counts: Counter[str] = field(default_factory=Counter, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _wakes: float | None = field(default=None, init=False)  # when the timer does

    async def start(self) -> None:
        """Gather again the rows of an earlier guard's batches. Raises Unavailable."""
        for turn in self._live:
            if turn.live.session is not None:
                self.session_changed(SessionChanged(turn.live.mind, turn.live.session, True))
        now, clocks = time.monotonic(), self._clock.now()

        def restore(db: Connection) -> list[tuple[Delivery, Item]]:
            found = batch_rows.waiting(db)
            ages = ((row, raw, clocks.since(began(row, clocks)) / 1000) for row, raw in found)
            return [(row, _item(row, raw, now - age)) for row, raw, age in ages]

        keys = dict.fromkeys(self._put(*one) for one in await self._queue.read(restore))
        for key in keys:
            self._look(key)

    def close(self) -> None:
        """Send no more batches: the next guard does."""
        if self._timer is not None:
            self._timer.cancel()
        self._buffers.clear()

    def count(self, mind: str) -> int:
        """How many rows of the mind wait in batches."""
        return self._counts[mind]

    def add(self, row: Delivery, raw: bytes) -> None:
        """Gather a row that was just stored with this payload."""
        item = _item(row, raw, time.monotonic())
        buffer = self._buffers.get((row.mind, row.session))
        taking = self._live.taking(row.mind, row.session) is not None
        if buffer is not None and taking and interrupts(item, buffer.heard, buffer.interrupted):
            item = replace(item, urgent=True, interrupt=True)
        self._look(self._put(row, item))

    def session_changed(self, changed: SessionChanged) -> None:
        """A turn of the session began or took a message (busy), or ended."""
        key = (changed.mind, changed.session)
        buffer = self._buffers.setdefault(key, _Buffer())
        if changed.busy:
            buffer.session = Session(busy=True)
            buffer.heard = self._last_heard(*key)
        else:
            buffer.session = Session(idle_since=time.monotonic())
            buffer.heard = buffer.interrupted = None
        self._look(key)

    def cancel(self, row: Delivery) -> None:
        """Forget a gathered row that was cancelled; one that leaves is left out of its batch."""
        key = (row.mind, row.session)
        buffer = self._buffers.get(key)
        if buffer is not None and buffer.messages.pop(row.id, None) is not None:
            self._counts[row.mind] -= 1
            self._look(key)

    # -- in and out

    def _put(self, row: Delivery, item: Item) -> Key:
        key = (row.mind, row.session)
        self._buffers.setdefault(key, _Buffer()).messages[row.id] = item
        self._counts[row.mind] += 1
        return key

    def _look(self, key: Key) -> None:
        """Send what is due, and set the timer for the rest."""
        buffer, bytes_max = self._buffers[key], self._policy.config.payload_max
        if buffer.leaving:
            return
        buffer.messages = dict(sorted(buffer.messages.items()))
        now = time.monotonic()
        items = [*buffer.messages.values()]
        decision = decide(items, buffer.session, now, bytes_max)
        if isinstance(decision, Flush):
            out = [buffer.messages.pop(item.id) for item in items[: decision.count]]
            if buffer.session.busy:
                senders = frozenset(item.sender for item in out if item.sender is not None)
                buffer.heard = Heard(senders, frozenset(item.channel for item in out), now)
                buffer.interrupted = now if decision.interrupt else buffer.interrupted
            buffer.leaving, buffer.due = frozenset(item.id for item in out), None
            self._tasks.start(self._flush(key, buffer, decision.interrupt))
            return
        buffer.due = decision.until
        if not buffer.messages and not buffer.session.busy:
            del self._buffers[key]
        elif buffer.due is not None:
            self._wake_at(buffer.due)

    async def _flush(self, key: Key, buffer: _Buffer, interrupt: bool) -> None:
        ids, floor = sorted(buffer.leaving), self._ledger.floor

        def flush(db: Connection) -> Delivery | None:
            return batch_rows.flush(db, ids, interrupt, self._clock.now(), floor)

        row: Delivery | None = None
        with suppress(Faulty):  # a bug: the rows wait for the next guard, and what came later goes on
            row = await self._ledger.write(flush)
        self._counts[key[0]] -= len(ids)
        for id_ in ids:
            self._waiters.tell(id_)
        if row is not None:
            self._dispatcher.admit([row])
        buffer.leaving = frozenset()
        if self._buffers.get(key) is buffer:
            self._look(key)

    def _last_heard(self, mind: str, session: str) -> Heard | None:
        """The last message that the session's turn got; None if it takes no messages, or got none yet."""
        turn = self._live.taking(mind, session)
        if turn is None or turn.delivery is None:
            return None
        folded = turn.folded
        row = folded[-1][0] if folded else turn.delivery
        if row.kind is Kind.BATCH:
            senders, channels = row.result.get("senders", ()), row.result.get("channels", ())
        else:
            senders = [row.sender] if row.sender is not None else ()
            channels = [told({"channel": row.channel, "sender": row.sender})["channel"]]
        return Heard(frozenset(senders), frozenset(channels), time.monotonic())

    # -- the timer

    def _wake_at(self, due: float) -> None:
        if self._wakes is None or due < self._wakes:
            if self._timer is not None:
                self._timer.cancel()
            self._wakes = due
            delay = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = self._wakes = None
        now = time.monotonic()
        for key, buffer in [*self._buffers.items()]:
            if buffer.due is not None and buffer.due <= now:
                self._look(key)
        later = [buffer.due for buffer in self._buffers.values() if buffer.due is not None]
        if later:
            self._wake_at(min(later))


def _item(row: Delivery, raw: bytes, at: float) -> Item:
    payload, given = told(json.loads(raw)), row.result.get("batch", {})
    batch = Batch(
        given.get("debounce_s", DEBOUNCE_S),
        given.get("max_wait_s", MAX_WAIT_S),
        tuple(given.get("triggers", ())),
    )
    urgent = triggered(batch, text_of(payload.get("content")))
    size = max(len(raw), items(raw) * ITEM_BYTES)
    return Item(row.id, at, batch, size, urgent, sender=row.sender, channel=payload["channel"])
