"""Messages that no rule of a mind's routes matches: kept, told of by an invite, and let go by a later rule.

Functions of a connection, as hostguard.store.deliveries, and what they decide by. Of each channel the newest
RELEASED are let go; older ones are archived: the row says so, and the mind does not get it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hostguard.core.model import Delivery, Kind, State, Target
from hostguard.core.names import MAIN_SESSION
from hostguard.core.payload import CHANNEL, SENDER, system_payload, told
from hostguard.delivery.wake_rules import text_of
from hostguard.store import deliveries
from hostguard.store.connection import Connection
from hostguard.store.deliveries import New

# Volute's own.
INVITE_EVERY = 10
RELEASED = 10
PREVIEW_MAX = 200  # characters
# A mind's gated rows: no more than RELEASED of a channel will ever go out, so the oldest need not be kept.
GATED_MAX = 1_000
ARCHIVED_AT_ONCE = 500  # a multiple of INVITE_EVERY, so that the invites keep their step

# As the partial index deliveries_kept has it.
_GATED = "state IN ('batching', 'gated') AND state = 'gated'"


class Move(NamedTuple):
    """A gated row, and the row it is to be from now on."""

    id: int
    target: Target


class Moved(NamedTuple):
    """Rows that are gated no more: `out`, with their payloads, go out now; the ids in `ended` do not."""

    out: list[tuple[Delivery, bytes]]
    ended: list[int]


class Quarantined(NamedTuple):
    """What comes of gating a message: new rows for the gate, and (mind, id) of those that were archived."""

    invites: list[Delivery]
    archived: list[tuple[str, int]]


NOTHING = Quarantined([], [])


def invite(row: Delivery, payload: Mapping[str, Any], count: int) -> str:
    """What tells a mind of a channel, of which `count` messages are gated; `row` is the newest."""
    channel, sender = payload["channel"], row.sender or "nobody"
    text = text_of(payload.get("content"))
    preview = f"{text[:PREVIEW_MAX]}..." if len(text) > PREVIEW_MAX else text
    rule = json.dumps({"channel": channel, "session": MAIN_SESSION}, ensure_ascii=False)
    kept = "a message is" if count == 1 else f"{count} messages are"
    return (
        f"[hostguard] {kept} kept back, not delivered: no rule of your routes.json matches the channel"
        f" {channel}. The newest is from {sender}: {preview}\n"
        f"To get them, put a rule for it into the rules of your routes.json, as {rule}: the newest {RELEASED}"
        " then follow, older ones are archived"
    )


def quarantine(db: Connection, fresh: Sequence[Delivery], raw: bytes, now: int) -> Quarantined:
    """Look after the gated ones of the rows that were just stored of a message, in the same transaction.

    Its invites: the first, the 11th, ... of a channel. Of a mind with GATED_MAX rows the oldest are archived.
    """
    rows = [row for row in fresh if row.state is State.GATED]
    if not rows:
        return NOTHING
    payload = told(json.loads(raw))
    invites: list[Delivery] = []
    archived: list[tuple[str, int]] = []
    for row in rows:
        count = _count_of_channel(db, row)
        if count % INVITE_EVERY == 1:
            body = system_payload((row.mind,), invite(row, payload, count))
            target = Target(row.mind, MAIN_SESSION, kind=Kind.NOTICE)
            invites += deliveries.enqueue(db, New((target,), body, now, sender=SENDER, channel=CHANNEL))[1]
        archived += [(row.mind, id_) for id_ in _archive_oldest(db, row.mind, now)]
    return Quarantined(invites, archived)


def _count_of_channel(db: Connection, row: Delivery) -> int:
    sql, values = "SELECT count(*) FROM deliveries WHERE mind = ? AND channel IS ?", [row.mind, row.channel]
    if row.channel is None:  # a direct message is in its sender's channel
        sql, values = f"{sql} AND sender IS ?", [*values, row.sender]
    return int(db.execute(f"{sql} AND {_GATED}", values).fetchone()[0])


def _archive_oldest(db: Connection, mind: str, now: int) -> list[int]:
    sql = f"SELECT count(*) FROM deliveries WHERE mind = ? AND {_GATED}"  # noqa: S608
    if db.execute(sql, (mind,)).fetchone()[0] < GATED_MAX:
        return []
    sql = f"SELECT id FROM deliveries WHERE mind = ? AND {_GATED} ORDER BY id LIMIT ?"  # noqa: S608
    target = archive(mind, f"{mind} had {GATED_MAX} messages that no rule matches")
    oldest = db.execute(sql, (mind, ARCHIVED_AT_ONCE)).fetchall()
    return move(db, [Move(id_, target) for (id_,) in oldest], now).ended


def totals(db: Connection) -> dict[str, int]:
    """How many gated rows each mind has; minds without any are left out."""
    return dict(
        db.execute(f"SELECT mind, count(*) FROM deliveries WHERE {_GATED} GROUP BY mind")  # noqa: S608
    )


def archive(mind: str, reason: str) -> Target:
    """What becomes of a gated row that is not let go."""
    return Target(mind, MAIN_SESSION, State.SKIPPED, result={"outcome": "archived", "reason": reason})


def read(db: Connection, mind: str) -> Iterable[tuple[int, bytes]]:
    """(id, payload) of the mind's gated rows, the newest first."""
    return db.execute(
        "SELECT id, coalesce((SELECT body FROM payloads WHERE payloads.id = payload), '{}')"  # noqa: S608
        f" FROM deliveries WHERE mind = ? AND {_GATED} ORDER BY id DESC",
        (mind,),
    )


def release(
    mind: str, rows: Iterable[tuple[int, bytes]], place: Callable[[Mapping[str, Any]], Target]
) -> list[Move]:
    """What becomes of gated rows, the newest first, now that `place` says where each goes; in order of id.

    Of each channel RELEASED go where they are placed, and older ones are archived. A row that is still
    gated is not among them, and does not count.
    """
    moves: list[Move] = []
    seen: dict[str, int] = {}
    for id_, raw in rows:
        payload = told(json.loads(raw))
        target = place(payload)
        if target.state is State.GATED:
            continue
        channel = payload["channel"]
        seen[channel] = seen.get(channel, 0) + 1
        if seen[channel] > RELEASED:
            target = archive(mind, f"a rule matches now, and the newest {RELEASED} of {channel} went out")
        moves.append(Move(id_, target))
    return moves[::-1]


def move(db: Connection, moves: Sequence[Move], now: int) -> Moved:
    """Carry the moves out, in one transaction. A row that is gated no more stays as it is."""
    out: list[tuple[Delivery, bytes]] = []
    ended: list[int] = []
    for id_, placed in moves:
        target = placed
        if target.state is State.BATCHING and _has_times(db, id_):
            target = Target(target.mind, target.session)  # a batch has no times of its own
        final = target.state.final
        moved = db.execute(
            "UPDATE deliveries SET state = ?, session = ?, kind = ?, result = ?, ended_at = ?"
            " WHERE id = ? AND state = 'gated'",
            (target.state, target.session, target.kind, json.dumps(target.result), now * final, id_),
        ).rowcount
        if moved and final:
            ended.append(id_)
        elif moved:
            found = deliveries.with_payload(db, id_)
            assert found is not None
            out.append(found)
    return Moved(out, ended)


def _has_times(db: Connection, id_: int) -> bool:
    row = db.execute("SELECT not_before + expires_at FROM deliveries WHERE id = ?", (id_,)).fetchone()
    return row is not None and row[0] > 0
