"""Recovery at start: matches the rows of the database with the live scopes of systemd.

What a killed guard can leave behind, and how it is handled:
  row delivering, scope live            the turn continues, and is followed from here
  row delivering, scope gone            ended by its exit record; without one (the host was restarted) a crash
  the same, after a shutdown in order   queued again, and no attempt is counted (shutdown.py)
  row queued, scope live or it ran      the mark was not stored in time: as above
  row queued, record empty              it never ran: it starts again, the record is removed
  row delivering to a resident mind     confirmed: as above, never posted again; not confirmed: posted again
                                        with the same key, into its turn if that lives, else in order
  scope or record without a row         its database is gone: new rows get higher ids, so that none is taken
                                        for it. A turn of a resident mind is followed to its end all the same:
                                        its scope does not end by itself
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from hostguard.core import outcome, paths
from hostguard.core.clock import Clock, Now
from hostguard.core.model import Delivery, Kind, LiveTurn, State, Waited
from hostguard.core.names import MAIN_SESSION
from hostguard.core.outcome import Ending
from hostguard.core.ports import Configured
from hostguard.core.reasons import BY_NAME
from hostguard.core.tasks import Tasks
from hostguard.core.units import turn_unit
from hostguard.gate.backlog import Backlog
from hostguard.gate.gate import Gate
from hostguard.gate.ledger import Ledger
from hostguard.gate.run_clients import RunClients
from hostguard.gate.shutdown import cut_short, forget_mark, mark_time
from hostguard.gate.times import LeftBehind, began, queued
from hostguard.store import deliveries
from hostguard.store.writer import Queue, Unavailable
from hostguard.turns import exit_record
from hostguard.turns.drivers.choice import Drivers
from hostguard.turns.live import Live, Phase, Resident, Turn, TurnDriver, TurnEnded
from hostguard.turns.outside import Outside

log = logging.getLogger(__name__)

STORED_S = 5.0  # if the card stalls: the guard is needed then
SLICE = 10_000  # rows that are added to the backlog at once: some 15 ms of the event loop


@dataclass(eq=False)
class Recovery:
    """Loads the queue and matches it with the live scopes."""

    _queue: Queue
    _ledger: Ledger
    _backlog: Backlog
    _live: Live
    _drivers: Drivers
    _run_clients: RunClients
    _policy: Configured
    _gate: Gate
    _outside: Outside
    _tasks: Tasks
    _clock: Clock
    _went_down: float | None = field(default=None, init=False)  # in order: when, in s since the epoch
    _with_host: dict[str, Ending] = field(default_factory=dict, init=False)  # turns that ended with the host

    async def run(self) -> None:
        """Recover, once, when the queue is open and systemd's list is known. Raises Unavailable."""
        begun = time.monotonic()
        self._went_down = await asyncio.to_thread(mark_time)
        if self._went_down is not None:
            await asyncio.to_thread(exit_record.bring_back)
        special = await self._queue.read(deliveries.special)
        known, folded = self._delivering(special)
        found = {path.name for path in paths.TURNS.iterdir()}
        found |= {turn.live.id for turn in self._live if turn.live.id}
        self._ledger.floor = max((outcome.row_of(turn_id) or 0 for turn_id in found), default=0)
        turns: dict[str, Turn] = {}
        for turn_id in found - known.keys():
            unmarked, live = await self._unmarked(turn_id), self._live.by_id(turn_id)
            if unmarked is not None:
                known[turn_id] = unmarked
                self._mark(unmarked, turn_id)
            elif live is None:
                exit_record.forget(turn_id)
            elif (turn := self._resume_alone(turn_id, live)) is not None:
                turns[turn_id] = turn

        taken = {row.id for row in (*known.values(), *folded)}
        await self._load(taken, {row.id for row in special if keeps_place(row)})
        self._ledger.loaded = await self._queue.read(deliveries.last_id)
        for row in special:
            if row.state is State.QUEUED and row.id not in taken:
                self._ledger.remember(row)
                if row.kind is Kind.RUN:
                    self._run_clients.park(queued(row, self._clock.now()))
        self._ledger.left = self._left_behind(known)

        turns |= {turn_id: self._resume(turn_id, row) for turn_id, row in known.items()}
        for row in folded:
            self._resume_folded(turns.get(row.turn or ""), row)
        for turn in turns.values():
            if turn.driver is not None and turn in self._live:
                mind = self._policy.config.minds.get(turn.live.mind)
                self._tasks.start(turn.driver.resume(turn, mind))
        rows, took_ms = len(self._backlog) + self._backlog.later, (time.monotonic() - begun) * 1000
        log.info("%d rows queued, %d turns live, read in %.0f ms", rows, len(self._live), took_ms)
        if self._went_down is not None:
            self._tasks.start(self._forget_mark())
        if taken:
            # On a full card this shows that ends cannot be stored; then no waiting row may start.
            with suppress(Unavailable, TimeoutError):
                await asyncio.wait_for(self._queue.write(lambda db: None), STORED_S)

    async def _forget_mark(self) -> None:
        await self._ledger.write(lambda db: None)  # what it says of turns is stored now
        await asyncio.to_thread(forget_mark)

    async def _load(self, taken: Collection[int], paused: Collection[int]) -> None:
        """Read the queued rows in the reading thread, and add them on the event loop, in slices.

        The backlog is not thread-safe, and timers use it meanwhile.
        """
        after, now = 0, self._clock.now()
        while rows := await self._queue.read(partial(deliveries.queued, after=after, limit=SLICE)):
            self._backlog.load((row for row in rows if row[0] not in taken) if taken else rows, now, paused)
            after = rows[-1][0]

    def _delivering(self, special: list[Delivery]) -> tuple[dict[str, Delivery], list[Delivery]]:
        """The marked rows: those that began a turn, by turn, and those that folded into one."""
        known: dict[str, Delivery] = {}
        folded: list[Delivery] = []
        for row in special:
            if row.state is not State.DELIVERING:
                continue
            turn_id = row.turn or outcome.turn_id(row.id, row.attempts)
            if outcome.row_of(turn_id) != row.id:
                folded.append(row)
                continue
            known[turn_id] = row
            if row.turn is None:  # set by hand
                self._mark(row, turn_id)
        return known, folded

    async def _unmarked(self, turn_id: str) -> Delivery | None:
        """The queued row whose turn this is, if it may have run."""
        id_ = outcome.row_of(turn_id)
        if id_ is None:
            return None
        row = await self._queue.read(lambda db: deliveries.get(db, id_))
        if row is None or row.state is not State.QUEUED or outcome.turn_id(row.id, row.attempts) != turn_id:
            return None
        record = exit_record.read_record(turn_id)
        ran = record is not None and (record.released or record.not_started is not None)
        return row if ran or turn_unit(row.mind, turn_id) in self._live.turns else None

    def _mark(self, row: Delivery, turn_id: str) -> None:
        now = self._clock.now()
        self._ledger.write(
            lambda db: deliveries.mark_delivering(db, row.id, turn_id, now, row.result), durable=False
        )

    def _left_behind(self, known: Mapping[str, Delivery]) -> LeftBehind:
        """What the earlier guard's rows waited for: also for turns that have ended since."""
        turns = [LiveTurn.of(row.row, turn_unit(row.mind, id_), id_) for id_, row in known.items()]
        turns += [turn.live for turn in self._live if turn.live.id not in known]
        by_mind: defaultdict[str, list[LiveTurn]] = defaultdict(list)
        for turn in turns:
            by_mind[turn.mind].append(turn)
        units = tuple(turn.unit for turn in turns)
        host = replace(self._gate.host(), live=len(units), units=units, systemd=True, writes=True)
        minds = self._policy.config.minds
        views = {name: replace(self._gate.view(name), live=tuple(by_mind[name]), unread="") for name in minds}
        return LeftBehind(host, views)

    def _resume(self, turn_id: str, row: Delivery) -> Turn:
        unit = turn_unit(row.mind, turn_id)
        mind = self._policy.config.minds.get(row.mind)
        record = exit_record.read_record(turn_id)
        posted = row.posted_at > 0
        anchored = record is not None and record.anchor is not None
        driver = self._drivers.choose(row.kind, mind, posted or anchored)
        live = LiveTurn.of(row.row, unit, turn_id, driver.takes_input)
        now = self._clock.now()
        turn = Turn(live, row.started_at or now.date, Phase.RUNNING, row, driver)
        turn.resumed, turn.max_turn = True, mind.limits.max_turn if mind else None
        begun = record.started if record is not None else None
        turn.started = now.known(row.started, turn.since) if begun is None else now.of(begun)
        turn.waited = _waited(row, turn.started, now)
        turn.resident = Resident(posted=posted) if driver.takes_input else None
        seen = self._live.turns.get(unit)
        if seen is not None:
            turn.description = seen.description
            self._live.remove(seen)
            self._live.add(turn)  # it is watched by its name already
        else:
            turn.over(now, now.of(record.ended) if record is not None and record.ended is not None else 0)
            ending = self._ending(turn_id, turn, driver)
            if record is None or record.ended is None:
                turn.ended = None
            if ending in (outcome.HOST_DOWN, outcome.HOST_LOST):
                self._with_host[turn_id] = ending
            self._settle(row, turn, ending)
            self._outside.turn_ended(TurnEnded(turn, ending))
        return turn

    def _resume_alone(self, turn_id: str, seen: Turn) -> Turn | None:
        """Follow a resident mind's turn whose row is lost; None for another turn, which ends by itself."""
        record = exit_record.read_record(turn_id)
        if record is None or record.anchor is None:
            return None
        if not seen.unasked:
            log.warning("%s is live, but its row is lost; it is followed to its end", seen.live.unit)
        live = replace(seen.live, session=record.session or MAIN_SESSION, takes_input=True)
        turn = Turn(live, seen.since, Phase.RUNNING, driver=self._drivers.resident)
        mind = self._policy.config.minds.get(live.mind)
        turn.description, turn.max_turn = seen.description, mind.limits.max_turn if mind else None
        turn.resident = Resident(posted=True)
        self._live.remove(seen)
        self._live.add(turn)
        return turn

    def _ending(self, turn_id: str, turn: Turn, driver: TurnDriver) -> Ending:
        """How a turn ended that has no scope any more."""
        record = exit_record.read_record(turn_id)
        if not cut_short(self._went_down, record, exit_record.written(turn_id)):
            return driver.end(turn)
        log.info("%s was cut short as the host was shut down", turn.live.unit)
        if record is not None:
            exit_record.prepare(turn.live)  # the row's next turn has the same name: an empty one says nothing
        return outcome.HOST_DOWN

    def _resume_folded(self, turn: Turn | None, row: Delivery) -> None:
        if turn is None or turn.resident is None:  # its turn's row is gone: somebody edited the database
            turn = Turn(LiveTurn.of(row.row, "", row.turn), self._clock.date(), Phase.ENDING, ended=None)
        if row.posted_at and turn in self._live:
            turn.folded.append((row, self._waited(row)))
        elif (ending := self._with_host.get(row.turn or "")) is not None:
            self._settle(row, turn, ending)
        elif row.posted_at:
            self._settle(row, turn, Ending("gone", "its turn ended while the guard was down"))
        else:
            if turn.resident is not None:
                turn.resident.shared = True  # the mind may have it all the same
            again = Ending("dismissed", "the guard stopped before the mind confirmed it", back=True)
            self._settle(row, turn, again)

    def _settle(self, row: Delivery, turn: Turn, ending: Ending) -> None:
        again = self._ledger.settle(row, turn, ending, self._waited(row))
        if again is not None:
            put_back = self._backlog.add if ending.overtaken else self._backlog.give_back
            put_back(again, self._clock.now())

    def _waited(self, row: Delivery) -> Waited:
        now = self._clock.now()
        return _waited(row, now.known(row.started, row.started_at or now.date), now)


def keeps_place(row: Delivery) -> bool:
    """True for a row that failed, but by no crash of its mind: its session waits until it is tried again."""
    return row.state is State.QUEUED and row.attempts > 0 and outcome.keeps_place(row.result)


def _waited(row: Delivery, started: int, now: Now) -> Waited:
    """How long the row waited before it went into its turn, as was noted then; otherwise only how long."""
    given, since = row.result, began(row, now)
    ms = given.get("held_ms")
    if ms is None:
        return Waited(max(0, now.since(since) - now.since(started)), None, None, since)
    return Waited(ms, given.get("held_behind"), BY_NAME.get(given.get("held_for") or ""), since)
