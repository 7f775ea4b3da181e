"""Deliveries, for tests."""

from __future__ import annotations

from hostguard.core.model import Delivery, Kind, State


def row(**more):
    given = {
        "id": 7, "mind": "ada", "session": "s", "state": State.QUEUED, "kind": Kind.MESSAGE, "key": None,
        "sender": "bob", "channel": None, "created_at": 1000, "not_before": 0, "expires_at": 0, "attempts": 0,
        "turn": None, "started_at": 0, "ended_at": 0, "result": {},
    }  # fmt: skip
    return Delivery(**given | more)
