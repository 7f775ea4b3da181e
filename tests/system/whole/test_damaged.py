"""A queue that a card damaged: what is damaged is set aside and told, the rest goes on, and each start succeeds.

The mass of random flips is in tests/unit/store/test_flips.py; these show a sample on the real daemon.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from guard import wait_for
from guarded import LONG_S
from scripted_host import ScriptedHost
from searches import sized

from hostguard.core import paths

SHARES_GUARD = True
ROWS = 60
WAL = paths.DATABASE.with_name("queue.db-wal")
SECRET = "sesame"  # in each message: it must not reach the journal
SEED, FLIPS = 3, sized(12)


def filled(host: ScriptedHost, rows: int = ROWS) -> list[int]:
    """This many messages that wait, for 3 minds and 2 sessions."""
    host.start("abc")
    host.post("/v1/pause")
    return [
        host.send(
            f"@{'abc'[i % 3]}", f": {SECRET} {i}", session=f"session-{i % 2}", key=f"key-{host.first_row}-{i}"
        )
        for i in range(rows)
    ]


def waiting(host: ScriptedHost) -> list[int]:
    return [row["id"] for row in host.get("/v1/deliveries?limit=1000")["deliveries"]]


def asides() -> list[Path]:
    return sorted(paths.STATE.glob("queue.db.damaged-*"))


def told(host: ScriptedHost) -> str:
    """What status says of damage, which the doctor says, too."""
    texts = [one["text"] for one in host.get("/v1/status")["problems"] if one["code"] == "queue_damaged"]
    if texts:
        assert texts[0] in " ".join(host.guard.cli("doctor", check=False).stdout.split())
    return "".join(texts)


def shown_well(host: ScriptedHost) -> None:
    """No start failed, but for a kill, and the journal has neither a traceback nor a message."""
    lines = [line["MESSAGE"] for line in host.guard.journal("_SYSTEMD_UNIT=hostguard.service")]
    assert not [line for line in lines if "Traceback" in line or SECRET in line]
    assert not [
        line
        for line in host.guard.journal("UNIT=hostguard.service")
        if "result 'exit-code'" in line["MESSAGE"]
    ]


def removed(host: ScriptedHost) -> None:
    """A person moves what was set aside away, and reloads: nothing is said of it then."""
    for path in asides():
        path.unlink()
    host.guard.reload()
    assert told(host) == ""


def change(path: Path, edit: Callable[[bytearray], None]) -> None:
    raw = bytearray(path.read_bytes())
    edit(raw)
    path.write_bytes(raw)


def flip(raw: bytearray, at: int, bit: int = 0) -> None:
    raw[at] ^= 1 << bit


def test_a_flipped_bit_in_the_wal_loses_nothing(scripted: ScriptedHost) -> None:
    rows = filled(scripted)
    scripted.kill_for_good()
    before = WAL.read_bytes()
    change(WAL, lambda raw: flip(raw, raw.index(f"{SECRET} 20".encode())))
    flipped = WAL.read_bytes()
    assert before != flipped
    scripted.guard.restart()
    assert waiting(scripted) == rows
    copy, its_wal = asides()
    assert its_wal.read_bytes() == flipped
    assert "repaired by their checksums" in told(scripted)
    assert str(copy) in told(scripted)
    assert scripted.guard.journal("PRIORITY=2", "_SYSTEMD_UNIT=hostguard.service")
    shown_well(scripted)
    removed(scripted)
    assert waiting(scripted) == rows


def test_a_wal_that_does_not_replay_whole_is_kept_and_told(scripted: ScriptedHost) -> None:
    rows = filled(scripted)
    scripted.kill_for_good()

    def spoil(raw: bytearray) -> None:
        at = raw.index(f"{SECRET} 20".encode())
        raw[at - 100 : at + 100] = bytes(200)

    change(WAL, spoil)
    scripted.guard.restart()
    left = waiting(scripted)
    assert left == rows[: len(left)]
    assert 0 < len(left) < ROWS
    copy, its_wal = asides()
    assert f"{SECRET} 59".encode() in its_wal.read_bytes()
    assert "may be lost" in told(scripted)
    assert str(copy) in told(scripted)
    assert [
        line for line in scripted.guard.journal("PRIORITY=2") if "changes or more are lost" in line["MESSAGE"]
    ]
    scripted.guard.restart()
    assert str(copy) in told(scripted), "until a person has moved it away"
    shown_well(scripted)
    removed(scripted)


@pytest.mark.parametrize("how", ["cut off", "half a frame", "zeros", "a hole"])
def test_what_a_power_cut_leaves_of_a_last_change_is_no_damage(scripted: ScriptedHost, how: str) -> None:
    """The sender of the last change got no answer then."""
    rows = filled(scripted, 9)
    scripted.kill_for_good()

    def cut(raw: bytearray) -> None:
        last = raw.rindex(f"{SECRET} 8".encode())  # its payload, in the last change
        if how == "cut off":
            del raw[last - 500 :]
        elif how == "half a frame":
            del raw[-100:]
        elif how == "zeros":
            raw[last - 500 :] = bytes(len(raw) - last + 500)
        else:
            raw[last - 250 : last + 250] = bytes(500)

    change(WAL, cut)
    scripted.guard.restart()
    assert waiting(scripted) == rows[:8]
    assert (told(scripted), asides()) == ("", [])
    shown_well(scripted)


def sql(statement: str) -> Callable[[int], None]:
    """Change content behind the guard's back: no checksum is set. `{}` is a row."""

    def run(row: int) -> None:
        with closing(sqlite3.connect(paths.DATABASE)) as db, db:
            db.execute("PRAGMA ignore_check_constraints=ON")
            db.execute("PRAGMA writable_schema=ON")
            assert db.execute(statement.format(row)).rowcount == (-1 if "PRAGMA" in statement else 1)

    return run


