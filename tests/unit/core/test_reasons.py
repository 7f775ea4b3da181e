"""Every reason to wait says whom it holds, and why in words."""

from __future__ import annotations

import json

import pytest

from hostguard.api.views import sentence
from hostguard.core.model import Hold
from hostguard.core.reasons import HOST, MIND, ROW, SESSION, Reason
from hostguard.core.settings import Level
from hostguard.telemetry.headlines import hold_text, reason_text


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_whom_it_holds_and_words(reason: Reason) -> None:
    assert reason.holds in (HOST, MIND, SESSION, ROW)
    said = [
        reason_text(json.loads(json.dumps(reason)), "ada"),
        hold_text({"reason": str(reason), "blocker": "x y"}, "ada"),
        sentence(Hold(reason, "x y"), Level.STALLED, "none ends"),
    ]
    assert all(text and not {*"{}_"} & {*text} for text in said)
    assert (": x y" in said[1]) == (
        "{behind}" in reason.sentence or reason in (Reason.MIND_DOWN, Reason.MIND_BROKEN)
    )


def test_whom_the_reasons_hold() -> None:
    """The host's hold every row that would start a turn; rows of a mind wait for one another by session only."""
    held = {kind: {str(reason) for reason in Reason if reason.holds == kind} for kind in (HOST, SESSION, ROW)}
    assert held == {
        HOST: {"paused", "no_systemd", "no_writes", "global_cap", "pressure", "shutdown"},
        SESSION: {"session_busy", "not_due", "retry"},
        ROW: {"caller_away", "restart"},
    }


def test_a_reason_of_a_later_version_is_shown_as_it_is() -> None:
    assert hold_text({"reason": "full_moon", "blocker": "x"}, "ada") == "full_moon"
