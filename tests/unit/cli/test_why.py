"""The sentence of `hostguard why`, for each reason that has something, or nothing, in the way."""

from __future__ import annotations

import pytest

from hostguard.api.views import sentence
from hostguard.core.model import Hold
from hostguard.core.reasons import Reason
from hostguard.core.settings import Level

UNIT = "hostguard-turn-ada-16.scope"


@pytest.mark.parametrize(
    ("reason", "blocker", "said"),
    [
        (Reason.SESSION_BUSY, UNIT, "its session is busy, behind turn 16"),
        (Reason.MIND_BUSY, UNIT, "the mind is busy, no slot of its own cap is free, behind turn 16"),
        (Reason.MIND_BUSY, "the cap of ada is 0", "the mind is busy, no slot of its own cap is free: the cap of ada is 0"),
        (Reason.GLOBAL_CAP, UNIT, "no slot of the global cap is free, behind turn 16"),
        (
            Reason.MIND_BUSY, "hostguard-outside-ada-0123abcd.scope",
            "the mind is busy, no slot of its own cap is free:"
            " what a turn left outside of its scope, outside-0123abcd, keeps it",
        ),
        (Reason.GLOBAL_CAP, "the global cap is 0", "no slot of the global cap is free: the global cap is 0"),
        (Reason.PRESSURE, UNIT, "the disk is stalled (nothing moves), and fewer turns may run, behind turn 16"),
        (Reason.GLOBAL_CAP, "run-u12.scope", "no slot of the global cap is free, behind run-u12.scope"),
        (Reason.MIND_DOWN, "connection refused", "connection refused"),
    ],
)  # fmt: skip
def test_it_says_what_is_missing_and_behind_what(reason: Reason, blocker: str, said: str) -> None:
    assert sentence(Hold(reason, blocker), Level.STALLED, "nothing moves") == said
