"""The delivery manager: accepted -> gate -> start -> end -> next. Everything that starts a turn is here.

One event loop runs it all. `pump` is the only caller of the gate and the only way to a turn; it runs
whenever something changed that could let a row start.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from hostguard import deliveries, turns
from hostguard.backlog import Backlog
from hostguard.callers import Callers
from hostguard.events import Event, Events
from hostguard.gate import decide
from hostguard.live import Phase, Turn
from hostguard.model import (
    Config,
    Delivery,
    Hold,
    HostView,
    Kind,
    LiveTurn,
    MindView,
    Reason,
    Row,
    Start,
    State,
)
from hostguard.policy import Policy
from hostguard.problems import Problem
from hostguard.queue import Queue, Unavailable
from hostguard.runner import Runner
from hostguard.units import turn_unit
from hostguard.waiters import Waiters

log = logging.getLogger(__name__)

TRIM_EVERY = 100  # ended rows between two looks at the history
READ_AGAIN_MS = 1_000  # a row that could not be read is tried again after this
# The wall clock may jump (a Pi has no clock of its own): a timer for a wall time looks again this often.
CLOCK_CHECK_S = 30.0


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


def _describe(row: Delivery, payload: bytes) -> str:
    """What `systemctl status` shows of the turn's scope."""
    if row.kind is Kind.RUN:
        given = json.loads(payload)
        return f"{row.mind}: {given['description'] or given['argv0'] or 'hostguard run'}"
    sender = f" from {row.sender}" if row.sender else ""
    channel = f" in {row.channel}" if row.channel else ""
    return f"{row.mind}: message {row.id}{sender}{channel}, session {row.session}"


