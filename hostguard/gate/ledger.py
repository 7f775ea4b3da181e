"""Stores the ends of rows, and keeps what the backlog does not: holds, attempts and expiry.

Every way to end a row or give it back is here, with its event and its write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from hostguard.core import outcome as outcome_
from hostguard.core.clock import Clock, Now
from hostguard.core.model import Delivery, Hold, Kind, Row, State, Waited
from hostguard.core.ports import Configured
from hostguard.core.reasons import Reason
from hostguard.core.signals import RowsStored, Signal
from hostguard.gate.notices import dead_letter, script_message
from hostguard.gate.run_clients import RunClients
from hostguard.gate.times import Expiries, LeftBehind, began, paused
from hostguard.store import deliveries
from hostguard.store.connection import Connection
from hostguard.store.deliveries import New
from hostguard.store.requests import Waiters
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
    _clock: Clock
    loaded: int = field(default=0, init=False)  # rows up to this id were queued before the guard was started
    left: LeftBehind | None = field(default=None, init=False)  # the host as the earlier guard left it
    floor: int = field(default=0, init=False)  # ids up to this belong to turns of a lost database
    written: Counter[str] = field(default_factory=Counter, init=False)  # bytes by mind, since the start
    _holds: dict[int, Hold] = field(default_factory=dict, init=False)  # the first of each row that waits
    _attempts: dict[int, int] = field(default_factory=dict, init=False)  # of queued rows that failed before
    _expiries: Expiries = field(default_factory=Expiries, init=False)

    def remember(self, row: Delivery) -> None:
        """Note a queued row's attempts and expiry."""
        if row.attempts:
            self._attempts[row.id] = row.attempts
        self._expiries.note(row, self._clock.now())

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

    def hold_begins(self, row: Row, hold: Hold) -> None:
        """Report that the row waits, once, even if the reason changes."""
        if row.id in self._holds:
            return
        self._holds[row.id] = hold
        self._run_clients.tell(row.id, {"event": "held", "reason": hold.reason, "blocker": hold.blocker})
        text = f"holding {row.id}: {hold.reason} ({hold.blocker})"
        self._report(Event.HELD, row, text, reason=str(hold.reason), blocker=hold.blocker)

    def begin(self, row: Delivery, turn: Turn, since: int) -> Waited:
        """The row goes into a turn, its own or another's. Returns how long it waited, from `since` on."""
        turn_id, now = turn.live.id, self._clock.now()
        assert turn_id is not None
        ms = now.since(since)
        hold = self._holds.pop(row.id, None)
        if hold is None and row.id <= self.loaded and self.left is not None:
            hold = self.left.hold(row.row)
            if hold is None and ms:
                hold = Hold(Reason.RESTART, "the guard was restarted since")
        waited = Waited(ms, None, None, since)
        if hold is not None:
            waited = Waited(ms, hold.blocker, hold.reason, since)
            why, text = str(hold.reason), f"{row.id} waited {ms} ms ({hold.reason})"
            self._report(Event.HOLD_ENDED, row, text, reason=why, blocker=hold.blocker, waited_ms=ms)
        so_far = {**row.result, **outcome_.waited_for(waited), "held_behind": waited.behind}
        self.write(lambda db: deliveries.mark_delivering(db, row.id, turn_id, now, so_far), durable=False)
        return waited

    def confirm(self, row: Delivery, turn: Turn) -> None:
        """A resident mind accepted the row."""
        turn_id, now = turn.live.id or "", self._clock.date()
        self.write(lambda db: deliveries.mark_posted(db, row.id, turn_id, now), durable=False)

    def folded(self, row: Delivery, turn: Turn, waited: Waited) -> None:
        """A resident mind accepted the row into a turn that another row began."""
        self.confirm(row, turn)
        text = f"{row.id} went into turn {turn.live.id}"
        self._report(Event.FOLDED, row, text, turn=turn.live.id, waited_ms=waited.ms)

    # -- ends

    def settle(self, row: Delivery, turn: Turn, ending: outcome_.Ending, waited: Waited) -> Row | None:
        """Store how the row's turn ended. Returns the row to queue again, if it failed or never ran.

        If the row is final, a message that its end creates is stored in the same transaction.
        """
        now, turn_id = self._clock.now(), turn.live.id
        assert turn_id is not None
        result = outcome_.result(ending, turn.record, turn.ran_ms(now), waited, turn.used)
        if row is turn.delivery:  # the bytes of the turn are counted once
            self.written[row.mind] += result["write_bytes"] or 0
        attempts = row.attempts + ending.failed
        if row.kind is Kind.RUN:
            again = ending.back and self._run_clients.waits(row.id)
        else:
            hopeless = ending.hopeless or attempts >= outcome_.ATTEMPTS_MAX
            again = ending.back or (ending.failed and not hopeless)
        if again:
            pause = outcome_.backoff(attempts) if ending.failed else ending.pause_ms
            back = replace(row.row, due=0, since=waited.since or began(row, now))
            after = paused(back, pause, now) if pause else back
            # Of one that did not fail no pause is stored: at a start it would look like a time asked for.
            stored_as = after if ending.failed else back
            write = self.write(
                lambda db: deliveries.give_back(db, row.id, turn_id, attempts, stored_as, result)
            )
            self._attempts[row.id] = attempts
            self._expiries.note(row, now)
            if ending.failed:
                wait = f"attempt {attempts + 1} in {pause // 1000} s"
                text = f"turn {turn_id} failed: {ending.reason}; {wait}"
                self._report(Event.FAILED, row, text, turn=turn_id, **_how(ending))
        else:
            state = State.CANCELLED if ending.back else State.DONE
            if ending.failed:  # the caller of a run knows, and runs it again or not
                state = State.CANCELLED if row.kind is Kind.RUN else State.DEAD
            follow_up = self._follow_up(row, turn, ending, now)
            ended_at = now.date_of(turn.ended) if turn.ended else now.date

            def finish(db: Connection) -> list[Delivery]:
                ended = deliveries.finish(db, row.id, turn_id, state, attempts, ended_at, result)
                if not ended or follow_up is None:
                    return []
                created = deliveries.enqueue(db, replace(follow_up, accepted=now.stamp))[1]
                if created and row.kind is Kind.SCRIPT:
                    deliveries.note_output(db, row.id, created[0].id)
                return created

            write = self.write(finish)
            if follow_up is not None:
                once_stored(write, lambda rows: self._rows_stored.send(RowsStored(rows)))
            self._attempts.pop(row.id, None)
            self._expiries.forget(row.id)
            text, run_ms = f"turn {turn_id} ended: {ending.reason}", result["run_ms"]
            self._report(Event.ENDED, row, text, turn=turn_id, run_ms=run_ms, **_how(ending))
            if state is State.DEAD:
                text = f"turn {turn_id} was the last of {attempts} attempts: hostguard retry {row.id}"
                if ending.hopeless:
                    text = f"{row.id} is refused: {ending.reason}"
                self._report(Event.DEAD, row, text, turn=turn_id, reason=ending.reason)

        def stored(_: object) -> None:
            # A row given back keeps its empty record: its next turn has the same id, and may be starting.
            if row is turn.delivery and not (again and ending.back):
                exit_record.forget(turn_id)
            if not again:
                self.waiters.tell(row.id)

        once_stored(write, stored)
        return after if again else None

    def _follow_up(self, row: Delivery, turn: Turn, ending: outcome_.Ending, now: Now) -> New | None:
        """The message that a row's end creates: a script's output, or the notice of a dead letter."""
        if row.kind is Kind.SCRIPT and not ending.failed and not ending.back:
            return script_message(row, turn.record.output if turn.record else "", ending, now.date)
        return dead_letter(row, ending, self._policy.config, now.date) if ending.failed else None

    def _report(self, event: Event, row: Row | Delivery, text: str, **more: Any) -> None:
        text, session = f"{row.mind}: {text}", row.session
        self._events.emit(event, text, mind=row.mind, session=session, delivery=row.id, **more)

    def close(self, row: Row, state: State, text: str) -> None:
        """End a row that was removed from the backlog: cancelled or expired, though the card is full.

        Its caller, without whom it cannot run, is told at once; all others once it is stored.
        """
        self._tell_caller(row.id, state, text)
        write = self.write(lambda db: deliveries.close(db, [row.id], state, self._clock.date(), text))
        once_stored(write, lambda _: self.closed(row, state, text))

    def closed(self, row: Row, state: State, text: str) -> None:
        """It is stored that the row is cancelled or expired: report it."""
        turn_id = outcome_.turn_id(row.id, self._attempts.pop(row.id, 0))
        self._holds.pop(row.id, None)
        self._expiries.forget(row.id)
        event = Event.EXPIRED if state is State.EXPIRED else Event.CANCELLED
        self._report(event, row, f"{row.id} {state}: {text}")
        self._tell_caller(row.id, state, text)
        exit_record.forget(turn_id)  # of a turn that never ran
        self.waiters.tell(row.id)

    def lost(self, ids: Collection[int]) -> None:
        """Rows were damaged, and are not stored any more: whoever waits for them is told."""
        for id_ in ids:
            self._holds.pop(id_, None)
            self._attempts.pop(id_, None)
            self._expiries.forget(id_)
            self._tell_caller(id_, State.CANCELLED, "its row in the queue was damaged")
        self.waiters.tell(*ids)

    def _tell_caller(self, id_: int, state: State, text: str) -> None:
        caller = self._run_clients.take(id_)
        if caller is not None:
            caller.tell({"event": str(state), "detail": text})

    # -- expiry

    def expired(self, now: Now, spared: Collection[int], remove: Callable[[Row], bool]) -> bool:
        """Close the rows that expired, if `remove` could remove them from the backlog. True if any was."""
        closed = [row for row in self._expiries.expired(now, spared) if remove(row)]
        for row in closed:
            self.close(row, State.EXPIRED, "it did not start in time")
        return bool(closed)

    def expires_in(self, now: Now) -> int | None:
        """Ms until the next row expires; None if none does."""
        return self._expiries.next_in(now)


def _how(ending: outcome_.Ending) -> dict[str, Any]:
    """How a turn ended, for its event."""
    return {"outcome": ending.outcome, "reason": ending.reason, "exit": ending.exit}