def in_file(old: bytes, new: bytes) -> Callable[[int], None]:
    def run(row: int) -> None:
        def edit(raw: bytearray) -> None:
            at = raw.index(old)
            raw[at : at + len(old)] = new

        change(paths.DATABASE, edit)

    return run


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (sql("UPDATE deliveries SET state = 'quaued' WHERE id = {}"), 2),
        (sql("UPDATE deliveries SET state = 'done' WHERE id = {}"), 2),
        (sql("UPDATE deliveries SET mind = CAST(x'6180' AS TEXT) WHERE id = {}"), 2),
        (sql("UPDATE deliveries SET mind = 'b' WHERE id = {}"), 3),
        (sql("UPDATE deliveries SET session = 'session-9' WHERE id = {}"), 2),
        (sql("UPDATE deliveries SET result = '{{' WHERE id = {}"), 2),
        (
            sql(
                "UPDATE payloads SET body = CAST(replace(body, '2', '3') AS BLOB)"
                " WHERE id = (SELECT payload FROM deliveries WHERE id = {})"
            ),
            2,
        ),
        (sql("DELETE FROM payloads WHERE id = (SELECT payload FROM deliveries WHERE id = {})"), 2),
        (sql("UPDATE settings SET value = 'tru' WHERE name = 'pause'"), None),
        (in_file(b"    mind TEXT NOT NULL", b"    mhnd TEXT NOT NULL"), None),
        (in_file(b"'queued', 'delivering'", b"'quaued', 'delivering'"), None),
        (in_file(b"CREATE TABLE settings", b"CREATE TABLE settinws"), None),
        (sql("PRAGMA user_version=5"), None),
    ],
    ids=lambda value: str(value) if not callable(value) else "",
)
def test_damage_that_sqlite_does_not_see(
    scripted: ScriptedHost, damage: Callable[[int], None], lost: int | None
) -> None:
    """`lost`: the place of the row that is damaged."""
    rows = filled(scripted, 9)
    gone = rows[lost] if lost is not None else None
    scripted.guard.stop()
    damage(gone or 0)
    scripted.guard.restart()
    found = [row["id"] for row in scripted.get("/v1/deliveries?state=all&limit=1000")["deliveries"]]
    # A lost pause is none: then some have ended.
    assert [row for row in rows if row in found] == [row for row in rows if row != gone]
    if gone is not None:
        assert scripted.api.get(f"/v1/deliveries/{gone}").status_code == 404
        (file,) = asides()
        kept = [json.loads(line) for line in file.read_text().splitlines()]
        assert gone in [one["row"] for one in kept]
        assert str(file) in told(scripted)
    scripted.post("/v1/resume")
    scripted.done(*(row for row in rows if row != gone))
    after = scripted.send("@a")
    assert after > max(rows)
    scripted.done(after)
    assert gone not in scripted.order()
    shown_well(scripted)
    removed(scripted)


