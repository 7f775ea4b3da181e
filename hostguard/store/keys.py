"""Idempotency keys. One is known while its row is stored, and a sender's for KEPT_MS after that.

Functions of a connection. A run's key, and that of a schedule's time, go with their rows: nobody repeats
them later.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from hostguard.core.model import Delivery, Kind, State
from hostguard.core.payload import compact
from hostguard.store.connection import Connection
from hostguard.store.sums import checked

KEPT_MS = 7 * 86_400_000
KEPT_MAX = 20_000  # keys without a row, the newest: some 8 MB
DROP_MAX = 1_000  # in one transaction: other writes need not wait for more
SENDER, SCHEDULE, RUN = "", "schedule", "run"  # whose keys: none of them can use up another one's
DIGEST_BYTES = 8  # against mistakes, not against somebody who wants two of his own messages to look alike

# What is kept of a row that left the history.
_ENDED = """
    SELECT json_object('session', session, 'state', state, 'kind', kind, 'sender', sender, 'channel', channel,
        'created_at', created_at, 'attempts', attempts, 'ended_at', ended_at, 'result', json_object(
            'outcome', json_extract(told, '$.outcome'), 'exit', json_extract(told, '$.exit'),
            'reason', json_extract(told, '$.reason')))
    FROM (SELECT *, iif(json_valid(result), result, '{}') AS told FROM deliveries WHERE id = delivery)
"""


class Used(NamedTuple):
    """A key that was used. `request`: see fingerprint; `gone`: what is kept of a row that is not there."""

    delivery: int
    request: str | None
    gone: Delivery | None


def fingerprint(request: Mapping[str, Any]) -> str:
    """A digest of each part of a request, as JSON. Parts that are None are left out."""
    digests = {
        name: blake2b(compact({"": value}), digest_size=DIGEST_BYTES).hexdigest()
        for name, value in sorted(request.items())
        if value is not None
    }
    return json.dumps(digests, separators=(",", ":"))


def find(db: Connection, owner: str, key: str, minds: Collection[str]) -> list[Used]:
    """What is known of a key, for these minds, in order of their rows. Raises Damaged."""
    rows = db.execute(
        "SELECT delivery, mind, key, owner, request, left_at, ended, sum FROM keys"
        " WHERE key = ? AND owner = ? ORDER BY delivery",
        (key, owner),
    )
    found = []
    for values in rows.fetchall():
        delivery, mind, _, _, request, _, ended = checked("keys", values[0], values)
        if mind in minds:
            gone = None if ended is None else _gone(delivery, mind, key, json.loads(ended))
            found.append(Used(delivery, request, gone))
    return found


def differing(before: str, now: str) -> tuple[str, ...]:
    """The parts of a request, in order of their names, that are not as they were."""
    then, given = json.loads(before), json.loads(now)
    return tuple(name for name in sorted({*then, *given}) if then.get(name) != given.get(name))


def _gone(id_: int, mind: str, key: str, ended: dict[str, Any]) -> Delivery:
    ended |= {"state": State(ended["state"]), "kind": Kind(ended["kind"])}
    unset: dict[str, Any] = {"not_before": 0, "expires_at": 0, "turn": None, "started_at": 0}
    return Delivery(id=id_, mind=mind, key=key, **unset, **ended)


def note(db: Connection, owner: str, key: str, request: str, rows: Sequence[Delivery]) -> None:
    """Note the key of new rows."""
    db.executemany(
        "INSERT OR REPLACE INTO keys (delivery, owner, key, mind, request) VALUES (?, ?, ?, ?, ?)",
        [(row.id, owner, key, row.mind, request) for row in rows],
    )


def leave(db: Connection, ids: Sequence[int], now: int) -> None:
    """The rows with these ids are about to leave the history."""
    rows = [(id_,) for id_ in ids]
    db.executemany(f"DELETE FROM keys WHERE delivery = ? AND owner != '{SENDER}'", rows)  # noqa: S608
    db.executemany(
        f"UPDATE keys SET left_at = {now:d}, ended = ({_ENDED}) WHERE delivery = ?",  # noqa: S608
        rows,
    )


def drop(db: Connection, now: int) -> int:
    """Drop up to DROP_MAX keys whose rows left long ago, and the oldest beyond KEPT_MAX; how many."""
    left, old = db.execute(
        "SELECT count(*), count(*) FILTER (WHERE left_at < ?) FROM keys WHERE left_at IS NOT NULL",
        (now - KEPT_MS,),
    ).fetchone()
    count: int = min(max(left - KEPT_MAX, old), DROP_MAX)
    if count:
        db.execute(
            "DELETE FROM keys WHERE delivery IN"
            " (SELECT delivery FROM keys WHERE left_at IS NOT NULL ORDER BY left_at LIMIT ?)",
            (count,),
        )
    return count
