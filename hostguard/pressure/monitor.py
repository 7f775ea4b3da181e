"""The loop that watches the disk: sample, rule, cap. It does not tick while no turn runs and all is calm.

Nothing here waits for a disk or for systemd: the counters come from memory, the rule is pure, and what is
done in addition to the cap is done in tasks of its own (freezer.py, throttle.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hostguard.core.clock import Clock
from hostguard.core.ports import Caps
from hostguard.core.settings import Level, Settings
from hostguard.core.signals import Redrive, Signal
from hostguard.linux.disk import UNKNOWN, Device
from hostguard.linux.psi import Trigger
from hostguard.pressure import saved_state
from hostguard.pressure.freezer import Freezer
from hostguard.pressure.rule import State, step
from hostguard.pressure.sample import Sample, disks, took
from hostguard.pressure.sampler import Sampler, boottime
from hostguard.pressure.throttle import Throttle
from hostguard.systemd.client import Systemd
from hostguard.telemetry.events import Event, Events
from hostguard.telemetry.timeline import Trouble
from hostguard.telemetry.timeline_recorder import TimelineRecorder
from hostguard.turns.live import Live

log = logging.getLogger(__name__)

CHANGES_KEPT = 20
SAMPLES_KEPT = 120  # two minutes of ticks: what led to a change
TICK_S = 1.0  # for readers
# When the trigger fires while no turn runs, ticks go on for AWAKE_S. If the disk is calm all the same, the
# pressure meant little (idle waiters of io_uring count, liburing#943), and the trigger rests.
AWAKE_S, REST_S = 5.0, 60.0
BEHIND_MAX = 1000  # samples, for a slow reader


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the level or the cap; `stamp` as in core/clock.py."""

    stamp: int
    level: str
    cap: int | None
    evidence: str


