"""Reads back the limits that the kernel applies to turns, and keeps a verdict on each limit.

It reads the first turn with each set of limits, while its process still waits, and then one turn a minute,
because the scheduler or a slice may be changed by hand; and hostguard.slice each time that it is throttled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path

from hostguard.core.model import Config, Limits
from hostguard.core.signals import SliceThrottled
from hostguard.core.tasks import Tasks
from hostguard.linux.disk import UNKNOWN, Device
from hostguard.linux.limits import Kernel, Label, Verdict, configured, judge, read_applied, read_kernel, worst
from hostguard.telemetry.events import Event, Events

log = logging.getLogger(__name__)
Verdicts = tuple[Verdict, ...]

AGAIN_S = 60.0
LOOK_S = 0.5  # a turn waits no longer: reads of sysfs hang while the scheduler of a stalled disk is changed


class Readback:
    """Keeps the verdicts on the configured limits."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._tasks = Tasks()
        self._device = UNKNOWN
        self._known: dict[Limits, Verdicts] = {}
        self._slice: dict[Limits, Verdicts] = {}  # of `tighten`
        self._told: dict[str, Label] = {}
        self._looked_at: dict[Limits, float] = {}  # time.monotonic()
        self._look: asyncio.Future[Verdicts | None] | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        """One verdict for each configured limit; if minds differ, the worst."""
        turns = worst(verdict for known in self._known.values() for verdict in known)
        return turns + [_of_slice(verdict) for known in self._slice.values() for verdict in known]

    async def configure(self, config: Config, device: Device) -> None:
        """Follow a new configuration. Limits that cannot work on this host are known before a turn runs."""
        self._device = device
        try:
            kernel = await asyncio.to_thread(read_kernel, device)
        except OSError as error:
            log.warning("cannot read what the kernel supports: %s", error)
            kernel = Kernel(device)
        self._known = {limits: judge(limits, kernel, None) for limits in configured(config)}
        self._looked_at = {}
        tighten = Limits(write_bandwidth=config.pressure.tighten)
        self._slice = {tighten: judge(tighten, kernel, None)}
        self._tell()

    async def look(self, cgroup: Path, limits: Limits) -> None:
        """Read back the limits of a turn that is about to run, if a check is due."""
        now = time.monotonic()
        if limits not in self._known or now - self._looked_at.get(limits, -AGAIN_S) < AGAIN_S:
            return
        if not self._busy():
            self._looked_at[limits] = now
            await self._begin(cgroup, limits, self._known)

    def slice_throttled(self, fact: SliceThrottled) -> None:
        """Read hostguard.slice back in the background."""
        self._tasks.start(self._look_at_slice(fact.cgroup))

    async def _look_at_slice(self, cgroup: Path) -> None:
        for limits in self._slice:
            if not self._busy():
                await self._begin(cgroup, limits, self._slice)

    def _busy(self) -> bool:
        return self._look is not None and not self._look.done()

    async def _begin(self, cgroup: Path, limits: Limits, into: dict[Limits, Verdicts]) -> None:
        self._look = asyncio.ensure_future(asyncio.to_thread(_read, self._device, cgroup, limits))
        self._look.add_done_callback(lambda look: self._take(look, limits, into))
        await asyncio.wait([self._look], timeout=LOOK_S)

    def _take(
        self, look: asyncio.Future[Verdicts | None], limits: Limits, into: dict[Limits, Verdicts]
    ) -> None:
        if look.cancelled() or not (into is self._known or into is self._slice):  # configured anew meanwhile
            return
        error = look.exception()
        if error is not None:
            log.warning("cannot read the limits that the kernel applies: %s", error)
        elif (found := look.result()) is not None:
            into[limits] = found
            self._tell()

    def _tell(self) -> None:
        """Report each change of a label once; limits that are enforced from the start are not reported."""
        labels = {verdict.limit: verdict for verdict in self.verdicts}
        for limit, verdict in labels.items():
            if verdict.label in (self._told.get(limit, Label.ENFORCED), Label.UNKNOWN):
                continue
            self._told[limit] = verdict.label
            text = f"{limit} is {verdict.label}: {verdict.why}"
            self._events.emit(Event.ENFORCEMENT, text, limit=limit, label=verdict.label)
        self._told = {limit: label for limit, label in self._told.items() if limit in labels}


def _of_slice(verdict: Verdict) -> Verdict:
    why = "to be read back once it is set" if verdict.label is Label.UNKNOWN else verdict.why
    return replace(verdict, limit="tighten", why=why)


def _read(device: Device, cgroup: Path, limits: Limits) -> Verdicts | None:
    kernel = read_kernel(device)
    applied = read_applied(cgroup, kernel)
    return None if applied is None else judge(limits, kernel, applied)
