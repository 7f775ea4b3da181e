"""What the API shows of pressure, but for the raw samples. Reads memory only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hostguard.gate.dispatcher import Dispatcher
from hostguard.pressure.sample import Sample, disks, took
from hostguard.pressure.sampler import boottime


def pressed(manager: Dispatcher) -> dict[str, Any]:
    """How the disk is, how many turns that allows and why, and the last changes of that."""
    watcher = manager.watcher
    state, step_at = watcher.state, watcher.state.next_step_at
    recent = list(watcher.samples)[-2:]
    last = recent[-1] if recent else None
    return {
        "level": state.level,
        "since": watcher.since_ms,
        "evidence": state.evidence,
        "cap": state.cap,
        "admit": state.admit,
        "next_step_in_s": max(0.0, step_at - boottime()) if step_at is not None else None,
        "looked_ms": round(1000 * (boottime() - last.at)) if last else None,
        "in_flight": last.disk.in_flight if last and last.disk else None,
        **_rates(recent),
        "frozen": list(watcher.frozen),
        "tightened": watcher.throttled,
        "changes": [asdict(change) for change in watcher.changes],
    }


def _rates(samples: Sequence[Sample]) -> dict[str, Any]:
    """How the disk was between the last two looks: ms a request took, and how long any was in flight."""
    rates: dict[str, Any] = {"await_ms": None, "busy_percent": None}
    pair = disks(*samples) if len(samples) == 2 else None
    if pair is not None:
        busy_s, span_s = (pair[1].busy_ms - pair[0].busy_ms) / 1000, samples[1].at - samples[0].at
        # Kernels before 6.10 let busy_ms jump (facts.md).
        rates["busy_percent"] = round(100 * min(busy_s / span_s, 1)) if span_s > 0 else None
        rates["await_ms"] = round(took(*pair) * 1000, 1)
    return rates
