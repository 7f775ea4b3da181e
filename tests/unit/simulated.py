"""A host in a box for the rule of pressure: turns that write, one disk that serves them, and the guard's ticks.

Time is simulated, and the loop is closed: how many turns run is what the rule allowed, and how long a request
takes is how many are before it. Counters come out as a kernel from 5.17 on has them.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hostguard.core.settings import Level, Settings
from hostguard.pressure.rule import State, step
from hostguard.pressure.sample import Disk, Psi, Sample

Window = tuple[float, float]


def between(begin: float, end: float, there: float, else_: float = 0.012) -> Callable[[float], float]:
    """What holds from `begin` on until `end`, and at other times; for World."""
    return lambda at: there if begin <= at < end else else_


class Shown(NamedTuple):
    """What the guard says from `at` on."""

    at: float
    level: Level
    cap: int | None


class SimDisk:
    """Serves one request after another. `service` says how many seconds one takes that is begun at a time."""

    def __init__(self, service: Callable[[float], float], stops: Sequence[Window]) -> None:
        self._service, self._stops = service, stops
        self._now = self._served_until = 0.0
        self._pending: deque[tuple[float, float]] = deque()  # submitted, completes
        self._ready: list[float] = []  # when a writer that waits for nothing submits next
        self._writers = 0
        self.writes, self.write_ms, self.busy = 0, 0.0, 0.0

    def advance(self, to: float, writers: int, think: float) -> None:
        """Let time pass until `to`, with so many writers, each with a pause of `think` after a request."""
        for _ in range(writers - self._writers):
            heapq.heappush(self._ready, self._now)
        self._writers = max(writers, self._writers)
        while True:
            submit = self._ready[0] if self._ready else math.inf
            complete = self._pending[0][1] if self._pending else math.inf
            at = min(submit, complete, to)
            self.busy += (at - self._now) if self._pending else 0.0
            self._now = at
            if at == to:
                return
            if complete <= submit:
                began, _ = self._pending.popleft()
                self.writes += 1
                self.write_ms += 1000 * (at - began)
                if self._writers > writers:
                    self._writers -= 1
                else:
                    heapq.heappush(self._ready, at + think)
            else:
                heapq.heappop(self._ready)
                if self._writers > writers:
                    self._writers -= 1
                    continue
                begins = max(at, self._served_until)
                self._served_until = begins + self._service(begins)
                for stop, go in self._stops:
                    if begins < go and self._served_until > stop:
                        self._served_until += go - max(stop, begins)
                self._pending.append((at, self._served_until))

    @property
    def counters(self) -> Disk:
        """What the kernel would show now."""
        busy = int(1000 * self.busy)
        return Disk(0, self.writes, 0, int(self.write_ms), busy, len(self._pending), 4096 * self.writes)


@dataclass
class World:
    """What happens on the host. Times and windows are seconds from the start."""

    service: Callable[[float], float] = lambda _: 0.012  # a request on a healthy card (facts.md)
    stops: Sequence[Window] = ()  # the disk completes nothing
    cap: int | None = 8  # configured
    turns: int | Callable[[float], int] = 100  # that want to run
    turn: float = 60.0  # seconds each runs
    think: float = 0.05
    outside: int | Callable[[float], int] = 0  # writers that no cap binds
    unseen: Sequence[Window] = ()  # no tick happens: SIGSTOP, or the host sleeps
    asleep: Sequence[Window] = ()  # and the disk does nothing either
    gone: Sequence[Window] = ()  # the disk is not listed
    resets: Sequence[float] = ()  # its counters start at 0
    psi: str | None = "honest"  # or "always", "never"; None: the kernel has none
    settings: Settings = field(default_factory=Settings)
    states: list[State] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def run(self, until: float) -> list[Shown]:
        """What the guard said, each time that it changed."""
        disk, zero = SimDisk(self.service, self.stops), Disk(0, 0, 0, 0, 0, 0, 0)
        state, ends, shown = State(), list[float](), [Shown(0.0, Level.CALM, None)]
        resets, at = list(self.resets), 0.0
        while at < until:
            ends = [end for end in ends if end > at]
            room = min(_or_inf(self.cap), _or_inf(state.admit), _at(self.turns, at)) - len(ends)
            # Turns that start together do not end together.
            ends += [
                at + self.turn * (0.6 + 0.8 * ((7 * i + len(ends)) % 10) / 10)
                for i in range(int(max(room, 0)))
            ]
            disk.advance(at, len(ends) + int(_at(self.outside, at)), self.think)
            counters = disk.counters
            if resets and at >= resets[0]:
                resets.pop(0)
                zero = counters
            sample = Sample(at, len(ends), self.cap, self._seen(counters, zero, at), *self._psi(disk, at))
            state = step(state, sample, self.settings)
            self.samples.append(sample)
            self.states.append(state)
            if (state.level, state.cap) != shown[-1][1:]:
                shown.append(Shown(at, state.level, state.cap))
            at = round(at + min(state.wait, 1.0), 6)
            for begin, end in (*self.unseen, *self.asleep):
                at = end if begin <= at < end else at
        return shown

    def _seen(self, now: Disk, zero: Disk, at: float) -> Disk | None:
        if any(begin <= at < end for begin, end in self.gone):
            return None
        return Disk(
            0, now.writes - zero.writes, 0, now.write_ms - zero.write_ms, now.busy_ms - zero.busy_ms,
            now.in_flight, now.write_bytes - zero.write_bytes,
        )  # fmt: skip

    def _psi(self, disk: SimDisk, at: float) -> tuple[Psi | None, Psi | None]:
        if self.psi is None:
            return None, None
        some = {"honest": disk.busy, "always": at, "never": 0.0}[self.psi]
        return (Psi(int(1e6 * some)),) * 2


def _at(value: float | Callable[[float], float], at: float) -> float:
    return value(at) if callable(value) else value


def _or_inf(cap: int | None) -> float:
    return math.inf if cap is None else cap
