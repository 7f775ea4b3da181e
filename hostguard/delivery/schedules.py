"""The schedules: due messages go through the gate, and each time is noted in the same transaction.

A time fires exactly once: its row and the note (store.settings.Fired) are one transaction, and its key
"schedule:NAME:MS" is refused a second time. A time that is too late was missed: the journal says so, twice
if the guard is killed at that moment, but never not at all. A cron time is skipped while the row of an
earlier one waits, unless the schedule's overlap is "queue": a mind that was paused for days has one message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, tzinfo
from functools import partial

from hostguard.config.authorised import schedule_refusal
from hostguard.config.cron import LATE_MS, Due, due, next_time
from hostguard.core.clock import CHECK_S, now_ms
from hostguard.core.errors import Problem
from hostguard.core.model import Delivery, Schedule
from hostguard.core.ports import Configured
from hostguard.core.tasks import Tasks
from hostguard.delivery import message
from hostguard.delivery.acceptor import Accepted, Acceptor
from hostguard.linux.timezones import zones
from hostguard.store import deliveries, requests
from hostguard.store.settings import FIRED, SCHEDULE, Change, Fired, SettingsStore
from hostguard.store.writer import Queue
from hostguard.telemetry.counters import Counters
from hostguard.telemetry.events import Event, Events

log = logging.getLogger(__name__)

AGAIN_MS = 10_000  # until a write that failed is tried again
MISSED_PER_LINE = 50  # times named in one line of the journal
SKIPPED_LINE_MS = 3_600_000  # a schedule whose times are skipped again and again says so this often at most


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule that runs. `added`: at run time, not in the configuration."""

    schedule: Schedule
    added: bool
    zone: tzinfo


@dataclass(slots=True)
class _Watch:
    """The state of a schedule while the guard runs. Times in ms."""

    next: int | None = 0  # when to check it again; None: never
    busy: bool = False
    fault: str = ""  # why it cannot fire, as logged
    reported: int = 0  # up to when missed times are in the journal
    told: int | None = None  # when the journal last said that times are skipped
    skipping: bool = False  # it said so of the times that are skipped now, and is to say when that ends


