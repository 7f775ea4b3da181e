"""The time zones that schedules name."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterable
from datetime import UTC, tzinfo
from pathlib import Path

LOCALTIME = Path("/etc/localtime")


def zones(names: Iterable[str]) -> dict[str, tzinfo | None]:
    """Time zones by name; "" is the host's. None: unknown on this host. Blocks: reads files."""
    found: dict[str, tzinfo | None] = {}
    for name in names:
        try:
            found[name] = zoneinfo.ZoneInfo(name) if name else _host_zone()
        except (zoneinfo.ZoneInfoNotFoundError, OSError, ValueError):
            found[name] = None
    return found


def _host_zone() -> tzinfo:
    try:
        with LOCALTIME.open("rb") as file:
            return zoneinfo.ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return UTC
