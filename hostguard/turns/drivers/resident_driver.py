"""Turns of resident minds: posted to the mind's server, followed until they are over.

A turn begins as one of an exec mind does: scope first. Its anchor, a process that only waits, holds the scope
while the mind's own processes are adopted into it (adoption.py). Then the message is posted; further messages
of the session fold into the turn, one POST after another, in order of id. How a turn ends:
  done     the mind reports it for that session, or for all its sessions; if anything was folded into the
           turn, the session must be quiet since (quiet_rule.py)
  gone     the processes that were adopted are gone, and nothing was heard since
  died     the mind's own process is gone; all messages of the turn are tried again
  idle     no `done`, and the turn's processes have been idle for idle_end
  timeout  longer than max_turn: systemd stops the scope
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from hostguard.core import outcome, payload
from hostguard.core.clock import AGAIN_MS
from hostguard.core.errors import named
from hostguard.core.model import Config, Delivery, Mind, Row, Waited
from hostguard.core.names import MAIN_SESSION
from hostguard.core.outcome import Ending
from hostguard.core.ports import Configured, RowSource, SessionNotes
from hostguard.core.signals import MindDied, Redrive, SessionChanged, Signal, UnitStarted, WorkSeen
from hostguard.core.tasks import Tasks
from hostguard.store.writer import Unavailable
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.systemd.fork_client import anchor
from hostguard.turns import exit_record
from hostguard.turns.adoption import Adoption
from hostguard.turns.availability import Availability
from hostguard.turns.done_tracker import Done, DoneTracker
from hostguard.turns.drivers.idle_watch import IdleWatch
from hostguard.turns.drivers.quiet_rule import STRAGGLE_S
from hostguard.turns.live import Live, Phase, Resident, RowLedger, Turn, TurnDriver
from hostguard.turns.mind_client import MindClient, Outcome, Posted
from hostguard.turns.scopes import Scopes

log = logging.getLogger(__name__)

CUT = Posted(Outcome.CUT)
# Events of a model run. The others report of one that is over, or are not of the session.
WORK = frozenset(("session_start", "context", "thinking", "text", "tool_use", "tool_result"))


@dataclass(eq=False)
class ResidentDriver(TurnDriver):
    """Drives the turns of all resident minds."""

    takes_input = True
    _scopes: Scopes
    _live: Live
    _adoption: Adoption
    _client: MindClient
    _availability: Availability
    _done_tracker: DoneTracker
    _ledger: RowLedger
    _rows: RowSource
    _notes: SessionNotes
    _policy: Configured
    _idle_watch: IdleWatch
    _session_changed: Signal[SessionChanged]
    _redrive: Signal[Redrive]
    _work_seen: Signal[WorkSeen]
    _tasks: Tasks
    _owing: set[tuple[str, str | None]] = field(default_factory=set, init=False)  # a `done` may be to come
    _closing: bool = field(default=False, init=False)

    async def use(self, config: Config) -> None:
        """Follow a configuration. A turn of a mind that is resident no more takes no further messages."""
        if any(mind.url is not None for mind in config.minds.values()):
            await asyncio.to_thread(self._client.open)
        for turn in self._live:
            mind = config.minds.get(turn.live.mind)
            if mind is not None and mind.url is None:
                self._live.close_input(turn)

    def close(self) -> None:
        """Let go; what is in flight is posted again, with the same key, by the next guard."""
        self._closing = True
        self._idle_watch.close()
        for turn in self._live:
            if turn.resident is not None and turn.resident.feeding is not None:
                turn.resident.feeding.cancel()
            self.stopping(turn)
        self._adoption.close()

    # -- a turn begins

    async def start(self, turn: Turn, mind: Mind, row: Delivery, raw: bytes) -> bool:
        """Bring the scope up around an anchor, and post the row."""
        turn.resident = Resident(shared=(mind.name, turn.live.session) in self._owing)
        self._owing.discard((mind.name, turn.live.session))
        if not await self._scopes.start_stub(turn, mind.limits, anchor, delegate=True):
            return False
        assert turn.pid is not None
        return await self._begin(turn, turn.resident, mind, turn.pid, (row, raw))

    async def follow(self, turn: Turn, mind: Mind) -> None:
        """Bring up the scope of a turn that no message began, and follow the session's work in it."""
        assert turn.resident is not None
        if await self._scopes.start_stub(turn, mind.limits, anchor, delegate=True):
            assert turn.pid is not None
            await self._begin(turn, turn.resident, mind, turn.pid, None)

    async def resume(self, turn: Turn, mind: Mind | None) -> None:
        """Continue a turn that an earlier guard began; its row is posted again if it was not confirmed.

        One whose row is lost goes on, and ends, as any other.
        """
        row, resident = turn.delivery, turn.resident
        assert resident is not None
        assert turn.live.id is not None
        resident.shared = resident.shared or bool(turn.folded) or turn.unasked
        record = exit_record.read_record(turn.live.id)
        pid = record.anchor if record is not None else None
        if mind is None or mind.url is None or pid is None:
            log.warning("%s is stopped: its mind is no longer resident", turn.live.unit)
            await self._scopes.stop(turn)
            return
        post = None
        if row is not None and not resident.posted:
            try:
                found = await self._ledger.fetch(row.id)
            except Unavailable as error:
                self.finish(turn, Ending("dismissed", f"its row cannot be read: {error}", back=True))
                return
            post = (row, found[1]) if found is not None else None
            await self._notes.read(mind.name)  # its instructions go along
        await self._begin(turn, resident, mind, pid, post)

    async def _begin(
        self, turn: Turn, resident: Resident, mind: Mind, pid: int, post: tuple[Delivery, bytes] | None
    ) -> bool:
        """Adopt the session's processes, and post the row with this payload. True if the turn is on."""
        try:
            await self._adoption.begin(turn.live.unit, mind, turn.live.session or MAIN_SESSION, pid)
            if resident.ending is not None:  # a `done` that waited for the guard came first
                await self._leave(turn)
                return False
            if post is not None:
                row, raw = post
                posted = await self._post(turn, mind, row, raw, turn.waited)
                if posted.outcome is Outcome.CUT:  # the end of its scope says how it ended
                    return False
                if posted.outcome is not Outcome.TAKEN:
                    self.finish(turn, self._not_taken(mind, posted))
                    return False
                self._ledger.confirm(row, turn)
                if turn not in self._live:  # somebody stopped it
                    return False
            self._taken(turn, resident, mind)
        except BaseException as error:
            if self._closing:
                raise
            log.exception("turn %s cannot continue", turn.live.id)
            self.finish(turn, Ending("refused", f"a bug in hostguard: {named(error)}", failed=True))
            if not isinstance(error, Exception):
                raise
            return False
        if resident.early and not resident.shared:
            self.finish(turn, Ending("done", "the mind reported that it is done"))
        elif resident.early:
            self._idle_watch.doubt(turn, self.finish)
        return True

    def _taken(self, turn: Turn, resident: Resident, mind: Mind) -> None:
        resident.posted = True
        self._availability.up(mind.name)
        self._session_changed.send(SessionChanged(mind.name, turn.live.session or "", True))
        self._adoption.look(mind.name)
        self._idle_watch.watch(self.finish)
        self.feed(turn)

    async def _post(self, turn: Turn, mind: Mind, row: Delivery, raw: bytes, waited: Waited) -> Posted:
        notes = self._notes.instructions(mind.name, row.session)
        body = payload.request(raw) or payload.for_resident(row, raw, waited.ms, waited.behind, notes)
        resident = turn.resident
        assert turn.live.id is not None
        assert resident is not None
        if resident.cut:
            return CUT
        resident.posting = asyncio.ensure_future(self._client.post(mind, row, body, turn.live.id))
        try:
            posted: Posted = await resident.posting
        except asyncio.CancelledError:
            if self._closing or not resident.cut:
                raise
            return CUT
        finally:
            resident.posting = None
        resident.heard = resident.fed = time.monotonic()
        return posted

    def stopping(self, turn: Turn) -> None:
        """The turn posts nothing more and waits for no answer: the mind cannot hold it up."""
        if turn.resident is not None:
            turn.resident.cut = True
            if turn.resident.posting is not None:
                turn.resident.posting.cancel()

    def _not_taken(self, mind: Mind, posted: Posted) -> Ending:
        if self._scopes.stopping:
            return outcome.HOST_DOWN  # as the mind is
        if posted.outcome is Outcome.CUT:
            return outcome.NOT_CONFIRMED
        if posted.outcome in (Outcome.DOWN, Outcome.STRANGER):
            # The gate holds all rows of a mind that is down. One with a time of its own would lose its place.
            self._availability.note(mind.name, posted.text, posted.outcome is Outcome.STRANGER)
            return Ending("down", posted.text, back=True)
        return Ending("refused", f"the mind did not accept it: {posted.text}", failed=True)

    # -- more messages for it

    def feed(self, turn: Turn) -> None:
        """Post the rows that fold into the turn, one after another."""
        resident = turn.resident
        if resident is None or not resident.posted or resident.feeding is not None or self._closing:
            return
        if self._rows.first(turn.live) is not None:
            resident.shared = True
            resident.feeding = self._tasks.start(self._feed(turn, resident))

    async def _feed(self, turn: Turn, resident: Resident) -> None:
        try:
            while not self._closing and (row := self._rows.first(turn.live)) is not None:
                await self._fold(turn, self._policy.config.minds[row.mind], row)
        finally:
            resident.feeding = None
        self._redrive.send(Redrive())

    async def _fold(self, turn: Turn, mind: Mind, row: Row) -> None:
        self._rows.take(row)
        try:
            found = await self._ledger.fetch(row.id)
        except BaseException as error:
            if not self._closing:
                log.warning("cannot read row %d: %s", row.id, error)
                self._rows.give_back(row, AGAIN_MS)
            if isinstance(error, Unavailable):
                return
            raise
        if found is None:
            return
        if self._closing or turn not in self._live or not turn.live.takes_input:  # it ended meanwhile
            self._rows.give_back(row)
            return
        delivery, raw = found
        waited = self._ledger.begin(delivery, turn, row.since)
        try:
            posted = await self._post(turn, mind, delivery, raw, waited)
        except BaseException as error:
            if not self._closing:
                ending = Ending("refused", f"a bug in hostguard: {named(error)}", failed=True)
                self._settle(delivery, turn, ending, waited)
            raise
        if posted.outcome is not Outcome.TAKEN:
            self._settle(delivery, turn, self._not_taken(mind, posted), waited)
            return
        self._ledger.folded(delivery, turn, waited)
        if turn in self._live:
            turn.folded.append((delivery, waited))
            self._session_changed.send(SessionChanged(row.mind, row.session, True))
            self._adoption.look(mind.name)
        else:
            over = turn.resident.ending if turn.resident is not None else None
            down = outcome.HOST_DOWN if self._scopes.stopping else None  # as the turn
            self._settle(delivery, turn, down or over or Ending("done", "its turn is over"), waited)

    def _settle(self, row: Delivery, turn: Turn, ending: Ending, waited: Waited) -> None:
        if (again := self._ledger.settle(row, turn, ending, waited)) is not None:
            self._rows.give_back(again)

    # -- what the mind reports

    def up(self, mind: str) -> None:
        """Try the mind now, if it was down."""
        if self._availability.up(mind):
            self._redrive.send(Redrive(mind))

    def unit_started(self, started: UnitStarted) -> None:
        """A service was started, perhaps that of a mind."""
        for mind in self._policy.config.minds.values():
            if mind.unit == started.unit:
                self.up(mind.name)

    def heard(self, mind: str, session: str | None, type_: str = "") -> None:
        """The mind reported an event of this type: it is up, and at work in that session."""
        self.up(mind)
        now, turns = time.monotonic(), self._live.resident(mind)
        for turn, resident in turns:
            if session in (None, turn.live.session):
                resident.heard, resident.reported = now, True
                if type_ in WORK:
                    resident.tool = type_ == "tool_use"
                    # Another run began since. That a tool is called is never the last of one.
                    if resident.told is not None and (resident.tool or now - resident.told > STRAGGLE_S):
                        resident.done = None
        if (
            type_ in WORK
            and session is not None
            and not any(turn.live.session == session for turn, _ in turns)
        ):
            self._work_seen.send(WorkSeen(mind, session, type_))
        self._adoption.look(mind)

    def missed(self, mind: str) -> None:
        """Events of the mind may have been missed, a `done` among them."""
        for _, resident in self._live.resident(mind):
            resident.shared, resident.told = True, resident.told or time.monotonic()

    def done(self, mind: str, session: str | None, message_id: str | None, turn_id: str | None) -> list[Done]:
        """The mind is done with a session, or with all of them; the ids only if the mind sent them.

        It ends a turn of one message. If there was another one, or this may be about the turn before, that
        ends once it has been quiet since. Returns those that ended a turn.
        """
        ended = []
        reason = "the mind reported that it is done" + (" with all sessions" if session is None else "")
        for turn, resident in self._live.resident(mind):
            if session not in (None, turn.live.session) or resident.ending is not None:
                continue
            if turn_id is not None and turn_id != turn.live.id:
                continue
            before = self._done_tracker.before(turn, session) if turn_id is None else []
            if any(one.repeated(message_id) for one in before):
                continue
            now = time.monotonic()
            if any(one.may_be(message_id, resident.reported) for one in before):
                resident.late, resident.done = True, resident.done or now
            elif not resident.posted:
                resident.early = True
            elif resident.shared:
                overtaken = resident.tool and now - resident.heard < STRAGGLE_S  # by a call of the next run
                resident.told, resident.tool = now, overtaken
                if not overtaken and self._idle_watch.worked_since(turn, resident):
                    self._idle_watch.doubt(turn, self.finish)
            else:
                self.finish(turn, Ending("done", reason))
                ended.append(self._done_tracker.note(turn, session, message_id))
        return ended

    def mind_died(self, died: MindDied) -> None:
        """The process of the mind's server is gone."""
        for turn, resident in self._live.resident(died.mind):
            # One whose first message is still on its way ends with that POST.
            if resident.posted and not turn.stopped:
                self.finish(turn, outcome.DIED)

    # -- a turn ends

    def finish(self, turn: Turn, ending: Ending) -> None:
        """The turn is over: its processes leave the scope, and then its slot is free."""
        resident = turn.resident
        assert resident is not None
        if resident.ending is None and turn in self._live:
            resident.ending = ending
            if ending.outcome == "idle":  # it may be at work all the same, and report its `done` later
                self._owing.add((turn.live.mind, turn.live.session))
            turn.phase = Phase.ENDING
            self._scopes.account(turn)
            self._live.close_input(turn)
            self._tasks.start(self._leave(turn))

    async def _leave(self, turn: Turn) -> None:
        try:
            left = await self._adoption.end(turn.live.unit)
        except Exception:  # whatever it was, the slot must come free
            log.exception("%s: its processes cannot be moved", turn.live.unit)
            left = [turn.pid or 0]
        if left and turn in self._live:
            # They end with their turn; until then the slot is theirs.
            log.warning("%s: processes %s cannot be moved back and are stopped", turn.live.unit, left)
            turn.phase = Phase.LINGERING
            try:
                await self._scopes.stop(turn)
            except (SystemdError, SystemdLost) as error:
                log.warning("%s is not stopped: %s", turn.live.unit, error)

    def end(self, turn: Turn) -> Ending:
        """How the turn ended, as far as the scope, its record and the mind's reports show."""
        self.stopping(turn)
        resident = turn.resident
        assert resident is not None
        assert turn.live.id is not None
        turn.record = exit_record.read_record(turn.live.id)
        if resident.ending is not None:
            return resident.ending
        if resident.posted and turn in self._live:
            self._done_tracker.expect(turn)
        if turn.record is None and turn.released:
            return outcome.RECORD_LOST
        return outcome.resident_ending(
            turn.record, turn.stopped, turn.ran_s, turn.max_turn, resident.posted, not turn.resumed
        )