@dataclass(eq=False)
class Monitor:
    """Ticks while turns run or the disk is not calm. `redrive` reports that the admitted number changed."""

    _live: Live
    _systemd: Systemd
    _caps: Caps
    _events: Events
    _recorder: TimelineRecorder
    _freezer: Freezer
    _throttle: Throttle
    _redrive: Signal[Redrive]
    _clock: Clock

    def __post_init__(self) -> None:
        self.state = State(since=boottime())
        self.changes: deque[Change] = deque(maxlen=CHANGES_KEPT)
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self.device = UNKNOWN
        self.sampler = Sampler(self.device)
        self._trigger = Trigger(self._pressed)
        self._readers: set[asyncio.Queue[Sample]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._awake_until: float | None = None  # in the event loop's time, after the trigger fired
        self._closed = False

    def start(self, device: Device) -> None:
        """Begin to watch the disk. Call it once systemd is connected: the slice's cgroup is known then."""
        self._freezer.open()
        self._throttle.open()
        self.use(device)
        log.info("PSI trigger: %s", self._trigger.open())

    def use(self, device: Device) -> None:
        """Watch this disk from now on. Call it also after a reload of the configuration."""
        known = device.name == self.device.name
        self.device = device
        if not known:
            self.samples.clear()
            before, found = self.state, saved_state.recall(device.name) or State(since=boottime())
            self.state = replace(found, floor=self._settings.floor)
            self._report(before)
        self.sampler = Sampler(device, self._systemd.control_group)
        self._act()
        if self.state.level is not Level.CALM:
            self._set_timer(0)
        self.poke()

    async def close(self) -> None:
        """Stop watching, and undo what was done for a time."""
        self._closed = True
        self._trigger.close()
        self._set_timer(math.inf)
        self._recorder.store()
        await self._freezer.close()
        await self._throttle.close()

    def poke(self) -> None:
        """Something changed. If a turn runs and no tick is due, tick now, for later ones to compare."""
        self._note()
        if self._timer is None and len(self._live):
            self._set_timer(0)

    @contextmanager
    def reader(self) -> Iterator[asyncio.Queue[Sample]]:
        """A queue that gets each new sample, at least one a second. Beyond BEHIND_MAX they are lost."""
        queue: asyncio.Queue[Sample] = asyncio.Queue()
        self._readers.add(queue)
        if self._timer is None:
            self._set_timer(0)
        try:
            yield queue
        finally:
            self._readers.discard(queue)

    @property
    def admit(self) -> int | None:
        """How many turns pressure allows; None = no limit."""
        return self.state.admit

    @property
    def frozen(self) -> Collection[str]:
        """The units of the frozen turns, the youngest turn first."""
        return self._freezer.frozen.keys()

    @property
    def throttled(self) -> bool:
        """True while all turns together have a write limit of ours."""
        return self._throttle.limit is not None

    @property
    def since_ms(self) -> int:
        """When the level last changed, ms since the epoch by the clock as it is set now."""
        return self._clock.date() - round(1000 * (boottime() - self.state.since))

    def shown_changes(self) -> list[dict[str, Any]]:
        """The last changes of the level and the cap, with dates by the clock as it is set now."""
        now = self._clock.now()
        return [
            {"at": now.date_of(one.stamp), "level": one.level, "cap": one.cap, "evidence": one.evidence}
            for one in self.changes
        ]

    @property
    def _settings(self) -> Settings:
        return self._caps.config.pressure

    def _tick(self) -> None:
        self._timer = None
        before = self.state
        try:
            sample = self.sampler.sample(len(self._live), self._caps.global_cap())
            self.samples.append(sample)
            for reader in self._readers:
                if reader.qsize() < BEHIND_MAX:
                    reader.put_nowait(sample)
            self.state = step(before, sample, self._settings)
            self._report(before)
            if before.admit != self.state.admit:
                self._redrive.send(Redrive())
            self._act()
            self._note(_await_ms(before.last, sample, self.state.quiet_since))
        finally:  # whatever fails: the guard keeps watching
            self._set_timer(self._next())

    def _act(self) -> None:
        settings = self._settings
        if settings.on_stall == "freeze" and not self._caps.paused():
            self._freezer.follow(self.state, settings.freeze_max)
        else:
            self._freezer.thaw_all()
        wanted = None
        if settings.tighten is not None and self.device.node and self.state.level is not Level.CALM:
            wanted = (self.device.node, settings.tighten)
        self._throttle.follow(wanted)

    def _note(self, await_ms: int | None = None) -> None:
        state, configured, limit = self.state, self._caps.global_cap(), self._throttle.limit
        cap = min((cap for cap in (configured, state.admit) if cap is not None), default=None)
        # The level stays "stalled" until the disk has been well for a while.
        over = state.level is Level.STALLED and state.last is not None and state.stalled_at < state.last.at
        evidence = "" if over else state.evidence
        trouble = Trouble(evidence, configured, len(self.frozen), limit[1] if limit else None)
        self._recorder.note(state.level, cap, len(self._live), trouble, await_ms)

    def _next(self) -> float:
        if self._readers or self.frozen or self.throttled:
            return min(self.state.wait, TICK_S)
        if self._awake_until is not None and self.state.wait == math.inf:
            if asyncio.get_running_loop().time() < self._awake_until:
                return TICK_S
            self._awake_until = None
            self._trigger.rest(REST_S)
        return self.state.wait

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds < math.inf and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _pressed(self) -> None:
        if self._timer is None:
            self._awake_until = asyncio.get_running_loop().time() + AWAKE_S
            self._set_timer(0)

    def _report(self, before: State) -> None:
        now = self.state
        if (before.level, before.cap) == (now.level, now.cap):
            return
        saved_state.keep(self.device.name, now)
        self.changes.append(Change(self._clock.now().stamp, now.level, now.cap, now.evidence))
        cap = "" if now.cap == before.cap else f"; cap {self._shown(before)} -> {self._shown(now)}"
        self._events.emit(
            Event.PRESSURE, f"{now.level}: {now.evidence}{cap}", level=str(now.level), cap=now.cap,
            evidence=now.evidence, live=len(self._live),
        )  # fmt: skip

    def _shown(self, state: State) -> str:
        cap = self._caps.global_cap() if state.cap is None else state.cap
        return "unlimited" if cap is None else str(cap)


def _await_ms(before: Sample | None, now: Sample, quiet_since: float | None) -> int | None:
    """How long requests took since the last tick, or have waited while none completes; None: no request."""
    pair = disks(before, now)
    if pair is None:
        return None
    if pair[1].completed > pair[0].completed:
        return round(1000 * took(*pair))
    return None if quiet_since is None else round(1000 * (now.at - quiet_since))
