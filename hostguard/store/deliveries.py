"""Reads and writes deliveries: functions of a connection, for hostguard.store.writer.

A function that refuses (writer.Refused) does so before it changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hostguard.core.clock import Now
from hostguard.core.model import PENDING, Delivery, Kind, Row, State, StoredRow, Target
from hostguard.core.outcome import row_of
from hostguard.store import keys, quota
from hostguard.store.connection import Connection
from hostguard.store.damage import FLOOR
from hostguard.store.failures import FAILED
from hostguard.store.sums import Damaged, checked
from hostguard.store.writer import Refused

Op = Callable[[Connection], Any]

# All of a row: _delivery checks them.
COLUMNS = ", ".join((*(item.name for item in fields(Delivery)), "payload", "sum"))
# As in StoredRow. Most rows have no result.
_KIND = "iif(result = '{}' OR json_extract(result, '$.unrouted') IS NULL, kind, 'unrouted')"
ROW_COLUMNS = f"id, mind, session, not_before, {_KIND}, due, created_at, accepted"


class KeyReused(Refused):
    """The key was used for `delivery`, a message that differs in these parts."""

    def __init__(self, delivery: int, differs: Sequence[str]) -> None:
        super().__init__(delivery, differs)
        self.delivery, self.differs = delivery, tuple(differs)


class Full(Refused):
    """The queue of each of the message's minds is full."""


class NoRoom(Refused):
    """These minds, or else the sender, have too many bytes waiting."""

    def __init__(self, minds: Collection[str]) -> None:
        super().__init__(minds)
        self.minds = minds


class Late(Refused):
    """The message has expired, and its key is not known."""


class WrongState(Refused):
    """The row is not in a state from which this can be done. The argument is its state, or None."""


@dataclass(frozen=True, slots=True)
class New:
    """A message for one or more minds, to be stored in one transaction. Times in ms, 0 = unset.

    `created_at` and `accepted` are of the same moment, a date and a stamp.
    `payload` is a JSON object in UTF-8. It has `session` only if the sender named one; a mind gets the row's.
    `request`: what the sender asked for, by name: with the same `key` it must be the same. `owner`: whose key
    it is (keys.py). `late`: it has expired, and is only looked for by its key. `limited`: the limits of
    quota.py apply, also those of `by`, who sent it, if that is not "".
    """

    targets: Sequence[Target]
    payload: bytes
    created_at: int
    key: str | None = None
    sender: str | None = None
    channel: str | None = None
    not_before: int = 0
    expires_at: int = 0
    request: Mapping[str, Any] = field(default_factory=dict)
    owner: str = keys.SENDER
    accepted: int = 0
    late: bool = False
    limited: bool = False
    by: str = ""


def _delivery(values: Sequence[Any]) -> Delivery:
    """The row with these values of COLUMNS. Raises Damaged."""
    *found, _payload = checked("deliveries", values[0], values)
    found[3], found[4], found[15] = State(found[3]), Kind(found[4]), json.loads(found[15])
    return Delivery(*found)


def last_id(db: Connection) -> int:
    """The newest id ever assigned: the history never drops the newest row, but damage may."""
    highest = "SELECT max(coalesce((SELECT max(id) FROM deliveries), 0), coalesce("
    floor = "(SELECT CAST(value AS INTEGER) FROM settings WHERE name = ?), 0))"
    return int(db.execute(highest + floor, (FLOOR,)).fetchone()[0])


def enqueue(
    db: Connection, new: New, full: Collection[str] = (), floor: int = 0
) -> tuple[list[Delivery], list[Delivery]]:
    """Store a row for each mind that has none with this key and whose queue is not full.

    Returns (all the message's rows, those that are new). Ids begin above `floor`. Raises KeyReused,
    Full, NoRoom, Late: then there is no row at all.
    """
    request = keys.fingerprint(new.request) if new.key is not None else ""
    known = _known(db, new, request)
    have = {row.mind for row in known}
    targets = [t for t in new.targets if t.mind not in have and t.mind not in full]
    if new.limited and targets and not new.late:
        if new.by and quota.sender_full(db, new.by, len(new.payload)):
            raise NoRoom(())
        no_room = quota.full(db, [t.mind for t in targets], len(new.payload))
        targets = [t for t in targets if t.mind not in no_room]
        if no_room and not targets and not known:
            raise NoRoom(no_room)
    if not targets or new.late:
        if not known:
            raise Late if new.late else Full
        return known, []
    first = max(last_id(db), floor) + 1
    db.execute("INSERT INTO payloads (id, body) VALUES (?, ?)", (first, new.payload))
    rows = [
        Delivery(
            first + i, t.mind, t.session, t.state, t.kind, new.key, new.sender, new.channel, new.created_at,
            new.not_before, new.expires_at, 0, None, 0, new.created_at if t.state.final else 0, t.result,
            accepted=new.accepted, uid=t.uid,
        )
        for i, t in enumerate(targets)
    ]  # fmt: skip
    db.executemany(
        "INSERT INTO deliveries (id, mind, session, state, kind, key, sender, channel, created_at,"
        " not_before, expires_at, ended_at, result, accepted, uid, payload)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (r.id, r.mind, r.session, r.state, r.kind, r.key, r.sender, r.channel, r.created_at, r.not_before,
             r.expires_at, r.ended_at, json.dumps(r.result), r.accepted, r.uid, first)
            for r in rows
        ],
    )  # fmt: skip
    if new.by:
        quota.note_sender(db, first, new.by)
    if new.key is not None:
        keys.note(db, new.owner, new.key, request, rows)
    return known + rows, rows