def test_damage_met_at_work_is_set_aside_and_its_waiter_told(scripted: ScriptedHost) -> None:
    rows = filled(scripted, 6)
    second, fourth = rows[1], rows[3]
    sql("UPDATE deliveries SET sender = CAST(x'ff' AS TEXT) WHERE id = {}")(fourth)
    assert waiting(scripted) == [row for row in rows if row != fourth]
    assert f"deliveries {fourth}" in told(scripted)
    wait_for(lambda: scripted.get("/v1/status")["held"] == len(rows) - 1, LONG_S)
    sql(
        "UPDATE payloads SET body = CAST(replace(body, '1', '3') AS BLOB)"
        " WHERE id = (SELECT payload FROM deliveries WHERE id = {})"
    )(second)
    scripted.post("/v1/resume")
    left = [row for row in rows if row not in (second, fourth)]
    scripted.done(*left)
    answer = scripted.api.get(f"/v1/deliveries/{second}?wait_s=5")
    assert answer.status_code == 404, answer.text
    assert sorted(scripted.order()) == left
    assert len(asides()) == 2
    shown_well(scripted)
    removed(scripted)


def test_damage_of_a_row_whose_turn_runs_does_not_look_whole_once_that_ends(scripted: ScriptedHost) -> None:
    """The end stored a right checksum for what the card had changed; bad text in it was told as a bug."""
    scripted.start("abc")
    rows = [scripted.send(f"@{mind}", f"wait_go; : {SECRET}") for mind in "abc"]
    scripted.wait_started(*rows)
    sql("UPDATE deliveries SET session = 'other' WHERE id = {}")(rows[0])
    sql("UPDATE deliveries SET sender = CAST(x'ff' AS TEXT) WHERE id = {}")(rows[1])
    scripted.go(*rows)
    scripted.done(rows[2])
    wait_for(lambda: not scripted.turns(), LONG_S)
    for row in rows[:2]:
        assert scripted.api.get(f"/v1/deliveries/{row}").status_code == 404
    kept = {json.loads(line)["row"] for file in asides() for line in file.read_text().splitlines()}
    assert kept == set(rows[:2])
    assert "write_failed" not in [one["code"] for one in scripted.get("/v1/status")["problems"]]
    assert told(scripted)
    shown_well(scripted)
    removed(scripted)


def test_notes_in_the_runtime_folder_that_cannot_be_used(scripted: ScriptedHost) -> None:
    rows = filled(scripted, 3)
    scripted.guard.stop()
    for path, text in (
        (paths.FROZEN, "5"), (paths.TIGHTENED, '{"a": 1}'), (paths.PRESSURE, "[]"), (paths.SESSIONS, '{"1": 2}'),
    ):  # fmt: skip
        path.write_text(text)
    for name in ("a folder", "9" * 30, "\udcff"):
        (paths.TURNS / name).mkdir()
    scripted.guard.restart()
    assert waiting(scripted) == rows
    assert len(list(paths.RUNTIME.glob("*.json.damaged"))) == 4
    scripted.post("/v1/resume")
    scripted.done(*rows)
    shown_well(scripted)


def test_random_flips_on_the_real_daemon(scripted: ScriptedHost) -> None:
    """A sample of what the unit test does; the rest goes on each time, and the guard says what does not."""
    rows = filled(scripted, 30)
    scripted.guard.stop()
    whole = paths.DATABASE.read_bytes()
    chosen = random.Random(SEED)
    for _ in range(FLIPS):
        for path in (*asides(), WAL):
            path.unlink(missing_ok=True)
        raw = bytearray(whole)
        bit = chosen.randrange(8 * len(raw))
        flip(raw, bit // 8, bit % 8)
        paths.DATABASE.write_bytes(raw)
        scripted.guard.restart()
        found = waiting(scripted)
        for row in found:
            seen: Any = scripted.row(row)
            i = row - rows[0]
            assert (seen["mind"], seen["session"]) == ("abc"[i % 3], f"session-{i % 2}"), bit
            assert seen["payload"]["content"] == f": {SECRET} {i}", bit
        said = told(scripted)
        assert bool(said) == bool(asides()), bit
        if found != rows:
            assert "a new one was begun" in said or all(
                f"deliveries {row}" in said for row in set(rows) - set(found)
            ), bit
        scripted.guard.stop()
    wait_for(lambda: scripted.guard.pid == 0)
    scripted.guard.restart()
    shown_well(scripted)
