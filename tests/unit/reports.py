"""What reports are made of, for tests."""

from __future__ import annotations

from typing import Any

from statuses import NOW, status

from hostguard.telemetry.summary import make
from hostguard.telemetry.timeline_rows import Ended

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
LONG = 2 * HOUR  # in steps of a minute


def ended(name: str, ago: int, ran: int, **more: Any) -> Ended:
    """A turn that began `ago` ms before now and ran for `ran` ms."""
    row = Ended(name, True, ran, NOW - ago + ran, 0, 0, None, None, None, None)
    return row._replace(**more)


def made(rows: Any = (), points: Any = (), incidents: Any = (), span: int = LONG, **more: Any) -> Any:
    return make(status(**more), rows, points, incidents, NOW, span)
