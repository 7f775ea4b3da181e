"""Work of resident minds outside of any turn gets a turn of its own: a scope that counts as any other.

It shows by the mind's reports (resident_driver.py), or by what the processes of its sessions use. No event
reports the latter, so the guard looks at them: each second at first when a turn of the mind has ended, then
every LATER_S, for AFTER_S, and as long as turns live. Only while a turn lives can anything be above the cap.

Such a turn takes messages, and ends, as one in which a `done` may not be the last.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from hostguard.core import units
from hostguard.core.clock import Clock
from hostguard.core.model import LiveTurn, Mind
from hostguard.core.names import MAIN_SESSION
from hostguard.core.outcome import Ending
from hostguard.core.ports import Configured
from hostguard.core.signals import WorkSeen
from hostguard.core.tasks import Tasks
from hostguard.linux.process import Process, storage
from hostguard.telemetry.events import Event, Events
from hostguard.turns import exit_record
from hostguard.turns.adoption import Adoption
from hostguard.turns.drivers.quiet_rule import LOUD, STRAGGLE_S
from hostguard.turns.drivers.resident_driver import ResidentDriver
from hostguard.turns.live import Live, Phase, Resident, Turn, TurnEnded
from hostguard.turns.scopes import Scopes

log = logging.getLogger(__name__)

SOON_S = 1.0  # between two looks while a turn of the mind ended less than SOON_FOR_S ago
SOON_FOR_S = 8.0
LATER_S = 10.0
AFTER_S = 90.0
LOUD_BYTES = 1 << 20  # read or written per second: `claude` writes 328 KB at once at rest


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has used: at time.monotonic(), seconds of CPU, bytes of storage."""

    at: float
    cpu_s: float
    moved: int

    def works(self, before: Use) -> bool:
        """True if it was at work since."""
        passed = self.at - before.at
        return self.cpu_s - before.cpu_s > LOUD * passed or self.moved - before.moved > LOUD_BYTES * passed


@dataclass(eq=False)
class Unscoped:
    """Gives turns to sessions that work without one."""

    _live: Live
    _scopes: Scopes
    _adoption: Adoption
    _residents: ResidentDriver
    _policy: Configured
    _events: Events
    _clock: Clock
    _ended: dict[tuple[str, str], float] = field(default_factory=dict, init=False)  # time.monotonic()
    _last: dict[str, str] = field(default_factory=dict, init=False)  # the session of a mind's last turn
    _used: dict[Process, Use] = field(default_factory=dict, init=False)
    _looked: float = field(default=0.0, init=False)  # time.monotonic() of the last look at all minds
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _tasks: Tasks = field(default_factory=Tasks, init=False)

    def close(self) -> None:
        """Look no more. Turns that live go on."""
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()

    def work_seen(self, seen: WorkSeen) -> None:
        """A session without a turn is at work, unless its report belongs to the turn that has just ended."""
        mind, now = self._policy.config.minds.get(seen.mind), time.monotonic()
        ended = self._ended.get((seen.mind, seen.session))
        of_that = ended is not None and now - ended <= STRAGGLE_S and seen.event != "tool_use"
        if mind is not None and mind.url is not None and not of_that:
            # A process that is started in advance for a session reports that, and then waits.
            self._take(mind, seen.session, f"it reported {seen.event}", seen.event == "session_start")

    def turn_ended(self, ended: TurnEnded) -> None:
        """Look whether the session goes on."""
        turn = ended.turn
        if turn.resident is None:
            return
        session = turn.live.session or MAIN_SESSION
        self._ended[turn.live.mind, session] = time.monotonic()
        self._last[turn.live.mind] = session
        if turn.unasked and turn.live.id is not None:
            log.info("%s: turn %s is over: %s", turn.live.mind, turn.live.id, ended.ending.reason)
            exit_record.forget(turn.live.id)
        self.look_later()

    def look_later(self, fact: object = None) -> None:
        """Look again in a while, if turns live or have ended lately."""
        if not (self._ended or len(self._live)):
            return
        last, loop = max(self._ended.values(), default=0.0), asyncio.get_running_loop()
        delay = SOON_S if time.monotonic() - last < SOON_FOR_S else LATER_S
        if self._timer is None or self._timer.when() > loop.time() + delay:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(delay, self._look_now)

    # -- looking

    def _look_now(self) -> None:
        self._timer = None
        now = time.monotonic()
        self._ended = {key: at for key, at in self._ended.items() if now - at < AFTER_S}
        minds = [mind for mind in self._policy.config.minds.values() if mind.url is not None]
        if now - self._looked < LATER_S:
            soon = {name for (name, _), at in self._ended.items() if now - at < SOON_FOR_S + SOON_S}
            minds = [mind for mind in minds if mind.name in soon]
        else:
            self._looked = now
        self._tasks.start(self._look(minds))

    async def _look(self, minds: Iterable[Mind]) -> None:
        try:
            for mind in minds:
                await self._look_at(mind)
        finally:
            self.look_later()

    async def _look_at(self, mind: Mind) -> None:
        for one, known in await self._adoption.at_home(mind):
            use = Use(time.monotonic(), one.cpu_s, sum(storage(one.pid) or ()))
            before = self._used.pop(one, None)
            self._used[one] = use
            session = known or self._last.get(mind.name, MAIN_SESSION)
            if before is not None and use.works(before):
                self._take(mind, session, f"process {one.pid} works", True)
        if len(self._used) > 2 * len(self._policy.config.minds) + 100:
            old = time.monotonic() - 2 * LATER_S
            self._used = {one: use for one, use in self._used.items() if use.at > old}

    # -- a turn for it

    def _take(self, mind: Mind, session: str, text: str, rests: bool) -> None:
        """Take a slot; `rests`: no `done` need follow."""
        if session in self._live.sessions(mind.name):
            return
        id_, now = units.UNASKED + secrets.token_hex(4), self._clock.now()
        live = LiveTurn(units.turn_unit(mind.name, id_), mind.name, session, id_, takes_input=True)
        turn = Turn(live, now.date, Phase.STARTING, driver=self._residents, started=now.stamp)
        turn.description, turn.max_turn = f"work outside of a turn: {text}", mind.limits.max_turn
        turn.resident = Resident(shared=True, early=rests)
        self._live.add(turn)  # at once: nobody else gets the slot
        said = f"{mind.name}: session {session} works outside of a turn ({text}): turn {id_} is for it"
        self._events.emit(Event.OUTSIDE, said, mind=mind.name, session=session, turn=id_)
        if exit_record.prepare(live):
            self._tasks.start(self._residents.follow(turn, mind))
        else:
            self._scopes.give_up(turn, Ending("dismissed", "its record cannot be made"))
