"""/metrics: what Prometheus scrapes, as hostguard-api(7) describes it. It answers from memory.

The library is imported at the first scrape: it costs a megabyte. Every name begins with hostguard_, so that
node_exporter can show the metrics with its own (`hostguard metrics --textfile`).
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from hostguard.api.http import on
from hostguard.api.views import effective_cap
from hostguard.core.errors import unavailable
from hostguard.core.model import Mind
from hostguard.core.ports import HeldRows
from hostguard.core.reasons import Reason
from hostguard.core.settings import Level
from hostguard.gate.backlog import Backlog
from hostguard.gate.gate import Gate
from hostguard.gate.ledger import Ledger
from hostguard.gate.policy import Policy
from hostguard.linux.process import storage
from hostguard.pressure.monitor import Monitor
from hostguard.store.requests import ANSWER_S
from hostguard.telemetry.counters import EXITS_MAX, Counters, Histogram
from hostguard.telemetry.problems import CODES
from hostguard.turns.live import Live

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MINDS_MAX = 100  # minds with series of their own
Labels = tuple[str, ...]  # names, or values, of one series
Values = Mapping[Labels, float]
OTHER = "#other"  # no mind has such a name: minds above MINDS_MAX, and what is left of removed minds
LIBRARY = "prometheus_client"
FLAGS = {  # of a mind in the status
    "down": "1 if the mind's server takes no connections.",
    "broken": "1 if the mind's user, program or sandbox is not there, so that its deliveries are held.",
    "frozen": "1 if the mind's service or one of its turns is frozen.",
}


@dataclass(eq=False)
class Metrics:
    """Reads the guard's memory, and counters of the kernel, which are in memory too."""

    _policy: Policy
    _live: Live
    _gate: Gate
    _backlog: Backlog
    _held_back: HeldRows
    _ledger: Ledger
    _monitor: Monitor
    _counts: Counters
    _status: Callable[[], Mapping[str, Any]]
    _shown: Collection[str] = field(default=(), init=False)

    @on("GET", "/metrics", reads=True)
    async def _get(self, request: Request) -> Response:
        try:
            library = await asyncio.wait_for(asyncio.to_thread(import_module, LIBRARY), ANSWER_S)
        except TimeoutError:
            raise unavailable("the disk does not answer; hostguard status does") from None
        return Response(self.text(), headers={"Content-Type": library.CONTENT_TYPE_LATEST})

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    @property
    def _configured(self) -> Mapping[str, Mind]:
        return self._policy.config.minds

    def collect(self) -> Iterator[Metric]:
        """All metrics, for prometheus_client."""
        self._shown = frozenset(islice(self._configured, MINDS_MAX))
        yield from self._trouble(self._status())
        yield from self._turns()
        yield from self._queue()
        yield from self._pressure()
        yield from self._disk()
        if (own := storage(os.getpid())) is not None:
            text = "Bytes that hostguardd itself wrote to storage."
            yield _counter("hostguard_written_bytes", text, (), {(): own[1]})

    def _turns(self) -> Iterator[Metric]:
        counts, host = self._counts, self._gate.host()
        text = "Live turns: scopes, and starts in progress."
        active = Counter(self._label(turn.live.mind) for turn in self._live)
        yield _gauge("hostguard_turns_active", text, ("mind",), self._zeros() | _keyed(active))
        text = "Number of turns that may run at once by the configuration; +Inf: no limit."
        yield _gauge("hostguard_turns_cap", text, (), {(): _or_inf(host.cap)})
        text = "Number of turns that may run at once now: the cap, or fewer under pressure; +Inf: no limit."
        yield _gauge("hostguard_turns_effective_cap", text, (), {(): _or_inf(effective_cap(host))})
        text = "Turns that started."
        yield self._by_mind("hostguard_turns_started", text, counts.started)
        text = "Turns that ended, by the outcome that hostguard-api(7) lists: exited, stopped, done, ..."
        ended: Counter[Labels] = Counter()
        for (mind, outcome), count in counts.ended.items():
            if mind in self._configured:
                ended[self._label(mind), outcome] += count
        yield _counter("hostguard_turns_ended", text, ("mind", "result"), ended)
        text = f"Turns that ended with an exit status; beyond {EXITS_MAX} different ones of a mind: other."
        exits: Counter[Labels] = Counter()
        for (mind, status), count in counts.exits.items():
            if mind in self._configured:
                exits[self._label(mind), status] += count
        yield _counter("hostguard_turn_exits", text, ("mind", "exit"), exits)
        text = "Turns that could not or must not be started, or whose message the mind refused."
        yield self._by_mind("hostguard_turn_start_failures", text, counts.not_started)
        text = "Time from the gate's decision to start a turn until the turn works."
        yield _histogram("hostguard_turn_handoff_seconds", text, (), {(): counts.handoff_s})
        text = "Bytes that turns wrote to storage; counted when a turn ends, if the kernel counts them."
        yield self._by_mind("hostguard_turns_written_bytes", text, self._ledger.written)

    def _queue(self) -> Iterator[Metric]:
        counts, backlog = self._counts, self._backlog
        text = "Deliveries that wait: held (due), later (not due yet), batching, gated (no route matches)."
        waiting: Counter[Labels] = Counter()
        for mind in dict.fromkeys((*self._configured, *backlog.mind_names())):
            label, held = self._label(mind), backlog.count(mind)
            batching, gated = self._held_back.counts(mind)
            waiting[label, "held"] += held
            waiting[label, "later"] += backlog.total(mind) - held
            waiting[label, "batching"] += batching
            waiting[label, "gated"] += gated
        yield _gauge("hostguard_queue_deliveries", text, ("mind", "state"), waiting)
        text = "New holds, by reason."
        zeros: dict[Labels, float] = {(str(reason),): 0.0 for reason in Reason}
        yield _counter("hostguard_holds", text, ("reason",), zeros | _keyed(counts.holds))
        text = "How long deliveries were held before they went into a turn, by the first reason."
        held_s: dict[Labels, Histogram] = {(reason,): times for reason, times in counts.held_s.items()}
        yield _histogram("hostguard_hold_seconds", text, ("reason",), held_s)
        text = "Deliveries that became dead letters after ten failed attempts; see hostguard dead list."
        yield self._by_mind("hostguard_dead_letters", text, counts.dead)
        text = "Times of schedules that were skipped, because the message of an earlier time had not begun."
        yield self._by_mind("hostguard_schedule_skips", text, counts.skipped)

    def _trouble(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        text = (
            "1 for a problem that hostguard status shows now, 0 for others, by the code of hostguard-api(7)."
        )
        now = {(problem["code"],): 1.0 for problem in status["problems"]}
        zeros: dict[Labels, float] = {(code,): 0.0 for code in CODES}
        yield _gauge("hostguard_problem", text, ("code",), zeros | now)
        minds = [mind for mind in status["minds"] if mind["name"] in self._configured]
        in_a_row, dead, *flags = (self._zeros() for _ in range(5))
        for mind in minds:
            label = (self._label(mind["name"]),)
            streak = mind["failures"]["in_a_row"] if mind["failures"] else 0
            in_a_row[label] = max(in_a_row.get(label, 0), streak)
            dead[label] = dead.get(label, 0) + mind["dead"]
            for values, name in zip(flags, FLAGS, strict=True):
                values[label] = values.get(label, 0) + bool(mind[name])
        text = "How many of the mind's last turns have failed, one after another."
        yield _gauge("hostguard_mind_failures_in_a_row", text, ("mind",), in_a_row)
        text = "Dead letters that wait for a person: see hostguard dead list."
        yield _gauge("hostguard_dead_letters_kept", text, ("mind",), dead)
        for values, (name, text) in zip(flags, FLAGS.items(), strict=True):
            yield _gauge(f"hostguard_mind_{name}", text, ("mind",), values)

    def _pressure(self) -> Iterator[Metric]:
        level, levels = self._monitor.state.level, self._counts.levels
        text = "1 for the current level of pressure, 0 for the others."
        now: Values = {(str(name),): float(name is level) for name in Level}
        yield _gauge("hostguard_pressure_level", text, ("level",), now)
        text = "Changes of the pressure to this level."
        yield _counter("hostguard_pressure_changes", text, ("level",), {(str(n),): levels[n] for n in Level})

    def _disk(self) -> Iterator[Metric]:
        name = self._monitor.device.name
        disk, _, _ = self._monitor.sampler.read()
        if name is None or disk is None:
            return
        labels = ("device", "op")
        done = {"read": disk.reads, "write": disk.writes, "flush": disk.flushes}
        text = "Requests that the guarded disk completed."
        counts: Values = {(name, op): count for op, count in done.items()}
        yield _counter("hostguard_device_requests", text, labels, counts)
        took = {"read": disk.read_ms, "write": disk.write_ms, "flush": disk.flush_ms}
        text = "Total time of these requests; divided by their number, it is the latency of the disk."
        times: Values = {(name, op): ms / 1000 for op, ms in took.items()}
        yield _counter("hostguard_device_request_seconds", text, labels, times)
        text = "Requests that the guarded disk has not completed."
        yield _gauge("hostguard_device_requests_in_flight", text, ("device",), {(name,): disk.in_flight})

    def _label(self, mind: str) -> str:
        return mind if mind in self._shown else OTHER

    def _zeros(self) -> dict[Labels, float]:
        """The minds with series of their own: only a counter that is there at 0 shows its first rise."""
        return {(mind,): 0.0 for mind in self._configured if mind in self._shown}

    def _by_mind(self, name: str, text: str, counts: Mapping[str, float]) -> Metric:
        """A counter. What a mind counted that was taken out of the configuration is left out."""
        values = self._zeros()
        for mind, count in counts.items():
            if mind in self._configured:
                label = (self._label(mind),)
                values[label] = values.get(label, 0.0) + count
        return _counter(name, text, ("mind",), values)


def _counter(name: str, text: str, labels: Labels, values: Values) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _gauge(name: str, text: str, labels: Labels, values: Values) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _histogram(name: str, text: str, labels: Labels, values: Mapping[Labels, Histogram]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    for of, histogram in values.items():
        bounds = [*map(str, histogram.bounds), "+Inf"]
        family.add_metric(of, list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum)
    return family


def _keyed(counts: Mapping[str, float]) -> dict[Labels, float]:
    return {(name,): count for name, count in counts.items()}


def _or_inf(cap: int | None) -> float:
    return math.inf if cap is None else cap
