"""The delivery manager: accepted -> gate -> start -> end -> next. Everything that starts a turn is here.

One event loop runs it all. `pump` is the only way to a turn; it runs whenever something changed that could
let a row start.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from hostguard import deliveries, turns
from hostguard.backlog import Backlog
from hostguard.callers import Callers
from hostguard.clock import now_ms
from hostguard.events import Event, Events
from hostguard.gate import decide
from hostguard.ledger import Ledger
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

log = logging.getLogger(__name__)

READ_AGAIN_MS = 1_000  # a row that could not be read is tried again after this
# The wall clock may jump (a Pi has no clock of its own): a timer for a wall time looks again this often.
CLOCK_CHECK_S = 30.0


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
        self.ledger = Ledger(queue, events, self.callers)
        self.ready = False
        self.closing = False
        self._on_change = on_change
        self._fresh: list[Row] = []  # queued since the last pump: are they held?
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # -- the gate

    def admit(self, rows: list[Delivery]) -> None:
        """Take stored rows into the backlog and offer them to the gate."""
        now = now_ms()
        for row in rows:
            self.backlog.add(row.row, now)
            self.ledger.remember(row)
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
            if not self._begin(row, now):
                self.backlog.remove(row.id, row.mind, row.session)
                self.requeue(replace(row, not_before=now + READ_AGAIN_MS))
        self._expire(now)
        fresh, self._fresh = self._fresh, []
        for row in fresh:
            self._note_hold(row, now)
        self._set_timer(now)
        self._on_change()

    def _note_hold(self, row: Row, now: int) -> None:
        if self.backlog.has(row.id, row.mind, row.session):
            hold = self.verdict(row)
            if hold is not None and hold.reason is not Reason.NOT_DUE:
                self.ledger.hold_begins(row, hold, now)

    # -- one turn

    def _begin(self, row: Row, now: int) -> bool:
        turn_id = turns.turn_id(row.id, self.ledger.attempts(row.id))
        unit = turn_unit(row.mind, turn_id)
        if unit in self.runner.live.turns:
            log.warning("%s is live already, and not by us: row %d waits for it", unit, row.id)
            return False
        self.backlog.remove(row.id, row.mind, row.session)
        turn = Turn(LiveTurn(unit, row.mind, row.session, turn_id), now, Phase.STARTING)
        self.runner.live.add(turn)
        self.keep(asyncio.create_task(self._start(turn, row)))
        return True

    async def _start(self, turn: Turn, row: Row) -> None:
        try:
            await self._bring_up(turn, row)
        except Exception as error:
            log.exception("turn %s could not be started", turn.live.id)
            if turn.phase is not Phase.STARTING:
                return  # it runs, and its end is seen
            if turn.delivery is None:
                self.requeue(replace(row, not_before=now_ms() + READ_AGAIN_MS))
            ending = turns.Ending("not_started", f"a fault of hostguard: {error!r}", failed=True)
            self.runner.give_up(turn, ending)

    async def _bring_up(self, turn: Turn, row: Row) -> None:
        try:
            found = await self.queue.read(lambda db: deliveries.with_payload(db, row.id))
        except Unavailable as error:
            log.warning("cannot read row %d: %s", row.id, error)
            self.requeue(replace(row, not_before=now_ms() + READ_AGAIN_MS))
            self.runner.give_up(turn, turns.Ending("dismissed", "the queue cannot be read", back=True))
            return
        mind = self.policy.config.minds.get(row.mind)
        # DELIVERING: it was given back a moment ago, and that is not stored yet.
        if found is None or found[0].state.final:
            log.warning("row %d is not queued any more; its turn is not started", row.id)
            self.runner.give_up(turn, turns.Ending("dismissed", "the row is gone", back=True))
            return
        if mind is None:
            self.requeue(row)
            self.runner.give_up(turn, turns.Ending("dismissed", "the mind is gone", back=True))
            return
        delivery, payload = replace(found[0], attempts=self.ledger.attempts(row.id)), found[1]
        turn.delivery = delivery
        turn.held_ms = self.ledger.hold_ends(delivery, turn.since)
        turn.max_turn = mind.limits.max_turn
        turn.description = _describe(delivery, payload)
        assert turn.live.id is not None
        turn_id, since = turn.live.id, turn.since
        self.ledger.write(lambda db: deliveries.mark_delivering(db, row.id, turn_id, since), durable=False)
        if row.kind is Kind.RUN:
            caller = None if turn.revoked else self.callers.take(row.id)
            if caller is None or not caller.alive():
                ending = turns.Ending("dismissed", "it was paused, or its caller is gone", back=True)
                self.runner.give_up(turn, ending)
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

    def _over(self, turn: Turn, ending: turns.Ending) -> None:
        """A slot came free: account for its row, and hand the slot on at once."""
        self.backlog.touch(turn.live.mind, turn.live.session)
        if turn.delivery is not None:
            self.settle(turn.delivery, turn, ending)
        self.pump()

    def settle(self, row: Delivery, turn: Turn, ending: turns.Ending) -> None:
        """Account for the row of a turn that is over; `pump` follows."""
        again = self.ledger.settle(row, turn, ending)
        if again is not None:
            self.requeue(again)

    def requeue(self, row: Row) -> None:
        """Give a row back to the backlog; `pump` follows."""
        self.backlog.add(row, now_ms())
        self._fresh.append(row)

    # -- time, systemd, tasks

    def _expire(self, now: int, spared: Collection[int] = ()) -> None:
        self.ledger.expired(now, spared, self._take_out)

    def _take_out(self, row: Row) -> bool:
        return self.backlog.remove(row.id, row.mind, row.session) or bool(self.callers.unpark(row.id))

    def _drop_run(self, id_: int) -> None:
        row = self.callers.unpark(id_)
        if row is not None:
            self.ledger.close(row, State.CANCELLED, "its `hostguard run` went away")

    def _set_timer(self, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = (self.backlog.next_due(), self.callers.next_lost(), self.ledger.next_expiry())
        due = min((when for when in times if when is not None), default=None)
        if due is not None:
            delay = min(max(due - now, 0) / 1000, CLOCK_CHECK_S)
            self._timer = asyncio.get_running_loop().call_later(delay, self.pump)

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
