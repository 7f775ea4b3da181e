"""What failed, as it is stored: functions of a connection."""

from __future__ import annotations

from typing import NamedTuple

from hostguard.core.model import Delivery, State
from hostguard.core.outcome import EXITED, FAILURES
from hostguard.core.outcome import failed as outcome_failed
from hostguard.store.connection import Connection

ROWS_MAX = 2_000  # newest rows that are read at a start
_OUTCOME, _EXIT, _REASON = (f"json_extract(result, '$.{key}')" for key in ("outcome", "exit", "reason"))
_NAMES = "(" + ", ".join(f"'{name}'" for name in FAILURES) + ")"
# A turn that failed for good, a dead letter, or a row that waits for its next attempt.
FAILED = (
    f"(state = 'dead' OR state IN ('queued', 'delivering') AND attempts > 0 OR state = 'done' AND"
    f" coalesce({_OUTCOME} IN {_NAMES} OR {_OUTCOME} = '{EXITED}' AND {_EXIT} != 0, 0))"
)


class Attempted(NamedTuple):
    """A row that had a turn of its own: how the last one ended, and how many attempts failed."""

    mind: str
    dead: bool
    waits: bool  # it is queued again
    failures: int
    turn: str
    at: int  # when it ended, ms since the epoch; 0: unknown
    outcome: str | None
    exit: int | None
    reason: str | None


def latest(db: Connection) -> list[Attempted]:
    """The newest rows that had a turn, the newest first."""
    rows = db.execute(
        "SELECT mind, state = 'dead', state = 'queued', attempts, coalesce(turn, id), ended_at,"  # noqa: S608
        f" {_OUTCOME}, {_EXIT}, {_REASON} FROM deliveries"
        " WHERE id > (SELECT max(id) FROM deliveries) - ? AND (state IN ('done', 'dead')"
        " AND (turn = id OR turn LIKE id || '.%') OR state = 'queued' AND attempts > 0) ORDER BY id DESC",
        (ROWS_MAX,),
    )
    return [Attempted(mind, bool(dead), bool(waits), *rest) for mind, dead, waits, *rest in rows]


def dead(db: Connection) -> dict[str, int]:
    """How many dead letters each mind has, if any."""
    return dict(db.execute("SELECT mind, count(*) FROM deliveries WHERE state = 'dead' GROUP BY mind"))


def failed(row: Delivery) -> bool:
    """Whether FAILED is true of the row."""
    if row.state in (State.QUEUED, State.DELIVERING):
        return row.attempts > 0
    verdict = outcome_failed(row.result.get("outcome"), row.result.get("exit"))
    return row.state is State.DEAD or (row.state is State.DONE and verdict is True)
