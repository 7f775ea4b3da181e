"""Rows that wait in a batch for a session. Functions of a connection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from hostguard.core.clock import Now
from hostguard.core.model import Delivery, Kind, State, Target
from hostguard.delivery.batch_rule import gathered
from hostguard.store import deliveries
from hostguard.store.connection import Connection
from hostguard.store.deliveries import New

# As the partial index deliveries_kept has it; "+id" leaves the order of the whole table aside.
_BATCHING = "state IN ('batching', 'gated') AND state = 'batching'"


def waiting(db: Connection) -> Iterator[tuple[Delivery, bytes]]:
    """(row, payload) of every row that waits in a batch, in order of id."""
    ids = db.execute(f"SELECT id FROM deliveries WHERE {_BATCHING} ORDER BY +id").fetchall()  # noqa: S608
    for (id_,) in ids:
        found = deliveries.with_payload(db, id_)
        if found is not None:
            yield found


def flush(db: Connection, ids: Sequence[int], interrupt: bool, now: Now, floor: int) -> Delivery | None:
    """Replace rows of one session by a new row with all their messages; None if there are none left.

    Rows that were cancelled meanwhile are left out. The others end, and name the new row, whose result has
    the messages' senders and channels until its turn ends.
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
    result = {"messages": len(sources), "channels": channels, "senders": senders}
    target = Target(first.mind, first.session, kind=Kind.BATCH, result=result)
    sender, channel = first.sender if alike else None, channels[0] if len(channels) == 1 else None
    raw = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    new = New((target,), raw, now.date, sender=sender, channel=channel, accepted=now.stamp)
    (row,) = deliveries.enqueue(db, new, floor=floor)[1]
    ended = json.dumps({"outcome": "batched", "delivery": row.id})
    db.executemany(
        "UPDATE deliveries SET state = 'batched', ended_at = ?, result = ? WHERE id = ?",
        [(now.date, ended, source.id) for source, _ in sources],
    )
    return row