def _known(db: Connection, new: New, request: str) -> list[Delivery]:
    if new.key is None:
        return []
    minds, found = {target.mind for target in new.targets}, []
    for used in keys.find(db, new.owner, new.key, minds):
        stored = with_payload(db, used.delivery)
        row, body = stored if stored is not None and stored[0].key == new.key else (used.gone, None)
        if row is None:  # somebody deleted it
            continue
        if used.request is not None:
            differs = keys.differing(used.request, request)
        else:
            differs = ("content",) if body not in (None, new.payload) else ()
        if differs:
            raise KeyReused(row.id, differs)
        found.append(row)
    return found


def body_of(db: Connection, id_: int, payload: int) -> bytes:
    """The payload of a row, UTF-8 JSON. Raises Damaged."""
    found = db.execute("SELECT id, body, sum FROM payloads WHERE id = ?", (payload,)).fetchone()
    if found is None:
        raise Damaged(("deliveries", id_))
    body: bytes = checked("payloads", payload, found)[1]
    return body


def get(db: Connection, id_: int) -> Delivery | None:
    """One row."""
    values = db.execute(f"SELECT {COLUMNS} FROM deliveries WHERE id = ?", (id_,)).fetchone()  # noqa: S608
    return _delivery(values) if values else None


def by_turn(db: Connection, turn: str) -> Delivery | None:
    """The row whose last turn has this id."""
    id_ = row_of(turn)
    row = get(db, id_) if id_ is not None else None
    return row if row is not None and row.turn == turn else None


def with_payload(db: Connection, id_: int) -> tuple[Delivery, bytes] | None:
    """One row and its payload, UTF-8 JSON."""
    values = db.execute(f"SELECT {COLUMNS} FROM deliveries WHERE id = ?", (id_,)).fetchone()  # noqa: S608
    return (_delivery(values), body_of(db, id_, values[-2])) if values else None


def unbegun(db: Connection, id_: int, mind: str) -> int | None:
    """The mind's row if it has not begun, or the row that its script's output became; None: there is none.

    A script that runs counts as not begun: its output is still to come.
    """
    row = get(db, id_)
    if row is None or row.mind != mind:
        return None
    if row.state is State.QUEUED or (row.state is State.DELIVERING and row.kind is Kind.SCRIPT):
        return id_
    output = row.result.get("delivery") if row.kind is Kind.SCRIPT else None
    return unbegun(db, output, mind) if isinstance(output, int) and output > id_ else None


def note_output(db: Connection, id_: int, output: int) -> None:
    """Note at the row of a script which delivery its output became."""
    db.execute("UPDATE deliveries SET result = json_set(result, '$.delivery', ?) WHERE id = ?", (output, id_))


def select(
    db: Connection, states: Sequence[str], mind: str | None, after: int, limit: int, failed: bool = False
) -> list[Delivery]:
    """Rows in order of id. Without states: those that have not ended. `failed`: only those that failed."""
    states = states or PENDING
    marks = ",".join("?" * len(states))
    values: list[Any] = [*states, after]
    if mind is not None:
        values.append(mind)
    rows = db.execute(
        f"SELECT {COLUMNS} FROM deliveries WHERE state IN ({marks}) AND id > ?"  # noqa: S608
        f"{' AND mind = ?' if mind is not None else ''}{f' AND {FAILED}' if failed else ''}"
        " ORDER BY id LIMIT ?",
        (*values, limit),
    )
    return [_delivery(row) for row in rows]


def has_rows(db: Connection, mind: str) -> bool:
    """True if the mind has, or had, a row, as far as the history goes. Reads all rows if not."""
    return db.execute("SELECT 1 FROM deliveries WHERE mind = ? LIMIT 1", (mind,)).fetchone() is not None


