"""Rows in quarantine, since no rule of their mind's routes matches yet. Functions of a connection.

And rows of messages that came before the mind's routes could be read at all, until they get their place.

An invite tells the mind of them. Of each channel the newest RELEASED are released; older ones are archived:
their rows say so, and the mind does not get them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hostguard.core.model import Delivery, Kind, State, Target
from hostguard.core.names import MAIN_SESSION
from hostguard.core.payload import CHANNEL, SENDER, system_payload, told
from hostguard.delivery.planner import wakes
from hostguard.delivery.wake_rules import text_of
from hostguard.store import deliveries
from hostguard.store.connection import Connection
from hostguard.store.deliveries import New
from hostguard.store.settings import WOKEN
from hostguard.store.settings import write as write_settings

# Volute's own.
INVITE_EVERY = 10
RELEASED = 10
PREVIEW_MAX = 200  # characters
# Rows of a mind in quarantine: only RELEASED of a channel will ever go out, so the oldest can go.
QUARANTINE_MAX = 1_000
PLACED_AT_ONCE = 100  # rows, each with its payload in memory
ARCHIVED_AT_ONCE = 500  # a multiple of INVITE_EVERY, so that the invites keep their step

# As the partial index deliveries_kept has it.
_QUARANTINED = "state IN ('batching', 'gated') AND state = 'gated'"


_UNROUTED = "state = 'queued' AND result != '{}' AND json_extract(result, '$.unrouted') IS NOT NULL"


class Move(NamedTuple):
    """A quarantined row, and what becomes of it."""

    id: int
    target: Target


class Moved(NamedTuple):
    """Rows that left quarantine: `out`, with their payloads, go on to the mind; the ids in `ended` do not."""

    out: list[tuple[Delivery, bytes]]
    ended: list[int]


class Placed(NamedTuple):
    """What became of unrouted rows: as Moved, and what those bring that are in quarantine now."""

    moved: Moved
    gated: list[tuple[Delivery, bytes, Quarantined]]
    woken: bool


class Quarantined(NamedTuple):
    """What a quarantined message brings: new rows for the gate, and (mind, id) of archived ones."""

    invites: list[Delivery]
    archived: list[tuple[str, int]]


NOTHING = Quarantined([], [])


def invite(row: Delivery, payload: Mapping[str, Any], count: int) -> str:
    """The text that tells a mind of a channel with `count` messages in quarantine; `row` is the newest."""
    channel, sender = payload["channel"], row.sender or "nobody"
    text = text_of(payload.get("content"))
    preview = f"{text[:PREVIEW_MAX]}..." if len(text) > PREVIEW_MAX else text
    rule = json.dumps({"channel": channel, "session": MAIN_SESSION}, ensure_ascii=False)
    messages = "a message is" if count == 1 else f"{count} messages are"
    return (
        f"[hostguard] {messages} kept back, not delivered: no rule of your routes.json matches the channel"
        f" {channel}. The newest is from {sender}: {preview}\n"
        f"To get them, add a rule to your routes.json, such as {rule}: the newest {RELEASED}"
        " then follow, older ones are archived"
    )


def quarantine(db: Connection, fresh: Sequence[Delivery], raw: bytes, now: int) -> Quarantined:
    """Store what a message's new quarantined rows bring, in the message's own transaction.

    The first, the 11th, ... of a channel bring an invite. At QUARANTINE_MAX rows the oldest are archived.
    """
    rows = [row for row in fresh if row.state is State.QUARANTINED]
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
            new = New((target,), body, now, sender=SENDER, channel=CHANNEL, accepted=row.accepted)
            invites += deliveries.enqueue(db, new)[1]
        archived += [(row.mind, id_) for id_ in _archive_oldest(db, row.mind, now)]
    return Quarantined(invites, archived)


def _count_of_channel(db: Connection, row: Delivery) -> int:
    sql, values = "SELECT count(*) FROM deliveries WHERE mind = ? AND channel IS ?", [row.mind, row.channel]
    if row.channel is None:  # a direct message is in its sender's channel
        sql, values = f"{sql} AND sender IS ?", [*values, row.sender]
    return int(db.execute(f"{sql} AND {_QUARANTINED}", values).fetchone()[0])


def _archive_oldest(db: Connection, mind: str, now: int) -> list[int]:
    sql = f"SELECT count(*) FROM deliveries WHERE mind = ? AND {_QUARANTINED}"  # noqa: S608
    if db.execute(sql, (mind,)).fetchone()[0] < QUARANTINE_MAX:
        return []
    sql = f"SELECT id FROM deliveries WHERE mind = ? AND {_QUARANTINED} ORDER BY id LIMIT ?"  # noqa: S608
    target = archive(mind, f"{mind} had {QUARANTINE_MAX} messages that no rule matches")
    oldest = db.execute(sql, (mind, ARCHIVED_AT_ONCE)).fetchall()
    return move(db, [Move(id_, target) for (id_,) in oldest], now).ended


def totals(db: Connection) -> dict[str, int]:
    """How many quarantined rows each mind has; minds without any are left out."""
    return dict(
        db.execute(f"SELECT mind, count(*) FROM deliveries WHERE {_QUARANTINED} GROUP BY mind")  # noqa: S608
    )


def archive(mind: str, reason: str) -> Target:
    """What becomes of a quarantined row that is not released."""
    return Target(mind, MAIN_SESSION, State.SKIPPED, result={"outcome": "archived", "reason": reason})


def read(db: Connection, mind: str) -> Iterable[tuple[int, bytes]]:
    """(id, payload) of the mind's quarantined rows, the newest first."""
    rows = db.execute(
        f"SELECT id, payload FROM deliveries WHERE mind = ? AND {_QUARANTINED} ORDER BY id DESC",  # noqa: S608
        (mind,),
    )
    return [(id_, deliveries.body_of(db, id_, payload)) for id_, payload in rows.fetchall()]