@dataclass(eq=False)
class Scheduler:
    """All schedules, on one timer."""

    _policy: Configured
    _settings: SettingsStore
    _queue: Queue
    _acceptor: Acceptor
    _events: Events
    _counters: Counters
    _tasks: Tasks
    _clock: Callable[[], int] = now_ms
    _entries: dict[str, Entry] = field(default_factory=dict, init=False)
    _watches: dict[str, _Watch] = field(default_factory=dict, init=False)
    _zones: dict[str, tzinfo | None] = field(default_factory=dict, init=False)
    _looked: int = field(default=0, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _zone_timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)

    async def reload(self) -> None:
        """Follow the configuration and the host's time zone, and catch up with what fell due meanwhile.

        A schedule whose zone this host does not know is held, and checked again every CHECK_S.
        """
        self._zones = await asyncio.to_thread(zones, {one.timezone for one, _ in self.all().values()})
        for name, why in self.held().items():
            log.error("the schedule %s is held: %s", name, why)
        self._arrange()
        self._forget_others()
        self.check()
        if self._without_zone() and self._zone_timer is None and not self._closed:
            self._zone_timer = asyncio.get_running_loop().call_later(CHECK_S, self._look_for_zones)

    def held(self) -> dict[str, str]:
        """Why schedules do not run, by name: their scripts are refused, or their time zones unknown here."""
        old, minds = "older names are in the package tzdata-legacy", self._policy.config.minds
        refused = {
            one.name: why for one, _ in self.all().values()
            if one.enabled and (why := schedule_refusal(one, minds)) is not None
        }  # fmt: skip
        return refused | {
            one.name: f"this host knows no time zone {one.timezone} ({old})" for one in self._without_zone()
        }

    def _without_zone(self) -> list[Schedule]:
        known = self._zones
        return [
            one for one, _ in self.all().values()
            if one.enabled and one.timezone in known and known[one.timezone] is None
        ]  # fmt: skip

    def _look_for_zones(self) -> None:
        self._zone_timer = None
        self._tasks.start(self._retry_zones())

    async def _retry_zones(self) -> None:
        found = await asyncio.to_thread(zones, {one.timezone for one in self._without_zone()})
        if any(found.values()):
            await self.reload()
        elif self._without_zone() and not self._closed:
            self._zone_timer = asyncio.get_running_loop().call_later(CHECK_S, self._look_for_zones)

    def close(self) -> None:
        """Fire no more."""
        self._closed = True
        for timer in (self._timer, self._zone_timer):
            if timer is not None:
                timer.cancel()

    # -- which schedules there are

    def all(self) -> dict[str, tuple[Schedule, bool]]:
        """All schedules by name, also disabled ones; True: added at run time.

        Root, who wrote the configuration, authorised its scripts for whichever user the mind has there.
        """
        config = self._policy.config
        added = {
            name: (Schedule(name, **table), True) for name, table in self._settings.all(SCHEDULE).items()
        }
        uids = {name: mind.uid for name, mind in config.minds.items()}
        own = {name: (replace(one, uid=uids.get(one.mind)), False) for name, one in config.schedules.items()}
        return added | own

    def times(self, name: str) -> tuple[int | None, int | None]:
        """When it fires next, and when it last did, in ms."""
        entry, last = self._entries.get(name), self._last(name)
        if entry is None:
            return None, last
        when = self._watches[name].next
        return next_time(entry.schedule, self._clock(), entry.zone) if when == 0 else when, last

    def unbegun(self, name: str) -> tuple[int | None, int]:
        """The delivery that it stored last, and how many times were skipped since, as that had not begun."""
        state = self._settings.get(FIRED, name)
        return (None, 0) if state is None else (state.get("row"), state.get("skipped", 0))

    async def add(self, schedule: Schedule) -> None:
        """Add a schedule at run time. Raises Problem."""
        message.scheduled(schedule, None, self._policy.config)
        found = await requests.in_thread(zones, {schedule.timezone})
        table = {name: value for name, value in asdict(schedule).items() if name != "name"}
        begun = Fired(seen=self._clock(), last=None, of=_meant(schedule))
        state = begun if schedule.cron is not None else None

        def stored() -> None:
            self._zones |= found
            self._follow()

        changes = SCHEDULE.to(schedule.name, table), FIRED.to(schedule.name, state)
        await self._settings.change(*changes, then=stored)

    async def remove(self, name: str) -> None:
        """Remove a schedule that was added at run time. Raises Problem."""
        await self._settings.change(*_gone(name), then=self._follow)

    async def run_now(self, schedule: Schedule) -> Accepted:
        """Send its message once, now. Raises Problem."""
        return await self._acceptor.send(message.scheduled(schedule, None, self._policy.config))

    def _arrange(self) -> None:
        minds, entries = self._policy.config.minds, {}
        for name, (schedule, added) in self.all().items():
            zone = self._zones.get(schedule.timezone)
            runs = schedule.enabled and schedule.mind in minds and schedule_refusal(schedule, minds) is None
            if zone is not None and runs:
                entries[name] = Entry(schedule, added, zone)
                watch = self._watches.setdefault(name, _Watch(skipping=self.unbegun(name)[1] > 0))
                if entries[name] != self._entries.get(name):
                    watch.next, watch.fault = 0, ""
        self._entries = entries

    def _forget_others(self) -> None:
        """A schedule that comes back has missed nothing; but a one-time schedule keeps its note.

        So does one whose time zone this host does not know: what it misses is made up.
        """
        known = self.all()
        kept = {name for name, (one, _) in known.items() if one.at is not None or one in self._without_zone()}
        for name in self._settings.all(FIRED):
            if name not in self._entries and name not in kept:
                self._settings.keep(FIRED.to(name, None))

    def _follow(self) -> None:
        self._arrange()
        self.check()

    # -- the timer

    def check(self) -> None:
        """Check every schedule whose time has come."""
        if self._closed:
            return
        now = self._clock()
        back, self._looked = now < self._looked, now
        coming = []
        for name, entry in self._entries.items():
            watch = self._watches[name]
            if back:
                watch.next, watch.reported, watch.told = 0, 0, None
            if watch.next is None or watch.busy:
                continue
            if watch.next <= now:
                watch.busy = True
                self._tasks.start(self._look(name, entry, watch))
            else:
                coming.append(watch.next)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if coming:
            delay = min((min(coming) - now) / 1000, CHECK_S)
            self._timer = asyncio.get_running_loop().call_later(delay, self.check)

    async def _look(self, name: str, entry: Entry, watch: _Watch) -> None:
        again: int | None = self._clock() + AGAIN_MS
        try:
            state = self._settings.get(FIRED, name)
            seen = state["seen"] if state is not None and state["of"] == _meant(entry.schedule) else None
            now = self._clock()
            found = await asyncio.to_thread(due, entry.schedule, seen, now, entry.zone)
            row = await self._waits(name, entry) if found.fire else None
            if row is not None:
                await self._skip(name, entry, watch, found, row)
            else:
                skipped = self.unbegun(name)[1]
                self._tell_missed(entry, watch, found, now)
                await self._deal(name, entry, found)
                if found.fire and watch.skipping:
                    watch.skipping = False
                    self._tell_skipped(entry.schedule, f"it fires again; {skipped} of its times were skipped")
            again, watch.fault = found.next, ""
        except Problem as problem:
            again = self._clock() + AGAIN_MS
            if watch.fault != problem.detail:
                watch.fault = problem.detail
                log.warning("schedule %s cannot fire: %s", name, problem.detail)
        finally:
            watch.busy = False
            watch.next = again if self._entries.get(name) == entry else 0
            self.check()

    # -- firing

    async def _deal(self, name: str, entry: Entry, found: Due) -> None:
        for time in found.fire:
            mind_is_known = entry.schedule.mind in self._policy.config.minds
            if self._closed or self._entries.get(name) != entry or not mind_is_known:
                return
            await self._fire(name, entry, time)
        if not found.fire and found.seen is not None:
            row, skipped = self.unbegun(name)
            last, of = self._last(name), _meant(entry.schedule)
            state = Fired(seen=found.seen, last=last, of=of, row=row, skipped=skipped)
            await self._settings.change(FIRED.to(name, state))

    async def _fire(self, name: str, entry: Entry, time: int) -> None:
        for_good, now = entry.added and entry.schedule.at is not None, self._clock()

        def fired(last: int | None, row: int | None) -> tuple[Change, ...]:
            state = Fired(seen=time, last=last, of=_meant(entry.schedule), row=row)
            return _gone(name) if for_good else (FIRED.to(name, state),)

        def noted(rows: Sequence[Delivery], created: bool) -> tuple[Change, ...]:
            return fired(now if created else rows[0].created_at, rows[0].id)

        try:
            sent = message.scheduled(entry.schedule, f"schedule:{name}:{time}", self._policy.config)
            accepted = await self._acceptor.send(sent, noted)
        except Problem as problem:
            if problem.code != "conflict":
                raise
            changes, created = fired(self._last(name), None), False
            await self._settings.change(*changes)
        else:
            changes, created = noted(accepted.rows, accepted.created), accepted.created
        if not created:  # the clock was set back, or the schedule removed and added again
            text = "schedule %s: %s was sent before, and is not sent again"
            log.info(text, name, _shown(time, entry.zone))
        self._settings.use(*changes)
        if for_good:
            self._follow()

    async def _waits(self, name: str, entry: Entry) -> int | None:
        """The delivery of an earlier time that has not begun, if that keeps the schedule from firing."""
        row, _ = self.unbegun(name)
        if row is None or entry.schedule.cron is None or entry.schedule.overlap == "queue":
            return None
        found: list[int | None] = []
        # By a write, which comes after those that mark rows as begun. It changes nothing.
        await requests.write(
            self._queue, partial(deliveries.unbegun, id_=row, mind=entry.schedule.mind), found.append
        )
        return found[0]

    async def _skip(self, name: str, entry: Entry, watch: _Watch, found: Due, row: int) -> None:
        """Deal with times that are due, or were missed, while a delivery of the schedule waits."""
        times, now = len(found.fire) + len(found.missed), self._clock()
        state = self._settings.get(FIRED, name)
        assert state is not None
        assert found.seen is not None
        skipped = state.get("skipped", 0)
        if not skipped and (watch.told is None or now - watch.told >= SKIPPED_LINE_MS):
            watch.told, watch.skipping = now, True
            text = f"its times are skipped while delivery {row} has not begun: hostguard why {row}"
            self._tell_skipped(entry.schedule, text, row)
        later = Fired(
            seen=found.seen, last=state["last"], of=state["of"], row=state.get("row"), skipped=skipped + times
        )
        # Not worth a write to the card by itself: after a power cut they are skipped, or missed, again.
        await self._settings.change(FIRED.to(name, later), durable=False)
        self._counters.skipped[entry.schedule.mind] += times

    def _tell_skipped(self, schedule: Schedule, text: str, row: int | None = None) -> None:
        text = f"{schedule.mind}: schedule {schedule.name}: {text}"
        self._events.emit(Event.SKIPPED, text, mind=schedule.mind, schedule=schedule.name, delivery=row)

    def _tell_missed(self, entry: Entry, watch: _Watch, found: Due, now: int) -> None:
        """Log each missed time once, and how many are sent after all."""
        late = [time for time in found.fire if now - time > LATE_MS]
        times = [time for time in (*found.missed, *late) if time > watch.reported]
        if not times:
            return
        watch.reported = times[-1]
        told = [_shown(time, entry.zone) for time in times]
        if found.since is not None:
            told[0] = f"all before {_shown(found.since, entry.zone)}, too many to list, {told[0]}"
        lines = [", ".join(told[i : i + MISSED_PER_LINE]) for i in range(0, len(told), MISSED_PER_LINE)]
        lines[-1] += f"; {len(late)} of these are sent now" if late else "; none of these is sent"
        schedule = entry.schedule
        for line in lines:
            self._events.emit(
                Event.MISSED, f"{schedule.mind}: schedule {schedule.name} missed {line}", mind=schedule.mind,
                schedule=schedule.name,
            )  # fmt: skip

    def _last(self, name: str) -> int | None:
        state = self._settings.get(FIRED, name)
        return None if state is None else state["last"]


def _meant(schedule: Schedule) -> str:
    """What its times depend on: if that changes, none was missed."""
    return "at" if schedule.cron is None else f"{schedule.cron} {schedule.timezone}".strip()


def _gone(name: str) -> tuple[Change, Change]:
    return SCHEDULE.to(name, None), FIRED.to(name, None)


def _shown(time: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(time / 1000, zone).isoformat(sep=" ", timespec="minutes")
