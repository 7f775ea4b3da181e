"""Rows that are gathered for a session: functions of a connection, as hostguard.store.deliveries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from hostguard.core.model import Delivery, Kind, State, Target
from hostguard.delivery.batch_rule import gathered
from hostguard.store import deliveries
from hostguard.store.connection import Connection
from hostguard.store.deliveries import New

# As the partial index deliveries_kept has it; "+id" leaves the order of the whole table aside.
_BATCHING = "state IN ('batching', 'gated') AND state = 'batching'"


def waiting(db: Connection) -> Iterator[tuple[Delivery, bytes]]:
    """(row, payload) of every row that is gathered, in order of id."""
    ids = db.execute(f"SELECT id FROM deliveries WHERE {_BATCHING} ORDER BY +id").fetchall()  # noqa: S608
    for (id_,) in ids:
        found = deliveries.with_payload(db, id_)
        if found is not None:
            yield found


def flush(db: Connection, ids: Sequence[int], interrupt: bool, now: int, floor: int) -> Delivery | None:
    """Let rows of one session go out: a new row takes them along, and each says which.

    A row that is gathered no more, since it was cancelled, is left out; None if that leaves nothing. The new
    row's result names the messages' senders and channels until its turn ends.
    """
    found = [deliveries.with_payload(db, id_) for id_ in sorted(ids)]
    sources = [one for one in found if one is not None and one[0].state is State.BATCHING]
    if not sources:
        return None
    payload = gathered([raw for _, raw in sources], interrupt)
    first = sources[0][0]
    channels = list(payload["batch"]["channels"])
    senders = list(dict.fromkeys(row.sender for row, _ in sources if row.sender is not None))
    alike = len({row.sender for row, _ in sources}) == 1
    target = Target(
        first.mind,
        first.session,
        kind=Kind.BATCH,
        result={"messages": len(sources), "channels": channels, "senders": senders},
    )
    new = New(
        (target,),
        json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode(),
        now,
        sender=first.sender if alike else None,
        channel=channels[0] if len(channels) == 1 else None,
    )
    (row,) = deliveries.enqueue(db, new, floor=floor)[1]
    result = json.dumps({"outcome": "batched", "delivery": row.id})
    db.executemany(
        "UPDATE deliveries SET state = 'batched', ended_at = ?, result = ? WHERE id = ?",
        [(now, result, source.id) for source, _ in sources],
    )
    return row
