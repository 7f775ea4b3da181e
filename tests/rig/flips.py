"""A queue with a bit flipped, opened as the guard opens it: what it has then, and what it says is missing."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostguard.core.clock import Now
from hostguard.core.model import Kind, State, Target
from hostguard.core.settings import Level
from hostguard.delivery import batch_rows, quarantine_rows
from hostguard.store import deliveries, settings
from hostguard.store.connection import open_database
from hostguard.store.deliveries import New
from hostguard.store.sums import checked
from hostguard.telemetry import timeline_rows
from hostguard.telemetry.timeline import LEVELS, Incident, Point, Seen

ROWS = 60
DB, WAL = "queue.db", "queue.db-wal"


def fill(db: sqlite3.Connection) -> None:
    """ROWS messages that wait, and a row, setting or point of every other sort."""
    put = _putter(db)
    for i in range(ROWS):
        put(Target(f"mind-{i % 7}", f"session-{i % 3}"), f"text number {i}, für {i}", key=f"key-{i}")
    put(Target("ada", "s", State.BATCHING), "gathered")
    put(Target("ada", "s", State.QUARANTINED), "kept back", channel="#new")
    done, dead, script = (
        put(Target("bob", "s", kind=kind), "x") for kind in (Kind.MESSAGE, Kind.RUN, Kind.SCRIPT)
    )
    for id_, state in ((done, State.DONE), (dead, State.DEAD)):
        deliveries.mark_delivering(db, id_, str(id_), Now(2000), {})
        deliveries.mark_posted(db, id_, str(id_), 2001)
        deliveries.finish(db, id_, str(id_), state, 1, 3000, {"outcome": "exited", "held_ms": 5})
    deliveries.mark_delivering(db, script, str(script), Now(2000), {})
    settings.write(
        db, settings.PAUSE.to(".mind.ada", True), settings.LIMIT.to("cap", {"value": 2, "boot": None}),
        settings.SCHEDULE.to("tidy", {"mind": "ada", "cron": "0 3 * * *"}), settings.TOKEN.to("ada", "0f" * 32),
    )  # fmt: skip
    points = [Point(600_000 * i, Seen(i % 3, 2, 1, i, 7)) for i in range(12)]
    incidents = [Incident(1000, 2000, LEVELS.index(Level.STALLED), "sda: nothing completes", 1, 4, 0, None)]
    timeline_rows.store(db, points, incidents, 0)


def _putter(db: sqlite3.Connection) -> Callable[..., int]:
    def put(target: Target, text: str, **more: Any) -> int:
        body = json.dumps({"content": text, "sender": "eve"}, ensure_ascii=False).encode()
        db.execute("BEGIN")
        _, rows = deliveries.enqueue(db, New((target,), body, 1000, sender="eve", **more))
        db.execute("COMMIT")
        return rows[0].id

    return put


Content = dict[tuple[str, Any], Any]


def content(db: sqlite3.Connection) -> Content:
    """All that is stored, by table and key, read as the guard reads it."""
    found: Content = {}
    for row in deliveries.select(db, tuple(State), None, 0, -1):
        found["deliveries", row.id] = deliveries.with_payload(db, row.id)
    queued = {("deliveries", row[0]) for row in deliveries.queued(db)}
    special = {("deliveries", row.id) for row in deliveries.special(db)}
    assert queued | special <= found.keys()
    kept = {("deliveries", row.id) for row, _ in batch_rows.waiting(db)}
    kept |= {("deliveries", id_) for id_, _ in quarantine_rows.read(db, "ada")}
    assert kept <= found.keys()
    waits = {key for key, value in found.items() if value[0].state is State.QUEUED}
    assert waits <= queued | special, "a row that waits for ever"
    found |= {("settings", name): value for name, value in settings.stored(db).items()}
    found.pop(("settings", "ids.above"), None)
    found |= {("points", point.at): point for point in timeline_rows.points(db, 0)}
    found |= {("incidents", one.at): one for one in timeline_rows.incidents(db, 0)}
    timeline_rows.ended(db, 0)
    used = db.execute("SELECT * FROM keys").fetchall()
    found |= {("keys", row[0]): checked("keys", row[0], row) for row in used}
    return found


@dataclass(frozen=True)
class Queue:
    """The files of a closed or killed guard, and what is stored in them."""

    files: dict[str, bytes]
    truth: Content


def closed_queue(folder: Path) -> Queue:
    """One that was stopped: all is in the database."""
    return _made(folder, in_wal=False)


def killed_queue(folder: Path) -> Queue:
    """One that was killed: all but the empty tables is in the WAL, a change for each message."""
    return _made(folder, in_wal=True)


def _made(folder: Path, in_wal: bool) -> Queue:
    folder.mkdir()
    with closing(open_database(folder / DB)[0]) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        fill(db)
        truth = content(db)
        if not in_wal:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        files = {name: (folder / name).read_bytes() for name in ((DB, WAL) if in_wal else (DB,))}
    return Queue(files, truth)


@dataclass
class Tally:
    """What became of many flips."""

    harmless: int = 0
    rows: int = 0
    file: int = 0
    repaired: int = 0
    unreplayed: int = 0
    wrong: list[str] = field(default_factory=list)


def flipped(queue: Queue, name: str, bit: int, folder: Path) -> None:
    """The queue in a new folder, with one bit of this file flipped."""
    folder.mkdir()
    for file, raw in queue.files.items():
        (folder / file).write_bytes(raw)
    changed = bytearray(queue.files[name])
    changed[bit // 8] ^= 1 << bit % 8
    (folder / name).write_bytes(changed)


def try_flips(queue: Queue, name: str, count: int, seed: int, folder: Path) -> Tally:
    """Flip a random bit of the file `name`, `count` times, each in a fresh copy."""
    chosen, tally = random.Random(seed), Tally()
    for _ in range(count):
        bit = chosen.randrange(8 * len(queue.files[name]))
        place = folder / f"{name}-{bit}"
        flipped(queue, name, bit, place)
        try:
            fault = _judge(queue, place / DB, tally)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            tally.wrong.append(f"{name} bit {bit}: {fault}")
        shutil.rmtree(place)
    return tally


def _judge(queue: Queue, path: Path, tally: Tally) -> str | None:
    """Why this is not right; None if it is."""
    db, notice = open_database(path)
    with closing(db):
        found = content(db)
        new = deliveries.enqueue(db, New((Target("new", "s"),), b'{"content":"new"}', 1))[1][0].id
    sides = {file.name.partition("Z")[2]: file for file in path.parent.glob(f"{DB}.damaged-*")}
    whole = "" in sides
    named = _named(sides[".rows"]) if ".rows" in sides else set()
    changed = [key for key, value in found.items() if queue.truth.get(key) != value]
    lost = {
        key
        for key in queue.truth.keys() - found.keys()
        if key[0] != "keys" or ("deliveries", key[1]) in found
    }
    tally.harmless += not sides
    tally.rows += bool(named)
    tally.file += whole
    tally.repaired += ".repaired" in sides
    tally.unreplayed += ".unreplayed" in sides
    if bool(sides) != bool(notice):
        return f"set aside {sorted(sides)}, but said {notice!r}"
    if changed and not (".unreplayed" in sides and _older(queue, changed)):
        return f"changed: {changed}"
    if len(lost) > len(named) and not (whole or ".unreplayed" in sides):
        return f"lost: {sorted(map(str, lost))}, named {named}"
    if (
        not whole
        and ".unreplayed" not in sides
        and new <= max(id_ for table, id_ in queue.truth if table == "deliveries")
    ):
        return f"the id {new} is given again"
    db, again = open_database(path)
    with closing(db):
        after = content(db)
    if again != notice or after.keys() - {("deliveries", new)} != found.keys():
        return f"another start: {again!r}, not {notice!r}"
    return None


def _older(queue: Queue, changed: list[tuple[str, Any]]) -> bool:
    """True if these only have an earlier state: their end was in what is lost."""
    return all(key in queue.truth for key in changed)


def _named(file: Path) -> set[tuple[str, Any]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {(row["table"], row["row"]) for row in rows}
