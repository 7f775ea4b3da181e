"""/v1/pressure: how the disk is and what follows, as hostguard-api(7) describes it. It reads memory only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.api.http import Stream, on
from hostguard.api.views import effective_cap
from hostguard.gate.gate import Gate
from hostguard.pressure.monitor import BEHIND_MAX, Monitor
from hostguard.pressure.sample import Sample, disks, took
from hostguard.pressure.sampler import boottime
from hostguard.pressure.trace import sample_line


class Pressure:
    """The handlers of this module."""

    def __init__(self, monitor: Monitor, gate: Gate) -> None:
        self._monitor, self._gate = monitor, gate

    @on("GET", "/v1/pressure")
    async def _now(self, request: Request) -> Response:
        monitor, host = self._monitor, self._gate.host()
        device, sampler = monitor.device, monitor.sampler
        return JSONResponse({
            **pressed(monitor),
            "configured": host.cap,
            "effective_cap": effective_cap(host),
            "psi": sampler.psi_reason,
            "disk": sampler.disk_reason,
            "device": {"node": device.node, "name": device.name, "reason": device.reason},
            "live": host.live,
            "samples": [asdict(sample) for sample in monitor.samples],
        })  # fmt: skip

    @on("GET", "/v1/pressure/samples")
    async def _samples(self, request: Request) -> Response:
        # JSON lines, one for each sample of the disk from now on.

        async def lines() -> AsyncGenerator[bytes, None]:
            with self._monitor.reader() as queue:
                while queue.qsize() < BEHIND_MAX:
                    yield sample_line(await queue.get())

        return Stream(lines(), "application/x-ndjson")


def pressed(monitor: Monitor) -> dict[str, Any]:
    """How the disk is, how many turns that allows and why, and the last changes of that."""
    state, step_at = monitor.state, monitor.state.next_step_at
    recent = list(monitor.samples)[-2:]
    last = recent[-1] if recent else None
    return {
        "level": state.level,
        "since": monitor.since_ms,
        "evidence": state.evidence,
        "cap": state.cap,
        "admit": state.admit,
        "next_step_in_s": max(0.0, step_at - boottime()) if step_at is not None else None,
        "looked_ms": round(1000 * (boottime() - last.at)) if last else None,
        "in_flight": last.disk.in_flight if last and last.disk else None,
        **_rates(recent),
        "frozen": list(monitor.frozen),
        "tightened": monitor.throttled,
        "changes": monitor.shown_changes(),
    }


def _rates(samples: Sequence[Sample]) -> dict[str, Any]:
    """How the disk was between the last two samples: ms a request took, and how long any was in flight."""
    rates: dict[str, Any] = {"await_ms": None, "busy_percent": None}
    pair = disks(*samples) if len(samples) == 2 else None
    if pair is not None:
        busy_s, span_s = (pair[1].busy_ms - pair[0].busy_ms) / 1000, samples[1].at - samples[0].at
        # Kernels before 6.10 let busy_ms jump.
        rates["busy_percent"] = round(100 * min(busy_s / span_s, 1)) if span_s > 0 else None
        rates["await_ms"] = round(took(*pair) * 1000, 1)
    return rates
