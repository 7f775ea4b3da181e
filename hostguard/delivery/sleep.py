"""Puts minds to sleep, and wakes them. The gate holds the rows of a sleeping mind.

awake -> falls asleep -> sleeps -> awake. Before it sleeps a mind gets a message, which goes through the gate
like any other: the mind sleeps when its turn is over, or if it could not start within FALL_MS. Turns that run
by then go on to their end. A mind that a message woke sleeps again, without a message, once it has been idle
for its sleep_after; it still wakes for good at the time that was set.

A change is stored before it takes effect. Only falling asleep takes effect at once, and is stored meanwhile:
if the guard is killed in between, the mind falls asleep again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from hostguard.core import outcome
from hostguard.core.clock import AGAIN_S, CHECK_S, Clock, Now
from hostguard.core.errors import Problem, bad_request, unavailable
from hostguard.core.model import Delivery, Kind, Mind, Row, State, Target
from hostguard.core.names import MAIN_SESSION
from hostguard.core.payload import CHANNEL, SENDER, system_payload
from hostguard.core.ports import Dispatching, HeldRows
from hostguard.core.signals import MindWoken, Redrive, SessionChanged
from hostguard.core.tasks import Tasks
from hostguard.core.text import span
from hostguard.delivery.acceptor import Acceptor, Also
from hostguard.delivery.mind_services import MindServices
from hostguard.gate.backlog import Backlog
from hostguard.gate.ledger import Ledger
from hostguard.gate.policy import Policy, known_mind
from hostguard.store.deliveries import New
from hostguard.store.settings import SLEEP, START, WOKEN, Change, SettingsStore, Sleep, Woken
from hostguard.store.writer import Unavailable
from hostguard.telemetry.events import Event, Events
from hostguard.turns.live import Live

T = TypeVar("T")
log = logging.getLogger(__name__)

FALL_MS = 600_000  # a mind whose message does not start within this sleeps without it


@dataclass(eq=False)
class Sleeper:
    """The sleep of all minds."""

    _policy: Policy
    _settings: SettingsStore
    _acceptor: Acceptor
    _held: HeldRows
    _backlog: Backlog
    _live: Live
    _ledger: Ledger
    _services: MindServices
    _dispatcher: Dispatching
    _events: Events
    _clock: Clock
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=partial(defaultdict, asyncio.Lock), init=False
    )
    _waking: set[str] = field(default_factory=set, init=False)
    _tasks: Tasks = field(default_factory=lambda: Tasks((Problem,)), init=False)
    _idle: dict[str, asyncio.TimerHandle] = field(default_factory=dict, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)

    def start(self) -> None:
        """Resume where the previous guard stopped."""
        for mind in self._settings.all(SLEEP):
            if self._settings.get(WOKEN, mind):
                self.wake_for_message(MindWoken(mind))
            else:
                self._fell(mind)
                self._services.stop(mind)
        for mind in self._settings.all(WOKEN):
            self._watch_idle(mind)
        self._services.resume()
        self._set_timer()

    def close(self) -> None:
        """Stop, and wake no mind any more."""
        self._closed = True
        for timer in (*self._idle.values(), self._timer):
            if timer is not None:
                timer.cancel()
        self._services.close()
        self._tasks.cancel()

    # -- to sleep

    async def sleep(self, mind: str, until: int | None) -> None:
        """Put the mind to sleep, until a time in ms or until it is woken. Raises Problem."""
        config, now = known_mind(mind, self._policy.config), self._clock.now()
        if until is not None and until <= now.date:
            raise bad_request("until is in the past")
        async with self._locks[mind]:
            state = self._settings.get(SLEEP, mind)
            if state is not None:
                await self._change(mind, SLEEP.to(mind, {**state, "until": until}))
                self._fell(mind)  # the message may have had its turn meanwhile
            elif not await self._tell(config, until, now.date):
                await self._change(mind, SLEEP.to(mind, _asleep(now, until)), WOKEN.to(mind, None))
                self._fell_asleep(mind)
            self._set_timer()

    async def _tell(self, mind: Mind, until: int | None, now: int) -> bool:
        """Send the mind the message over which it falls asleep; False if it takes none."""
        when = f" until {_shown(until)}" if until is not None else ""
        text = f"[hostguard] You are about to sleep{when}. Messages wait, except those that wake you."
        by = now + FALL_MS

        def falls(rows: Sequence[Delivery], _: bool = True) -> tuple[Change, Change]:
            sleep = Sleep(since=None, until=until, row=rows[0].id, by=by)
            return SLEEP.to(mind.name, sleep), WOKEN.to(mind.name, None)

        rows = await self._send(mind, Kind.LIFECYCLE, text, now, falls, by)
        if not rows:
            return False
        self._settings.use(*falls(rows))
        self._fell(mind.name)  # it may be over already
        return True

    def session_changed(self, changed: SessionChanged) -> None:
        """A turn of the session began, or ended; called before its slot is handed on."""
        mind = changed.mind
        if not changed.busy:
            self._fell(mind)
            self._services.stop(mind)
            if self._settings.get(WOKEN, mind):
                self._watch_idle(mind)

    def _fell(self, mind: str) -> None:
        """If the message that announced the sleep has had its turn, the mind sleeps."""
        state = self._settings.get(SLEEP, mind)
        if state is None or state["since"] is not None or MAIN_SESSION in self._live.sessions(mind):
            return
        if not self._backlog.has(state["row"], mind, MAIN_SESSION):
            self._settings.keep(SLEEP.to(mind, _asleep(self._clock.now(), state["until"])))
            self._fell_asleep(mind)

    def _fell_asleep(self, mind: str) -> None:
        until = self._policy.asleep_until(mind)
        text = f"{mind} sleeps{f' until {_shown(until)}' if until is not None else ''}"
        self._events.emit(Event.ASLEEP, text, mind=mind)
        self._services.stop(mind)
        self._set_timer()

    def _watch_idle(self, mind: str) -> None:
        if mind in self._idle:
            self._idle.pop(mind).cancel()
        config = self._policy.config.minds.get(mind)
        if config is not None and not self._closed:
            loop = asyncio.get_running_loop()
            self._idle[mind] = loop.call_later(max(config.sleep_after, 1.0), self._sleep_again, mind)

    def _sleep_again(self, mind: str) -> None:
        woken = self._settings.get(WOKEN, mind)
        if not woken or self._policy.sleepy(mind):
            return
        # Rows on their way to the card or in a batch came for a mind that is awake; others are tried again.
        now = self._clock.now()
        in_batches, _ = self._held.counts(mind)
        busy = self._live.of(mind) or self._backlog.due_by(mind, outcome.BACKOFF_MS[1], now)
        if busy or in_batches or self._acceptor.pending(mind):
            self._watch_idle(mind)
            return
        sleep = _asleep(now, None if woken is True else woken["until"])
        self._settings.keep(SLEEP.to(mind, sleep), WOKEN.to(mind, None))
        self._fell_asleep(mind)

    # -- awake

    async def wake(self, mind: str, by: str) -> None:
        """Wake the mind for good, with a message; `by` names the cause. Raises Problem."""
        if not self._policy.sleepy(mind):
            known_mind(mind, self._policy.config)  # one that was removed asleep can still be woken
        # A client that leaves must not leave a mind half awake.
        await asyncio.shield(self._tasks.start(self._wake(mind, by, by_message=False)))

    def wake_for_message(self, woken: MindWoken) -> None:
        """A message is stored that wakes the mind."""
        self._tasks.start(self._until_awake(woken.mind, "by a message", by_message=True))

    async def _until_awake(self, mind: str, by: str, by_message: bool) -> None:
        while True:
            try:
                return await self._wake(mind, by, by_message)
            except Problem as problem:
                log.warning("%s cannot be woken yet: %s", mind, problem.detail)
                await asyncio.sleep(AGAIN_S)

    async def _on_time(self, mind: str) -> None:
        if mind not in self._waking:
            self._waking.add(mind)
            try:
                await self._until_awake(mind, "at the time that was set", by_message=False)
            finally:
                self._waking.discard(mind)

    async def _wake(self, mind: str, by: str, by_message: bool) -> None:
        settings = self._settings
        async with self._locks[mind]:
            state, config, now = (
                settings.get(SLEEP, mind),
                self._policy.config.minds.get(mind),
                self._clock.now(),
            )
            if state is None:
                if not by_message and settings.get(WOKEN, mind) is not None:
                    await self._change(mind, WOKEN.to(mind, None))
                else:  # a message may have been stored that was to wake it, when it just was
                    settings.restore(WOKEN.key(mind))
                return
            woken = Woken(until=state["until"]) if by_message else None
            awake = SLEEP.to(mind, None), WOKEN.to(mind, woken)
            start = START.to(mind, True if config is not None and config.unit is not None else None)
            held = self._backlog.count(mind)
            told: Sequence[Delivery] = ()
            if config is not None and state["since"] is not None and not by_message:
                since = now.known(state.get("stamp", 0), state["since"])
                slept = f"You slept for {span(now.since(since))}, and were woken {by}"
                text = f"[hostguard] {slept}. Messages that waited: {held}."
                told = await self._send(config, Kind.WAKE, text, now.date, lambda *_: (*awake, start))
            if not told:
                await self._or_back(mind, settings.store(*awake, start))
            if state["since"] is None and self._backlog.remove(state["row"], mind, MAIN_SESSION):
                row = Row(state["row"], mind, MAIN_SESSION, kind=Kind.LIFECYCLE)
                self._ledger.close(row, State.CANCELLED, f"{mind} was woken {by}")
            await self._services.start(mind)  # its rows are held until it can take them
            settings.use(*awake)
            if by_message:
                self._watch_idle(mind)
            self._set_timer()
            text = f"{mind} is awake, woken {by}; messages that waited: {held}"
            self._events.emit(Event.AWAKE, text, mind=mind)
            self._dispatcher.redrive(Redrive(mind))

    # -- time

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sleeps, wokens = self._settings.all(SLEEP).values(), self._settings.all(WOKEN).values()
        times = [time for sleep in sleeps for time in (sleep["until"], sleep.get("by"))]
        times += [woken["until"] for woken in wokens if woken is not True]
        first = min((time for time in times if time is not None), default=None)
        if first is not None and not self._closed:
            # A wake that is under way since its time came is checked again in a second.
            delay = min((first - self._clock.date()) / 1000, CHECK_S)
            self._timer = asyncio.get_running_loop().call_later(delay if delay > 0 else 1.0, self.check)

    def check(self) -> None:
        """Wake the minds whose time has come."""
        now = self._clock.date()
        for mind, sleep in self._settings.all(SLEEP).items():
            self._fell(mind)
            if sleep["until"] is not None and sleep["until"] <= now:
                self._tasks.start(self._on_time(mind))
        for mind, woken in self._settings.all(WOKEN).items():
            if woken is not True and woken["until"] is not None and woken["until"] <= now:
                self._settings.keep(WOKEN.to(mind, None))
        self._set_timer()

    # -- small things

    async def _send(
        self, mind: Mind, kind: Kind, text: str, now: int, also: Also, expires_at: int = 0
    ) -> Sequence[Delivery]:
        """Store a message to the mind, and `also`; no row if it can have none: then nothing is stored."""
        if not (mind.command or mind.url):
            return ()
        target, payload = Target(mind.name, MAIN_SESSION, kind=kind), system_payload((mind.name,), text)
        new = New((target,), payload, now, sender=SENDER, channel=CHANNEL, expires_at=expires_at)
        try:
            return (await self._or_back(mind.name, self._acceptor.store(new, also=also))).rows
        except Problem as problem:
            if problem.code == "queue_full":
                return ()
            raise

    async def _change(self, mind: str, *changes: Change) -> None:
        await self._or_back(mind, self._settings.store(*changes))
        self._settings.use(*changes)

    async def _or_back(self, mind: str, write: Coroutine[Any, Any, T]) -> T:
        """Make a change, or undo it: the card may have taken it although it did not answer."""
        try:
            return await write
        except Problem as problem:
            if problem.code != "unavailable":
                raise
            self._settings.restore(SLEEP.key(mind), WOKEN.key(mind), START.key(mind))
            # A write that the card did not answer in time is undone, too.
            why = (
                problem.detail
                if isinstance(problem.__cause__, Unavailable)
                else "the device accepts no writes"
            )
            raise unavailable(f"{why}; {mind} is unchanged, try again") from problem


def _asleep(now: Now, until: int | None) -> Sleep:
    return Sleep(since=now.date, until=until, stamp=now.stamp)


def _shown(time: int) -> str:
    return datetime.fromtimestamp(time / 1000).astimezone().isoformat(sep=" ", timespec="minutes")
