"""What `hostguard top` has seen, for tests of what it makes of that."""

from __future__ import annotations

from typing import Any

from statuses import MIB, NOW, stalled

from hostguard.cli.top.model import Look, View, view

USED = {"cpu_ms": 1000, "read_bytes": 0, "write_bytes": 5 * MIB}
BEFORE = Look(10.0, {"hostguard-turn-ada-17.scope": USED})


def seen(told: dict[str, Any] | None = None, wanted: str = "") -> View:
    """Two seconds after BEFORE."""
    return view(stalled() if told is None else told, NOW, 12.0, BEFORE, wanted)
