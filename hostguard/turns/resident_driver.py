"""Turns of resident minds: posted to the mind's server, followed until they are over.

A turn begins as one of an exec mind does: scope first. Its anchor, a process that only waits, holds the scope
while the mind's own processes are adopted into it (adopt.py). Then the message is posted; further messages
of the session fold into the turn, one POST after another, in order of id. How a turn ends:
  done     the mind says so for that session, or for all its sessions
  gone     the processes that were adopted are gone, and nothing was heard since
  died     the mind's own process is gone
  idle     no `done`, and the turn's processes have been idle for idle_end
  timeout  longer than max_turn: systemd stops the scope
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from hostguard.core import outcome as outcome_
from hostguard.core import payload
from hostguard.core.clock import now_ms
from hostguard.core.model import Config, Delivery, Mind, Row
from hostguard.core.signals import SessionChanged, Signal
from hostguard.store import deliveries
from hostguard.store.writer import Unavailable
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.telemetry.events import Event
from hostguard.turns.adoption import Adoption
from hostguard.turns.availability import Availability
from hostguard.turns.done_tracker import Done, DoneTracker
from hostguard.turns.live import Phase, Resident, Turn
from hostguard.turns.mind_client import MindClient, Outcome, Posted

if TYPE_CHECKING:
    from hostguard.gate.dispatcher import Dispatcher

log = logging.getLogger(__name__)

# A session's process may be followed by another; a mind that thinks meanwhile tells something now and then.
GONE_S = 30.0
DOUBT_S = 10.0  # of quiet, after a `done` that may not cover what the turn is about
CHECK_S = 5.0  # between two looks at how busy the turns are


class ResidentDriver:
    """Drives the turns of all resident minds."""

    def __init__(
        self,
        manager: Dispatcher,
        availability: Availability,
        done_tracker: DoneTracker,
        session_changed: Signal[SessionChanged],
    ) -> None:
        self._manager = manager
        self._session_changed = session_changed
        self._runner = manager.runner
        self.adopter = Adoption(self._runner.systemd, self._died, self._runner.cgroup)
        self._postman = MindClient()
        self.downs = availability
        self.dones = done_tracker
        self._check: asyncio.TimerHandle | None = None

    async def use(self, config: Config) -> None:
        """Be ready for the resident minds of a configuration, if it has any."""
        if any(mind.url is not None for mind in config.minds.values()):
            await asyncio.to_thread(self._postman.open)

    async def close(self) -> None:
        """Let go; what is in flight is posted again, with the same key, by the next guard."""
        if self._check is not None:
            self._check.cancel()
        for turn in self._runner.live:
            if turn.resident is not None and turn.resident.feeding is not None:
                turn.resident.feeding.cancel()
        self.adopter.close()
        await self._postman.close()

    # -- a turn begins

    async def start(self, turn: Turn, mind: Mind, row: Delivery, raw: bytes) -> bool:
        """Bring the scope up and post the first message. False if the turn is over: its end says why."""
        turn.resident = Resident()
        if not await self._runner.start_anchor(turn, mind):
            return False
        assert turn.stub is not None
        await self.adopter.begin(turn.live.unit, mind, row.session, turn.stub.pid)
        return await self._first(turn, turn.resident, mind, row, raw)

    async def resume(self, turn: Turn, mind: Mind, anchor: int, again: tuple[Delivery, bytes] | None) -> None:
        """Go on with a turn that an earlier guard began; `again`: its first message was not confirmed."""
        assert turn.resident is not None
        assert turn.live.session is not None
        await self.adopter.begin(turn.live.unit, mind, turn.live.session, anchor)
        if turn.resident.ending is not None:  # a `done` that waited for us came first
            await self._send_home(turn)
        elif again is not None:
            await self._first(turn, turn.resident, mind, *again)
        else:
            self._taken(turn, turn.resident, mind)

    async def _first(self, turn: Turn, resident: Resident, mind: Mind, row: Delivery, raw: bytes) -> bool:
        posted = await self._post(turn, mind, row, raw, turn.waited.ms, turn.waited.behind)
        if posted.outcome is Outcome.TAKEN:
            self._confirm(row, turn)
            if turn not in self._runner.live:  # somebody stopped it
                return False
            self._taken(turn, resident, mind)
            if resident.early:
                self.end(turn, outcome_.Ending("done", "the mind said that it is done"))
            return True
        self.end(turn, self._not_taken(mind, posted))
        return False

    def _taken(self, turn: Turn, resident: Resident, mind: Mind) -> None:
        resident.posted = True
        self.downs.up(mind.name)
        self._session_changed.send(SessionChanged(mind.name, turn.live.session or "", True))
        self.adopter.look(mind.name)
        self._watch_busy()
        self.feed(turn)

    async def _post(
        self, turn: Turn, mind: Mind, row: Delivery, raw: bytes, waited_ms: int, behind: str | None
    ) -> Posted:
        instructions = self._manager.instructions(mind.name, row.session)
        body = payload.for_resident(row, raw, waited_ms, behind, instructions)
        assert turn.live.id is not None
        posted = await self._postman.post(mind, row, body, turn.live.id)
        if turn.resident is not None:
            turn.resident.heard = turn.resident.fed = time.monotonic()
        return posted

    def _confirm(self, row: Delivery, turn: Turn) -> None:
        turn_id, now = turn.live.id or "", now_ms()
        self._manager.ledger.write(lambda db: deliveries.mark_posted(db, row.id, turn_id, now), durable=False)

    def _not_taken(self, mind: Mind, posted: Posted) -> outcome_.Ending:
        if posted.outcome is Outcome.DOWN:
            # The gate holds all rows of a mind that is down. One with a time of its own would lose its place.
            self.downs.note(mind.name, posted.text)
            return outcome_.Ending("down", posted.text, back=True)
        return outcome_.Ending("refused", f"the mind did not take it: {posted.text}", failed=True)

    # -- more messages for it

    def feed(self, turn: Turn) -> None:
        """Post what waits for the turn's session into it."""
        resident = turn.resident
        ready = resident is not None and resident.posted and resident.feeding is None
        if resident is not None and ready and self._takes(turn) and self._next_for(turn) is not None:
            resident.feeding = asyncio.create_task(self._feed(turn, resident))
            self._manager.keep(resident.feeding)

    def _takes(self, turn: Turn) -> bool:
        live = turn.live.takes_input and turn in self._runner.live
        return live and self.downs.why(turn.live.mind) is None and not self._manager.closing

    def _next_for(self, turn: Turn) -> Row | None:
        return self._manager.backlog.first_in(turn.live.mind, turn.live.session or "")

    async def _feed(self, turn: Turn, resident: Resident) -> None:
        try:
            while self._takes(turn) and (row := self._next_for(turn)):
                mind = self._manager.policy.config.minds.get(row.mind)
                if mind is None or mind.url is None:
                    break
                self._manager.backlog.remove(row.id, row.mind, row.session)
                await self._fold(turn, resident, mind, row)
        finally:
            resident.feeding = None
        self._manager.pump()

    async def _fold(self, turn: Turn, resident: Resident, mind: Mind, row: Row) -> None:
        manager, ledger = self._manager, self._manager.ledger
        try:
            found = await ledger.fetch(row.id)
        except Unavailable as error:
            log.warning("cannot read row %d: %s", row.id, error)
            manager.read_again(row)
            return
        if found is None:
            return
        if not self._takes(turn):  # it ended while the row was read
            manager.requeue(row)
            return
        delivery, raw = found
        now, turn_id = now_ms(), turn.live.id
        assert turn_id is not None
        waited = ledger.hold_ends(delivery, now)
        ledger.write(lambda db: deliveries.mark_delivering(db, row.id, turn_id, now), durable=False)
        posted = await self._post(turn, mind, delivery, raw, waited.ms, waited.behind)
        if posted.outcome is Outcome.TAKEN:
            self._confirm(delivery, turn)
            manager.events.emit(
                Event.FOLDED, f"{mind.name}: {row.id} went into turn {turn_id}", mind=mind.name,
                session=row.session, delivery=row.id, turn=turn_id, waited_ms=waited.ms,
            )  # fmt: skip
            if turn in self._runner.live:
                resident.folded.append((delivery, waited))
                self._session_changed.send(SessionChanged(row.mind, row.session, True))
                self.adopter.look(mind.name)
            else:
                manager.settle(
                    delivery, turn, resident.ending or outcome_.Ending("done", "its turn is over"), waited
                )
        else:
            manager.settle(delivery, turn, self._not_taken(mind, posted), waited)

    # -- what the mind tells

    def up(self, mind: str) -> None:
        """The mind tells something, or its unit was started: try it now if it was down."""
        if self.downs.up(mind):
            self._manager.reopen(mind)

    def heard(self, mind: str, session: str | None) -> None:
        """The mind told something: it is up, and at work in that session."""
        self.up(mind)
        for turn, resident in self._runner.live.resident(mind):
            if session in (None, turn.live.session):
                resident.heard = time.monotonic()
                resident.told = True
        self.adopter.look(mind)

    def done(self, mind: str, session: str | None, message_id: str | None, turn_id: str | None) -> list[Done]:
        """The mind is done with a session, or with all of them; the ids only if the mind told them.

        Done means that the session is at rest now, whatever it was told before: so also a late one ends the
        session's turn. It may not cover a message that is on its way to the mind at that moment, nor, if it
        may be of the turn before, the one that began since: then the turn ends once it has been quiet.

        Returns those that ended a turn.
        """
        ended = []
        reason = "the mind said that it is done" + (" with all sessions" if session is None else "")
        for turn, resident in self._runner.live.resident(mind):
            if session not in (None, turn.live.session) or resident.ending is not None:
                continue
            if turn_id is not None and turn_id != turn.live.id:
                continue
            before = self.dones.before(turn, session) if turn_id is None else []
            if any(one.repeated(message_id) for one in before):
                continue
            if any(one.may_be(message_id, resident.told) for one in before):
                resident.doubtful = True
            elif not resident.posted:
                resident.early = True
            elif resident.feeding is not None:
                resident.doubtful = True
            else:
                self.end(turn, outcome_.Ending("done", reason))
                ended.append(self.dones.note(turn, session, message_id))
        return ended

    def _died(self, mind: str) -> None:
        for turn, resident in self._runner.live.resident(mind):
            # One whose first message is still on its way ends with that POST.
            if resident.posted:
                self.end(turn, outcome_.Ending("died", "the mind's process died"))

    # -- a turn ends

    def end(self, turn: Turn, ending: outcome_.Ending) -> None:
        """The turn is over: its processes go home, and then its slot is free."""
        resident = turn.resident
        assert resident is not None
        if resident.ending is None and turn in self._runner.live:
            resident.ending = ending
            turn.phase = Phase.ENDING
            self._runner.account(turn)
            self._runner.live.close_input(turn)
            self._manager.keep(asyncio.create_task(self._send_home(turn)))

    async def _send_home(self, turn: Turn) -> None:
        left = await self.adopter.end(turn.live.unit)
        if left and turn in self._runner.live:
            # They cannot go home, so they end with their turn; the slot is theirs until then.
            log.warning("%s: processes %s cannot leave and are stopped", turn.live.unit, left)
            turn.phase = Phase.LINGERING
            try:
                await self._runner.stop(turn)
            except (SystemdError, SystemdLost) as error:
                log.warning("%s is not stopped: %s", turn.live.unit, error)

    def _watch_busy(self) -> None:
        if self._check is None:
            live = [turn.live.mind for turn in self._runner.live if turn.resident is not None]
            minds = self._manager.policy.config.minds
            ends = [minds[name].idle_end for name in live if name in minds]
            if ends:
                self._check = asyncio.get_running_loop().call_later(min(CHECK_S, min(ends) / 4), self._look)

    def _look(self) -> None:
        self._check = None
        for turn in self._runner.live:
            mind = self._manager.policy.config.minds.get(turn.live.mind)
            if turn.resident is not None and turn.resident.posted and mind is not None:
                ending = self._quiet_end(turn, turn.resident, mind)
                if ending is not None:
                    self.end(turn, ending)
        self._watch_busy()

    def stood_still(self, unit: str, seconds: float) -> None:
        """The turn was frozen for so long: that was no idleness of its own."""
        turn = self._runner.live.turns.get(unit)
        if turn is not None and turn.resident is not None:
            now = time.monotonic()
            turn.resident.heard = min(turn.resident.heard + seconds, now)
            turn.resident.fed = min(turn.resident.fed + seconds, now)
            self.adopter.stood_still(unit, seconds)

    def _quiet_end(self, turn: Turn, resident: Resident, mind: Mind) -> outcome_.Ending | None:
        if resident.feeding is not None or turn.live.unit in self._manager.watcher.frozen:
            return None
        # What a mind tells is no progress: one that tells for ever and does nothing is idle (cases.md, 22).
        now = time.monotonic()
        idle_s = min(self.adopter.idle_ms(turn.live.unit) / 1000, now - resident.fed)
        quiet_s = min(idle_s, now - resident.heard)
        if resident.doubtful and quiet_s >= min(DOUBT_S, mind.idle_end):
            return outcome_.Ending("done", "the mind said that it is done, and has been quiet since")
        if self.adopter.deserted(turn.live.unit) and quiet_s >= min(GONE_S, mind.idle_end):
            return outcome_.Ending("gone", "its processes are gone")
        if idle_s >= mind.idle_end:
            return outcome_.Ending("idle", f"the mind has been idle for {mind.idle_end:g} s and sent no done")
        return None
