"""Stores the ends of rows, and keeps what the backlog does not: holds, attempts and expiry.

Every way to end a row or give it back is here, with its event and its write.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from hostguard.core import outcome as outcome_
from hostguard.core.clock import now_ms
from hostguard.core.model import Delivery, Hold, Kind, Row, State, Waited
from hostguard.core.ports import Configured
from hostguard.core.reasons import Reason
from hostguard.core.signals import RowsStored, Signal
from hostguard.gate.notices import dead_letter, script_message
from hostguard.gate.run_clients import RunClients
from hostguard.store import deliveries
from hostguard.store.connection import Connection
from hostguard.store.deliveries import New
from hostguard.store.waiters import Waiters
from hostguard.store.writer import Queue, once_stored
from hostguard.telemetry.events import Event, Events
from hostguard.turns import exit_record
from hostguard.turns.live import Turn


@dataclass(eq=False)
class Ledger:
    """Mirrors the database. Signal: `rows_stored` for each message that the end of a row created."""

    _queue: Queue
    _events: Events
    _run_clients: RunClients
    waiters: Waiters
    _policy: Configured
    _rows_stored: Signal[RowsStored]
    loaded: int = field(default=0, init=False)  # rows up to this id were queued before the guard was started
    floor: int = field(default=0, init=False)  # ids up to this belong to turns of a lost database
    written: Counter[str] = field(default_factory=Counter, init=False)  # bytes by mind, since the start
    # The first hold of each row that waits, None if it was given back and not held since; and since when, ms.
    _holds: dict[int, tuple[Hold | None, int]] = field(default_factory=dict, init=False)
    _attempts: dict[int, int] = field(default_factory=dict, init=False)  # of queued rows that failed before
    _expiries: list[tuple[int, int]] = field(default_factory=list, init=False)  # (when, row); may be stale
    _expires: dict[int, tuple[int, Row]] = field(default_factory=dict, init=False)  # when, by row

    def remember(self, row: Delivery) -> None:
        """Note a queued row's attempts and expiry."""
        if row.attempts:
            self._attempts[row.id] = row.attempts
        if row.expires_at:
            self._note_expiry(row)

    def attempts(self, id_: int) -> int:
        """Failed attempts of a queued row."""
        return self._attempts.get(id_, 0)

    async def fetch(self, id_: int) -> tuple[Delivery, bytes] | None:
        """A row of the backlog with its payload; None if it has ended meanwhile. Raises Unavailable.

        It may still be stored as delivering, if it was given back a moment ago.
        """
        found = await self._queue.read(lambda db: deliveries.with_payload(db, id_))
        if found is None or found[0].state.final:
            return None
        return replace(found[0], attempts=self.attempts(id_)), found[1]

    def write(self, op: deliveries.Op, *, durable: bool = True) -> asyncio.Future[Any]:
        """Write, and retry until it succeeds. Its future raises Faulty alone."""
        return self._queue.submit(op, durable=durable, keep=True).future

    # -- holds

    def hold_begins(self, row: Row, hold: Hold, now: int) -> None:
        """Report that the row waits, once, even if the reason changes."""
        known, since = self._holds.get(row.id, (None, now))
        if known is not None:
            return
        self._holds[row.id] = (hold, since)
        self._run_clients.tell(row.id, {"event": "held", "reason": hold.reason, "blocker": hold.blocker})
        text = f"holding {row.id}: {hold.reason} ({hold.blocker})"
        self._report(Event.HELD, row, text, reason=str(hold.reason), blocker=hold.blocker)

    def begin(self, row: Delivery, turn: Turn, now: int) -> Waited:
        """The row goes into a turn, its own or another's. Returns how long it waited since it was due."""
        turn_id = turn.live.id
        assert turn_id is not None
        waited = max(0, now - max(row.created_at, row.not_before))
        hold, _since = self._holds.pop(row.id, (None, 0))
        if hold is None and waited and row.id <= self.loaded:
            hold = Hold(Reason.RESTART, "the guard was restarted since")
        if hold is not None:
            why, text = str(hold.reason), f"{row.id} waited {waited} ms ({hold.reason})"
            self._report(Event.HOLD_ENDED, row, text, reason=why, blocker=hold.blocker, waited_ms=waited)
        self.write(lambda db: deliveries.mark_delivering(db, row.id, turn_id, now), durable=False)
        return Waited(waited, None) if hold is None else Waited(waited, hold.blocker, hold.reason)

    def confirm(self, row: Delivery, turn: Turn) -> None:
        """A resident mind accepted the row."""
        turn_id, now = turn.live.id or "", now_ms()
        self.write(lambda db: deliveries.mark_posted(db, row.id, turn_id, now), durable=False)

    def folded(self, row: Delivery, turn: Turn, waited: Waited) -> None:
        """A resident mind accepted the row into a turn that another row began."""
        self.confirm(row, turn)
        text = f"{row.id} went into turn {turn.live.id}"
        self._report(Event.FOLDED, row, text, turn=turn.live.id, waited_ms=waited.ms)

    def held_since(self, id_: int | None) -> int | None:
        """When the row's hold began, in ms; None if unknown."""
        return self._holds[id_][1] if id_ in self._holds else None

    # -- ends

    def settle(self, row: Delivery, turn: Turn, ending: outcome_.Ending, waited: Waited) -> Row | None:
        """Store how the row's turn ended. Returns the row to queue again, if it failed or never ran.

        If the row is final, a message that its end creates is stored in the same transaction.
        """
        now, turn_id = now_ms(), turn.live.id
        assert turn_id is not None
        result = outcome_.result(ending, turn.record, max(0, now - turn.since), waited, turn.used)
        if row is turn.delivery:  # the bytes of the turn are counted once
            self.written[row.mind] += result["write_bytes"] or 0
        attempts = row.attempts + ending.failed
        if row.kind is Kind.RUN:
            again = ending.back and self._run_clients.waits(row.id)
        else:
            again = ending.back or (ending.failed and attempts < outcome_.ATTEMPTS_MAX)
        if again:
            pause = outcome_.backoff(attempts) if ending.failed else ending.pause_ms
            not_before = now + pause if pause else row.not_before
            # Of one that did not fail no pause is stored: at a start it would look like a time asked for.
            stored_time = not_before if ending.failed else row.not_before
            write = self.write(
                lambda db: deliveries.give_back(db, row.id, turn_id, attempts, stored_time, result)
            )
            self._attempts[row.id] = attempts
            self._holds[row.id] = (None, now)
            if row.expires_at:
                self._note_expiry(row)
            if ending.failed:
                wait = f"attempt {attempts + 1} in {(not_before - now) // 1000} s"
                text = f"turn {turn_id} failed: {ending.reason}; {wait}"
                self._report(Event.FAILED, row, text, turn=turn_id, **_how(ending))
        else:
            state = State.CANCELLED if ending.back else State.DONE
            if ending.failed:  # the caller of a run knows, and runs it again or not
                state = State.CANCELLED if row.kind is Kind.RUN else State.DEAD
            follow_up = self._follow_up(row, turn, ending)

            def finish(db: Connection) -> list[Delivery]:
                ended = deliveries.finish(db, row.id, turn_id, state, attempts, now, result)
                created = deliveries.enqueue(db, follow_up)[1] if ended and follow_up is not None else []
                if created and row.kind is Kind.SCRIPT:
                    deliveries.note_output(db, row.id, created[0].id)
                return created

            write = self.write(finish)
            if follow_up is not None:
                once_stored(write, lambda rows: self._rows_stored.send(RowsStored(rows)))
            self._attempts.pop(row.id, None)
            self._expires.pop(row.id, None)
            text, run_ms = f"turn {turn_id} ended: {ending.reason}", result["run_ms"]
            self._report(Event.ENDED, row, text, turn=turn_id, run_ms=run_ms, **_how(ending))
            if state is State.DEAD:
                text = f"turn {turn_id} was the last of {attempts} attempts: hostguard retry {row.id}"
                self._report(Event.DEAD, row, text, turn=turn_id, reason=ending.reason)

        def stored(_: object) -> None:
            # A row given back keeps its empty record: its next turn has the same id, and may be starting.
            if row is turn.delivery and not (again and ending.back):
                exit_record.forget(turn_id)
            if not again:
                self.waiters.tell(row.id)

        once_stored(write, stored)
        return replace(row.row, not_before=not_before) if again else None

    def _follow_up(self, row: Delivery, turn: Turn, ending: outcome_.Ending) -> New | None:
        """The message that a row's end creates: a script's output, or the notice of a dead letter."""
        if row.kind is Kind.SCRIPT and not ending.failed and not ending.back:
            return script_message(row, turn.record.output if turn.record else "", ending, now_ms())
        return dead_letter(row, ending, self._policy.config, now_ms()) if ending.failed else None

    def _report(self, event: Event, row: Row | Delivery, text: str, **more: Any) -> None:
        text, session = f"{row.mind}: {text}", row.session
        self._events.emit(event, text, mind=row.mind, session=session, delivery=row.id, **more)

    def close(self, row: Row, state: State, text: str) -> None:
        """End a row that was removed from the backlog: cancelled or expired, though the card is full.

        Its caller, without whom it cannot run, is told at once; all others once it is stored.
        """
        self._tell_caller(row.id, state, text)
        write = self.write(lambda db: deliveries.close(db, [row.id], state, now_ms(), text))
        once_stored(write, lambda _: self.closed(row, state, text))

    def closed(self, row: Row, state: State, text: str) -> None:
        """It is stored that the row is cancelled or expired: report it."""
        turn_id = outcome_.turn_id(row.id, self._attempts.pop(row.id, 0))
        self._holds.pop(row.id, None)
        self._expires.pop(row.id, None)
        event = Event.EXPIRED if state is State.EXPIRED else Event.CANCELLED
        self._report(event, row, f"{row.id} {state}: {text}")
        self._tell_caller(row.id, state, text)
        exit_record.forget(turn_id)  # of a turn that never ran
        self.waiters.tell(row.id)

    def _tell_caller(self, id_: int, state: State, text: str) -> None:
        caller = self._run_clients.take(id_)
        if caller is not None:
            caller.tell({"event": str(state), "detail": text})

    @property
    def tried(self) -> Collection[int]:
        """Rows that failed before and will be retried."""
        return self._attempts.keys()

    # -- expiry

    def _note_expiry(self, row: Delivery) -> None:
        self._expires[row.id] = (row.expires_at, row.row)
        heapq.heappush(self._expiries, (row.expires_at, row.id))

    def expired(self, now: int, spared: Collection[int], remove: Callable[[Row], bool]) -> bool:
        """Close the rows that expired, if `remove` could remove them from the backlog. True if any was."""
        later, closed = [], False
        while self._expiries and self._expiries[0][0] <= now:
            entry = heapq.heappop(self._expiries)
            when, row = self._expires.get(entry[1], (0, None))
            if row is None or when != entry[0]:
                continue  # it has ended since, and may have been retried
            if row.id in spared:
                later.append(entry)
            elif remove(row):
                self.close(row, State.EXPIRED, "it did not start in time")
                closed = True
        for entry in later:
            heapq.heappush(self._expiries, entry)
        return closed

    def next_expiry(self) -> int | None:
        """When the next row expires, in ms."""
        return self._expiries[0][0] if self._expiries else None


def _how(ending: outcome_.Ending) -> dict[str, Any]:
    """How a turn ended, for its event."""
    return {"outcome": ending.outcome, "reason": ending.reason, "exit": ending.exit}
