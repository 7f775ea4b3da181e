"""The sentence of `hostguard why`, for each reason that has something, or nothing, in the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hostguard.model import Hold, Reason
from hostguard.pressure import Level
from hostguard.views import _sentence

UNIT = "hostguard-turn-ada-16.scope"
MANAGER: Any = SimpleNamespace(
    watcher=SimpleNamespace(state=SimpleNamespace(level=Level.STALLED, evidence="nothing moves"))
)


@pytest.mark.parametrize(
    ("reason", "blocker", "said"),
    [
        (Reason.SESSION_BUSY, UNIT, f"its session is busy, behind {UNIT}"),
        (Reason.MIND_BUSY, UNIT, f"the mind is busy, no slot of its own cap is free, behind {UNIT}"),
        (Reason.MIND_BUSY, "the cap of ada is 0", "the mind is busy, no slot of its own cap is free: the cap of ada is 0"),
        (Reason.GLOBAL_CAP, UNIT, f"no slot of the global cap is free, behind {UNIT}"),
        (Reason.GLOBAL_CAP, "the global cap is 0", "no slot of the global cap is free: the global cap is 0"),
        (Reason.PRESSURE, UNIT, f"the disk is stalled (nothing moves), and fewer turns may run, behind {UNIT}"),
        (Reason.MIND_DOWN, "connection refused", "connection refused"),
    ],
)  # fmt: skip
def test_it_says_what_is_missing_and_behind_what(reason: Reason, blocker: str, said: str) -> None:
    assert _sentence(MANAGER, Hold(reason, blocker)) == said
