"""The loop that watches the disk: sample, rule, cap. While nothing runs and all is calm it does not tick.

Nothing here waits for a disk or for systemd: what the kernel says is read from memory, the rule is pure, and
what is done beyond the cap is done beside the loop (freezing.py, tightening.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hostguard.core.clock import now_ms
from hostguard.core.settings import Level, Settings
from hostguard.linux.disk import Device
from hostguard.linux.psi import Trigger
from hostguard.pressure import saved_state
from hostguard.pressure.freezer import Freezer
from hostguard.pressure.rule import State, step
from hostguard.pressure.sample import Sample, disks, took
from hostguard.pressure.sampler import Sampler, boottime
from hostguard.pressure.throttle import Throttle
from hostguard.telemetry.events import Event
from hostguard.telemetry.timeline_recorder import TimelineRecorder

if TYPE_CHECKING:
    from hostguard.gate.dispatcher import Dispatcher

log = logging.getLogger(__name__)

CHANGES_KEPT = 20
SAMPLES_KEPT = 120  # two minutes of ticks: what led to a change
TICK_S = 1.0  # for those who record
# The trigger calls while no turn runs: look for so long. If the disk is calm all the same, the call meant
# little (idle waiters of io_uring count as pressure, liburing#943): then let it rest.
AWAKE_S, REST_S = 5.0, 60.0
BEHIND_MAX = 1000  # samples, for a reader that is slow


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the level or the cap; `at` is ms since the epoch."""

    at: int
    level: str
    cap: int | None
    evidence: str


class Monitor:
    """Ticks while turns run or the disk is not calm, and tells the manager how many turns may run."""

    def __init__(self, manager: Dispatcher) -> None:
        self._manager = manager
        self.state = State(since=boottime())
        self.changes: deque[Change] = deque(maxlen=CHANGES_KEPT)
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self.device = Device(None, None, "not looked at yet")
        self.sampler = Sampler(self.device)
        runner = manager.runner
        self.freezer = Freezer(runner, manager.events, manager.residents.stood_still)
        self.tightener = Throttle(runner.systemd)
        self.recorder = TimelineRecorder(manager)
        self._trigger = Trigger(self._pressed)
        self._readers: set[asyncio.Queue[Sample]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._awake_until: float | None = None  # of the event loop's clock: the trigger called
        self._closed = False

    def start(self, device: Device) -> None:
        """Begin to watch the disk. Call it once systemd is connected: the slice's place is known then."""
        self.freezer.open()
        self.tightener.open()
        self.use(device)
        log.info("PSI trigger: %s", self._trigger.open())

    def use(self, device: Device) -> None:
        """Watch this disk from now on; also when the configuration was read again."""
        known = device.name == self.device.name
        self.device = device
        if not known:
            self.samples.clear()
            before, found = self.state, saved_state.recall(device.name) or State(since=boottime())
            self.state = replace(found, floor=self._settings.floor)
            self._tell(before)
        self.sampler = Sampler(device, self._manager.runner.systemd.control_group)
        self._act()
        if self.state.level is not Level.CALM:
            self._set_timer(0)
        self.poke()

    async def close(self) -> None:
        """Look no more, and undo what was done for a time."""
        self._closed = True
        self._trigger.close()
        self._set_timer(math.inf)
        self.recorder.store()
        await self.freezer.close()
        await self.tightener.close()

    def poke(self) -> None:
        """Something changed: if nobody looks and a turn runs, look now, for the next look to compare with."""
        self.recorder.note()
        if self._timer is None and len(self._manager.runner.live):
            self._set_timer(0)

    @contextmanager
    def reader(self) -> Iterator[asyncio.Queue[Sample]]:
        """A queue that gets each sample from now on, one a second at least. Over BEHIND_MAX they are lost."""
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
    def since_ms(self) -> int:
        """When the level changed last, ms since the epoch."""
        return now_ms() - round(1000 * (boottime() - self.state.since))

    @property
    def _settings(self) -> Settings:
        return self._manager.policy.config.pressure

    def _tick(self) -> None:
        self._timer = None
        manager, before = self._manager, self.state
        try:
            sample = self.sampler.sample(len(manager.runner.live), manager.policy.global_cap())
            self.samples.append(sample)
            for reader in self._readers:
                if reader.qsize() < BEHIND_MAX:
                    reader.put_nowait(sample)
            self.state = step(before, sample, self._settings)
            self._tell(before)
            if before.admit != self.state.admit:
                manager.pump()
            self._act()
            self.recorder.note(_await_ms(before.last, sample, self.state.quiet_since))
        finally:  # whatever fails: the guard goes on looking
            self._set_timer(self._next())

    def _act(self) -> None:
        settings = self._settings
        if settings.on_stall == "freeze" and not self._manager.policy.paused():
            self.freezer.follow(self.state, settings.freeze_max)
        else:
            self.freezer.thaw_all()
        wanted = None
        if settings.tighten is not None and self.device.node and self.state.level is not Level.CALM:
            wanted = (self.device.node, settings.tighten)
        self.tightener.follow(wanted)

    def _next(self) -> float:
        if self._readers or self.freezer.frozen or self.tightener.limit:
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

    def _tell(self, before: State) -> None:
        now = self.state
        if (before.level, before.cap) == (now.level, now.cap):
            return
        saved_state.keep(self.device.name, now)
        self.changes.append(Change(now_ms(), now.level, now.cap, now.evidence))
        cap = "" if now.cap == before.cap else f"; cap {self._cap(before)} -> {self._cap(now)}"
        self._manager.events.emit(
            Event.PRESSURE, f"{now.level}: {now.evidence}{cap}", level=str(now.level), cap=now.cap,
            evidence=now.evidence, live=len(self._manager.runner.live),
        )  # fmt: skip

    def _cap(self, state: State) -> str:
        cap = self._manager.policy.global_cap() if state.cap is None else state.cap
        return "unlimited" if cap is None else str(cap)


def _await_ms(before: Sample | None, now: Sample, quiet_since: float | None) -> int | None:
    """What a request took since the look before, or has waited while none completes; None: no request."""
    pair = disks(before, now)
    if pair is None:
        return None
    if pair[1].completed > pair[0].completed:
        return round(1000 * took(*pair))
    return None if quiet_since is None else round(1000 * (now.at - quiet_since))