def release(
    mind: str, rows: Iterable[tuple[int, bytes]], place: Callable[[Mapping[str, Any]], Target | None]
) -> list[Move]:
    """The moves, in order of id, of quarantined rows, given the newest first.

    `place` says where each goes; None: it stays.

    Of each channel RELEASED go where they are placed, and older ones are archived. Rows that stay
    have no move and do not count.
    """
    moves: list[Move] = []
    seen: dict[str, int] = {}
    for id_, raw in rows:
        payload = told(json.loads(raw))
        target = place(payload)
        if target is None:
            continue
        channel = payload["channel"]
        seen[channel] = seen.get(channel, 0) + 1
        if seen[channel] > RELEASED:
            target = archive(mind, f"a rule matches now, and the newest {RELEASED} of {channel} went out")
        moves.append(Move(id_, target))
    return moves[::-1]


def unrouted_minds(db: Connection) -> set[str]:
    """Minds with messages that came before their routes could be read. Reads all rows."""
    return {mind for (mind,) in db.execute(f"SELECT DISTINCT mind FROM deliveries WHERE {_UNROUTED}")}  # noqa: S608


def unrouted(db: Connection, mind: str, after: int) -> list[tuple[int, str]]:
    """(id, session) of the mind's next such messages after this id, in order."""
    return db.execute(
        f"SELECT id, session FROM deliveries WHERE {_UNROUTED} AND mind = ? AND id > ? ORDER BY id LIMIT ?",  # noqa: S608
        (mind, after, PLACED_AT_ONCE),
    ).fetchall()


def give_places(
    db: Connection, mind: str, ids: Sequence[int], place: Callable[[Mapping[str, Any]], Target], now: int
) -> Placed:
    """Give unrouted rows of a mind their places, and wake it for those that were to do so."""
    found = [row for id_ in ids if (row := deliveries.with_payload(db, id_)) is not None]
    rows = {row.id: row for row, _ in found if row.unrouted}
    moves = [Move(row.id, place(told(json.loads(raw)))) for row, raw in found if row.id in rows]
    moved = move(db, moves, now, State.QUEUED)
    gated = [
        (row, raw, quarantine(db, [row], raw, now))
        for row, raw in moved.out
        if row.state is State.QUARANTINED
    ]
    woken = any(rows[move.id].result[Kind.UNROUTED] and wakes(move.target) for move in moves)
    if woken:  # a guard that is killed now wakes it at its start
        write_settings(db, WOKEN.to(mind, True))
    return Placed(moved, gated, woken)


def move(db: Connection, moves: Sequence[Move], now: int, was: State = State.QUARANTINED) -> Moved:
    """Carry out the moves, in one transaction. A row that has left the state `was` stays as it is."""
    out: list[tuple[Delivery, bytes]] = []
    ended: list[int] = []
    for id_, placed in moves:
        target = placed
        if target.state is State.BATCHING and _has_times(db, id_):
            target = Target(target.mind, target.session)  # a batch has no times of its own
        final = target.state.final
        moved = db.execute(
            "UPDATE deliveries SET state = ?, session = ?, kind = ?, result = ?, ended_at = ?, uid = ?"
            " WHERE id = ? AND state = ?",
            (
                target.state,
                target.session,
                target.kind,
                json.dumps(target.result),
                now * final,
                target.uid,
                id_,
                was,
            ),
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