def queued(db: Connection, after: int = 0, limit: int = -1) -> list[StoredRow]:
    """Queued rows, except runs, in order of id from `after` on.

    `limit` is the most that are read at once; -1 = all.
    """
    return db.execute(
        f"SELECT {ROW_COLUMNS} FROM deliveries"  # noqa: S608
        " WHERE state = 'queued' AND kind != 'run' AND id > ? ORDER BY id LIMIT ?",
        (after, limit),
    ).fetchall()


def special(db: Connection) -> list[Delivery]:
    """Rows in a turn, and queued ones that are runs, expire or have failed before: few, in one scan."""
    rows = db.execute(
        f"SELECT {COLUMNS} FROM deliveries WHERE state = 'delivering' OR (state = 'queued'"  # noqa: S608
        " AND (kind = 'run' OR expires_at > 0 OR attempts > 0))"
    )
    return [_delivery(row) for row in rows]


def mark_delivering(db: Connection, id_: int, turn: str, now: Now, result: Mapping[str, Any]) -> None:
    """The row's turn is being started, or the row is being posted into this turn.

    `result` is what is known of it so far: how long the row waited and why.
    """
    db.execute(
        "UPDATE deliveries SET state = 'delivering', turn = ?, started_at = ?, started = ?, posted_at = 0,"
        " result = ? WHERE id = ?",
        (turn, now.date, now.stamp, json.dumps(result), id_),
    )


def mark_posted(db: Connection, id_: int, turn: str, now: int) -> None:
    """The resident mind confirmed the row in that turn."""
    db.execute(
        "UPDATE deliveries SET posted_at = ? WHERE id = ? AND turn = ? AND state = 'delivering'",
        (now, id_, turn),
    )


def finish(
    db: Connection, id_: int, turn: str, state: State, attempts: int, now: int, result: Mapping[str, Any]
) -> bool:
    """The row's turn ended for good. False if the row has another turn by now: the end came late."""
    done = db.execute(
        "UPDATE deliveries SET state = ?, attempts = ?, ended_at = ?, result = ?"
        " WHERE id = ? AND turn = ? AND state = 'delivering'",
        (state, attempts, now, json.dumps(result), id_, turn),
    )
    return done.rowcount == 1


def give_back(
    db: Connection, id_: int, turn: str, attempts: int, again: Row, result: Mapping[str, Any]
) -> bool:
    """Queue the row again, as `again` is due. False as for `finish`."""
    done = db.execute(
        "UPDATE deliveries SET state = 'queued', turn = NULL, started_at = 0, started = 0, posted_at = 0,"
        " attempts = ?, not_before = ?, due = ?, result = ?"
        " WHERE id = ? AND turn = ? AND state = 'delivering'",
        (attempts, again.not_before, again.due, json.dumps(result), id_, turn),
    )
    return done.rowcount == 1


def close(
    db: Connection, ids: Sequence[int], state: State, now: int, text: str, was: State = State.QUEUED
) -> list[int]:
    """Cancel or expire the rows that are in the state `was`; returns their ids."""
    result = json.dumps({"outcome": str(state), "reason": text})
    return [
        id_
        for id_ in ids
        if db.execute(
            "UPDATE deliveries SET state = ?, ended_at = ?, result = ? WHERE id = ? AND state = ?",
            (state, now, result, id_, was),
        ).rowcount
    ]


def forget(db: Connection, ids: Sequence[int]) -> None:
    """Delete the rows of one message, which nobody knows of."""
    db.executemany("DELETE FROM deliveries WHERE id = ?", [(id_,) for id_ in ids])
    db.execute("DELETE FROM payloads WHERE id = ?", (ids[0],))


def retry(db: Connection, id_: int, now: Now) -> Delivery:
    """Queue an ended row again, due now, with no attempts. Raises WrongState."""
    row = get(db, id_)
    if row is None or not row.state.final or row.state is State.BATCHED or row.kind is Kind.RUN:
        raise WrongState(row and row.state)
    db.execute(
        "UPDATE deliveries SET state = 'queued', turn = NULL, started_at = 0, started = 0, posted_at = 0,"
        " ended_at = 0, attempts = 0, not_before = ?, due = ?, expires_at = 0, result = '{}' WHERE id = ?",
        (now.date, now.stamp, id_),
    )
    again = get(db, id_)
    assert again is not None
    return again


def drop(db: Connection, id_: int, now: int) -> None:
    """Cancel a dead letter. Raises WrongState."""
    row = get(db, id_)
    if row is None or row.state is not State.DEAD:
        raise WrongState(row and row.state)
    db.execute("UPDATE deliveries SET state = 'cancelled', ended_at = ? WHERE id = ?", (now, id_))