class Manager:
    """Owns the backlog and the live turns; all state here mirrors the database and systemd."""

    def __init__(self, queue: Queue, events: Events, on_change: Callable[[], None]) -> None:
        self.queue = queue
        self.events = events
        self.backlog = Backlog()
        self.policy = Policy(Config(), {}, "")
        self.runner = Runner(self._systemd_up, self._over)
        self.callers = Callers()
        self.holds: dict[int, tuple[Hold, int]] = {}  # row -> (hold as it began, since ms)
        self.loaded = 0  # rows up to this id were queued before the guard was started
        self.ready = False
        self.closing = False
        self._on_change = on_change
        self._fresh: list[Row] = []  # queued since the last pump: are they held?
        self._attempts: dict[int, int] = {}  # of queued rows that failed before
        self._expiries: list[tuple[int, int, str, str]] = []
        self.waiters = Waiters()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = 0

    # -- the gate

    def admit(self, rows: list[Delivery]) -> None:
        """Take stored rows into the backlog and offer them to the gate."""
        now = now_ms()
        for row in rows:
            self.backlog.add(row.row, now)
            if row.expires_at:
                heapq.heappush(self._expiries, (row.expires_at, row.id, row.mind, row.session))
            self._fresh.append(row.row)
            self.events.emit(
                Event.ACCEPTED, f"accepted {row.id} for {row.mind}", mind=row.mind, session=row.session,
                delivery=row.id, channel=row.channel,
            )  # fmt: skip
        self.pump()

    def view(self, mind: str) -> MindView:
        """What the gate sees of a mind."""
        known = mind in self.policy.config.minds
        cap = self.policy.mind_cap(mind) if known else 0
        return MindView(mind, cap, self.policy.paused(mind), live=self.runner.live.of(mind))

    def host(self) -> HostView:
        """What the gate sees of the host."""
        live = self.runner.live
        return HostView(
            len(live),
            live.oldest,
            self.policy.global_cap(),
            None,
            self.policy.paused(),
            self.runner.connected,
        )

    def verdict(self, row: Row) -> Hold | None:
        """Why the row does not start now; None if it may."""
        if row.mind not in self.policy.config.minds:
            return Hold(Reason.UNKNOWN_MIND, f"the configuration has no mind {row.mind}")
        if row.kind is Kind.RUN and not self.callers.waits(row.id):
            return Hold(Reason.CALLER_AWAY, "its `hostguard run` is not connected")
        verdict = decide(self.host(), self.view(row.mind), row, now_ms())
        return verdict if isinstance(verdict, Hold) else None

    def _is_open(self, mind: str) -> bool:
        return (
            mind in self.policy.config.minds
            and not self.policy.paused(mind)
            and len(self.runner.live.of(mind)) < self.policy.mind_cap(mind)
        )

    def _has_room(self) -> bool:
        cap = self.policy.global_cap()
        return (
            self.ready
            and not self.closing
            and self.runner.connected
            and not self.policy.paused()
            and (cap is None or len(self.runner.live) < cap)
        )

    def pump(self) -> None:
        """Start every row that may start, in order of id; say of each new row why it waits."""
        now = now_ms()
        self._fresh += self.backlog.due(now)
        # A `hostguard run --max-wait 0` is offered once, however long its commit took.
        self._expire(now, {row.id for row in self._fresh if row.kind is Kind.RUN})
        for id_ in self.callers.lost(now):
            self._drop_run(id_)
        while self._has_room():
            row = self.backlog.next(self._is_open, self.runner.live.sessions)
            if row is None:
                break
            if row.kind is Kind.RUN and not self.callers.waits(row.id):
                self.backlog.remove(row.id, row.mind, row.session)
                self.callers.park(row, now)
                continue
            if not isinstance(decide(self.host(), self.view(row.mind), row, now), Start):
                log.error("the backlog offered %s, which the gate holds", row)
                break
            self._begin(row, now)
        self._expire(now)
        fresh, self._fresh = self._fresh, []
        for row in fresh:
            self._note_hold(row, now)
        self._set_timer(now)
        self._on_change()

    def _note_hold(self, row: Row, now: int) -> None:
        if row.id in self.holds or not self.backlog.has(row.id, row.mind, row.session):
            return
        hold = self.verdict(row)
        if hold is None or hold.reason is Reason.NOT_DUE:
            return
        self.holds[row.id] = (hold, now)
        self.callers.tell(row.id, {"event": "held", "reason": hold.reason, "blocker": hold.blocker})
        self.events.emit(
            Event.HELD, f"{row.mind}: holding {row.id}: {hold.reason} ({hold.blocker})", mind=row.mind,
            session=row.session, delivery=row.id, reason=str(hold.reason), blocker=hold.blocker,
        )  # fmt: skip

    # -- one turn

    def _begin(self, row: Row, now: int) -> None:
        self.backlog.remove(row.id, row.mind, row.session)
        turn_id = turns.turn_id(row.id, self._attempts.get(row.id, 0))
        unit = turn_unit(row.mind, turn_id)
        turn = Turn(LiveTurn(unit, row.mind, row.session, turn_id), now, Phase.STARTING)
        self.runner.live.add(turn)
        self.keep(asyncio.create_task(self._start(turn, row)))

    async def _start(self, turn: Turn, row: Row) -> None:
        try:
            found = await self.queue.read(lambda db: deliveries.with_payload(db, row.id))
        except Unavailable as error:
            log.warning("cannot read row %d: %s", row.id, error)
            self.requeue(Row(row.id, row.mind, row.session, now_ms() + READ_AGAIN_MS, row.kind))
            self.runner.give_up(turn, "the queue cannot be read")
            return
        mind = self.policy.config.minds.get(row.mind)
        # DELIVERING: it was given back a moment ago, and that is not stored yet.
        if found is None or found[0].state.final or mind is None:
            log.warning("row %d is not queued any more; its turn is not started", row.id)
            self.runner.give_up(turn, "the row is gone")
            return
        delivery, payload = replace(found[0], attempts=self._attempts.get(row.id, 0)), found[1]
        turn.delivery = delivery
        turn.held_ms = self._end_hold(delivery, turn.since)
        turn.max_turn = mind.limits.max_turn
        turn.description = _describe(delivery, payload)
        assert turn.live.id is not None
        turn_id, since = turn.live.id, turn.since
        self.write(lambda db: deliveries.mark_delivering(db, row.id, turn_id, since), durable=False)
        if row.kind is Kind.RUN:
            caller = None if turn.revoked else self.callers.take(row.id)
            if caller is None or not caller.alive():
                self.runner.give_up(turn, "it was paused, or its caller is gone")
                return
            if not await self.runner.start_run(turn, mind.limits, caller.pid):
                caller.tell({"event": "failed", "detail": "systemd did not start its scope"})
                return
            caller.tell({"event": "start", "turn": turn_id, "unit": turn.live.unit})
        elif not await self.runner.start_exec(turn, mind, delivery, payload):
            return
        self.events.emit(
            Event.STARTED, f"{mind.name}: turn {turn_id} started after {turn.held_ms} ms", mind=mind.name,
            session=delivery.session, delivery=row.id, turn=turn_id, unit=turn.live.unit,
            waited_ms=turn.held_ms,
        )  # fmt: skip

    def _end_hold(self, delivery: Delivery, now: int) -> int:
        waited = max(0, now - max(delivery.created_at, delivery.not_before))
        hold, _since = self.holds.pop(delivery.id, (None, 0))
        if hold is None and waited and delivery.id <= self.loaded:
            hold = Hold(Reason.RESTART, "the guard was restarted since")
        if hold is not None:
            self.events.emit(
                Event.HOLD_ENDED, f"{delivery.mind}: {delivery.id} waited {waited} ms ({hold.reason})",
                mind=delivery.mind, session=delivery.session, delivery=delivery.id, reason=str(hold.reason),
                blocker=hold.blocker, waited_ms=waited,
            )  # fmt: skip
        return waited

    def _over(self, turn: Turn, ending: turns.Ending) -> None:
        """A slot came free: account for its row, and hand the slot on at once."""
        self.backlog.touch(turn.live.mind, turn.live.session)
        if turn.delivery is not None:
            self.settle(turn.delivery, turn, ending)
        self.pump()

    def settle(self, row: Delivery, turn: Turn, ending: turns.Ending) -> None:
        """Write down how the row's turn ended, and queue the row again if it failed or never ran."""
        now, turn_id = now_ms(), turn.live.id
        assert turn_id is not None
        record = turns.read_record(turn_id) if row.kind is Kind.MESSAGE else None
        result = turns.result(ending, record, now - turn.since, turn.held_ms)
        attempts = row.attempts + ending.failed
        told: dict[str, Any] = {"mind": row.mind, "session": row.session, "delivery": row.id, "turn": turn_id}
        again = row.kind is Kind.MESSAGE and (
            ending.back or (ending.failed and attempts < turns.ATTEMPTS_MAX)
        )
        if again:
            not_before = now + turns.backoff(attempts) if ending.failed else row.not_before
            if ending.back:
                turns.forget(turn_id)  # now: its next turn has the same id
            write = self.write(
                lambda db: deliveries.give_back(db, row.id, turn_id, attempts, not_before, result)
            )
            self._attempts[row.id] = attempts
            self.requeue(Row(row.id, row.mind, row.session, not_before, row.kind))
            if ending.failed:
                wait = (not_before - now) // 1000
                text = (
                    f"{row.mind}: turn {turn_id} failed: {ending.reason}; attempt {attempts + 1} in {wait} s"
                )
                self.events.emit(Event.FAILED, text, reason=ending.reason, **told)
        else:
            state = State.DEAD if ending.failed else State.CANCELLED if ending.back else State.DONE
            write = self.write(
                lambda db: deliveries.finish(db, row.id, turn_id, state, attempts, now, result)
            )
            text = f"{row.mind}: turn {turn_id} ended: {ending.reason}"
            self.events.emit(Event.ENDED, text, outcome=ending.outcome, run_ms=now - turn.since, **told)
            self._attempts.pop(row.id, None)
            if state is State.DEAD and row.kind is Kind.MESSAGE:
                text = f"{row.mind}: {row.id} is dead after {attempts} attempts: hostguard retry {row.id}"
                self.events.emit(Event.DEAD, text, reason=ending.reason, **told)
            self._trim()

        def stored(_: object) -> None:
            if not ending.back:
                turns.forget(turn_id)
            if not again:
                self.waiters.tell(row.id)

        write.add_done_callback(stored)

    def requeue(self, row: Row) -> None:
        """Give a row back to the backlog; `pump` follows."""
        self.backlog.add(row, now_ms())
        self._fresh.append(row)

    def _trim(self) -> None:
        self._ended += 1
        if self._ended % TRIM_EVERY == 0:
            keep = self.policy.config.history_rows
            self.write(lambda db: deliveries.trim(db, keep), durable=False)

    # -- time, waiting, writing

    def _expire(self, now: int, spared: Collection[int] = ()) -> None:
        later = []
        while self._expiries and self._expiries[0][0] <= now:
            entry = heapq.heappop(self._expiries)
            _, id_, mind, session = entry
            if id_ in spared:
                later.append(entry)
            elif self.backlog.remove(id_, mind, session) or self.callers.unpark(id_):
                self.close_row(Row(id_, mind, session), State.EXPIRED, "its time to start ran out")
        for entry in later:
            heapq.heappush(self._expiries, entry)

    def _drop_run(self, id_: int) -> None:
        row = self.callers.unpark(id_)
        if row is not None:
            self.close_row(row, State.CANCELLED, "its `hostguard run` went away")

    def close_row(self, row: Row, state: State, text: str) -> asyncio.Future[Any]:
        """End a row that the caller has taken out of the backlog: cancelled or expired."""
        id_ = row.id
        self.holds.pop(id_, None)
        self._attempts.pop(id_, None)
        event = Event.EXPIRED if state is State.EXPIRED else Event.CANCELLED
        told = f"{row.mind}: {id_} {state}: {text}"
        self.events.emit(event, told, mind=row.mind, session=row.session, delivery=id_)
        caller = self.callers.take(id_)
        if caller is not None:
            caller.tell({"event": str(state), "detail": text})
        write = self.write(lambda db: deliveries.close(db, [id_], state, now_ms(), text))
        write.add_done_callback(lambda _: self.waiters.tell(id_))
        return write

    def remember(self, row: Delivery) -> None:
        """Know again of a queued row what is not in the backlog, at start."""
        if row.attempts:
            self._attempts[row.id] = row.attempts
        if row.expires_at:
            heapq.heappush(self._expiries, (row.expires_at, row.id, row.mind, row.session))

    def _set_timer(self, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [self.backlog.next_due(), self.callers.next_lost()]
        times += [self._expiries[0][0]] if self._expiries else []
        due = min((when for when in times if when is not None), default=None)
        if due is not None:
            delay = min(max(due - now, 0) / 1000, CLOCK_CHECK_S)
            self._timer = asyncio.get_running_loop().call_later(delay, self.pump)

    def write(self, op: Callable[[Any], Any], *, durable: bool = True) -> asyncio.Future[Any]:
        """A write that must not be lost: tried until it succeeds."""
        return self.queue.submit(op, durable=durable, keep=True).future

    def _systemd_up(self) -> None:
        if self.ready:
            self.pump()

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold on to a task until it is done, and log it if it fails."""
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, Problem):
            log.error("a task failed", exc_info=error)

    async def settled(self, seconds: float) -> None:
        """Wait for what is being accepted or started."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
