"""What is damaged in a queue's file, what becomes of it, and what is told; also in a file of an earlier schema."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from flips import DB, WAL, content, fill, flipped, killed_queue
from onqueue import message, on_queue, put

from hostguard.core.clock import Now
from hostguard.core.model import Kind, State
from hostguard.store import connection, damage, deliveries, schema, slow_check, sums, wal
from hostguard.store.connection import open_database
from hostguard.store.settings import LIMIT, PAUSE, SettingsStore, stored, write
from hostguard.store.writer import Unavailable, Unreadable
from hostguard.telemetry import timeline_rows

FIRST_RELEASE = Path(__file__).with_name("first_release") / "queue.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with every sort of row, closed."""
    with closing(open_database(tmp_path / DB)[0]) as db:
        fill(db)
    return tmp_path / DB


def behind(path: Path, *statements: str) -> None:
    """Change the file behind the guard's back, whatever its constraints say."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA ignore_check_constraints=ON")
        db.execute("PRAGMA writable_schema=ON")
        for statement in statements:
            db.execute(statement)


def opened(path: Path):
    """(content, notice) after a start."""
    db, notice = open_database(path)
    with closing(db):
        return content(db), notice


def kept(path: Path) -> list[dict]:
    return [json.loads(line) for file in path.parent.glob("*.rows") for line in file.read_text().splitlines()]


def test_the_constraints_are_those_of_the_model():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        schema.migrate(db, 0)
        (text,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'deliveries'").fetchone()
        for column, values in (("state", {*State}), ("kind", {*Kind} - {Kind.UNROUTED})):
            listed = text.partition(f"CHECK ({column} IN (")[2].partition("))")[0].partition("\n")[2]
            assert sorted(listed.replace("'", "").replace("\n", "").replace(" ", "").split(",")) == sorted(
                values
            )
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        strict = {row[1] for row in db.execute("PRAGMA table_list") if row[5]}
        assert tables == strict == sums.tables(db).keys(), "each table is strict, and has checksums"


def test_every_step_changes_the_schema():
    """So that the tables tell which step a file has had, whatever its header says."""
    layouts = [schema._expected(step) for step in range(schema.SCHEMA + 1)]
    assert len(set(layouts)) == len(layouts)


@pytest.mark.parametrize("version", [0, 1, 3, 5, 6, 12, 132, -1])
def test_a_wrong_number_of_the_schema_is_set_right(path, version):
    before, _ = opened(path)
    behind(path, f"PRAGMA user_version={version}")
    assert opened(path) == (before, None)


@pytest.mark.parametrize(
    "change",
    [
        "replace(sql, 'mind TEXT', 'mhnd TEXT')",
        "replace(sql, 'queued', 'quaued')",
        "replace(sql, 'TABLE', 'TAB' || CAST(x'ff' AS TEXT) || 'E')",
        "replace(sql, 'INTEGER PRIMARY', 'IOTEGER PRIMARY')",
    ],
)
def test_a_changed_definition_is_set_right(path, change):
    before, _ = opened(path)
    behind(path, f"UPDATE sqlite_master SET sql = {change} WHERE name = 'deliveries'")
    assert opened(path) == (before, None)


def test_a_definition_that_is_another_is_damage(path):
    behind(path, "UPDATE sqlite_master SET sql = 'CREATE TABLE deliveries (x)' WHERE name = 'deliveries'")
    assert "a new one was begun" in opened(path)[1]


def test_a_row_that_cannot_be_deleted_by_its_index_is_set_aside_all_the_same(path):
    """Its entry in the index has the key and mind that it had."""
    raw = path.read_bytes()
    at = raw.index(b"mind-2session-2") + 5  # in the row itself, not in the index
    path.write_bytes(raw[:at] + b"9" + raw[at + 1 :])
    assert "1 row (deliveries " in opened(path)[1]
    assert len(kept(path)) == 1
    with closing(open_database(path)[0]) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_setting_that_another_has_the_name_of_now(path):
    behind(path, "DROP TABLE IF EXISTS x")
    with closing(open_database(path)[0]) as db:
        db.execute("INSERT INTO settings (name, value) VALUES ('sb', '1'), ('sc', '2')")
    raw = path.read_bytes()
    at = raw.index(b"sc2")
    path.write_bytes(raw[:at] + b"sb" + raw[at + 2 :])
    with closing(open_database(path)[0]) as db:
        assert stored(db)["sb"] == 1
    assert [one["content"]["value"] for one in kept(path)] == ["2"]


def test_an_index_that_is_wrong_is_made_anew(path):
    before, _ = opened(path)
    raw = path.read_bytes()
    at = raw.index(b"key-9mind-2")
    path.write_bytes(raw[: at + 4] + b"8" + raw[at + 5 :])
    assert opened(path) == (before, None)
    with closing(open_database(path)[0]) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_id_of_the_newest_row_is_not_given_again(path):
    with closing(open_database(path)[0]) as db:
        last = deliveries.last_id(db)
    behind(path, f"UPDATE deliveries SET sender = 'x' WHERE id = {last}")
    with closing(open_database(path)[0]) as db:
        assert deliveries.enqueue(db, message())[1][0].id > last


def test_an_id_that_is_out_of_reach_is_not_believed(path):
    with closing(open_database(path)[0]) as db:
        last = deliveries.last_id(db)
    behind(path, f"UPDATE deliveries SET id = {1 << 60} WHERE id = {last}")
    with closing(open_database(path)[0]) as db:
        assert last < deliveries.enqueue(db, message())[1][0].id < last + 10


def test_a_message_is_kept_with_its_row_and_one_of_a_fan_out_stays_for_the_others(tmp_path):
    async def work(queue):
        await put(queue, message("a", "b", body=b'{"content":"secret"}'))

    on_queue(tmp_path, work)
    behind(tmp_path / DB, "UPDATE deliveries SET mind = 'c' WHERE id = 1")
    with closing(open_database(tmp_path / DB)[0]) as db:
        assert deliveries.with_payload(db, 2)[1] == b'{"content":"secret"}'
    (record,) = kept(tmp_path / DB)
    assert (record["row"], record["content"]["mind"], record["message"]) == (1, "c", '{"content":"secret"}')
    (file,) = tmp_path.glob("*.rows")
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_folder_takes_no_more_files(path, monkeypatch):
    """Then nothing is taken out of the queue, and the start is tried again."""
    behind(path, "UPDATE deliveries SET mind = 'c' WHERE id = 1")
    before = path.read_bytes()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hostguard.store.asides._new", full)
    with pytest.raises(OSError, match="No space"):
        open_database(path)
    monkeypatch.undo()
    assert "1 row" in opened(path)[1]
    assert len(before) == path.stat().st_size


@pytest.mark.parametrize("text", ["CAST(x'ff' AS TEXT)", "'another'"])
def test_a_large_file_is_not_read_whole_and_its_rows_are_checked_as_they_are_met(
    path, monkeypatch, caplog, text
):
    monkeypatch.setattr(connection, "CHECK_MAX", 0)
    behind(
        path,
        f"UPDATE deliveries SET sender = {text} WHERE id = 2",
        "UPDATE deliveries SET result = '{\"a\": 1}' WHERE id IN (3, 4)",
        "UPDATE payloads SET body = x'7b7d' WHERE id = 5",
        "UPDATE settings SET value = '7' WHERE name LIKE 'limit%'",
        "UPDATE points SET level = 1 WHERE at = 0",
        "UPDATE incidents SET level = 1",
    )

    async def work(queue):
        assert queue.notice is None
        assert await queue.read(lambda db: timeline_rows.incidents(db, 0)) == []
        assert 0 not in [point.at for point in await queue.read(lambda db: timeline_rows.points(db, 0))]
        settings = SettingsStore(queue)
        await settings.load()
        assert settings.get(LIMIT, "cap") is None
        rows = await queue.read(lambda db: deliveries.select(db, (), None, 0, 1000))
        assert {2, 3, 4} & {row.id for row in rows} == set()
        assert await queue.read(lambda db: deliveries.with_payload(db, 5)) is None
        assert await queue.write(lambda db: deliveries.with_payload(db, 5)) is None
        return queue.notice

    told = on_queue(path.parent, work)
    assert "To end this notice" in told
    assert {(one["table"], one["row"]) for one in kept(path)} >= {("deliveries", row) for row in (2, 3, 4, 5)}
    assert "number" not in caplog.text


def test_a_large_file_is_checked_in_the_background(path, monkeypatch):
    monkeypatch.setattr(connection, "CHECK_MAX", 0)
    monkeypatch.setattr(slow_check, "CHECK_MAX", 0)
    monkeypatch.setattr(damage, "SOME", 7)
    monkeypatch.setattr(slow_check, "PAUSE_S", 0)
    behind(
        path,
        "UPDATE deliveries SET state = 'quaued' WHERE id IN (2, 60)",
        "UPDATE deliveries SET sender = CAST(x'ff' AS TEXT) WHERE id = 7",
        "UPDATE payloads SET body = x'7b7d' WHERE id = 8",
        "UPDATE points SET level = 1 WHERE at = 0",
    )

    async def work(queue):
        await slow_check.check_slowly(queue)

    on_queue(path.parent, work)
    assert {(one["table"], one["row"]) for one in kept(path)} == {
        *(("deliveries", id_) for id_ in (2, 7, 8, 60)), ("payloads", 8), ("points", 0),
    }  # fmt: skip


def test_the_notice_ends_once_the_files_are_moved_away(path):
    behind(path, "UPDATE deliveries SET mind = 'c' WHERE id = 1")

    async def work(queue):
        assert "deliveries 1" in queue.notice
        for file in path.parent.glob("*.rows"):
            file.unlink()
        await queue.renew_notice()
        return queue.notice

    assert on_queue(path.parent, work) is None


def test_a_write_that_meets_damage_is_made_without_it(tmp_path):
    async def work(queue):
        await put(queue, message(key="k"))
        await queue.write(lambda db: db.execute("UPDATE deliveries SET sum = 1"))
        (again,) = (await put(queue, message(key="k")))[1]
        assert again.id > 1, "the row of that key is gone"
        return queue.notice

    assert "1 row (deliveries 1)" in on_queue(tmp_path, work)


@pytest.mark.parametrize("change", ["mind = 'b'", "session = 's'", "sender = CAST(x'ff' AS TEXT)"])
def test_a_change_of_a_damaged_row_does_not_make_it_look_whole(tmp_path, change):
    """The checksum was made anew with whatever the row had by then; text that is not UTF-8 was a bug."""

    async def work(queue):
        for _ in range(2):
            await put(queue, message("a"))
        await queue.write(lambda db: deliveries.mark_delivering(db, 1, "1", Now(5), {}))
        behind(tmp_path / DB, f"UPDATE deliveries SET {change} WHERE id = 1")
        await queue.write(lambda db: deliveries.finish(db, 1, "1", State.DONE, 0, 9, {}), keep=True)
        assert await queue.read(lambda db: deliveries.get(db, 1)) is None
        assert await queue.read(lambda db: deliveries.get(db, 2)) is not None
        assert not queue.faults
        return queue.notice

    assert "1 row (deliveries 1)" in on_queue(tmp_path, work)
    assert [one["row"] for one in kept(tmp_path / DB)] == [1]


def test_a_damaged_setting_that_is_set_anew_is_whole(tmp_path):
    async def work(queue):
        await queue.write(lambda db: write(db, PAUSE.to("", True)))
        behind(tmp_path / DB, "UPDATE settings SET value = 'fals' WHERE name = 'pause'")
        await queue.write(lambda db: write(db, PAUSE.to("", True)))
        assert await queue.read(stored) == {"pause": True}
        return queue.notice

    assert on_queue(tmp_path, work) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [("value = 'tru'", "settings pause"), ("name = CAST(x'61ff62' AS TEXT)", "settings a?b")],
)
@pytest.mark.parametrize("old", [False, True])
def test_a_setting_that_is_set_aside_is_told_by_its_name(tmp_path, old, change, named):
    """It was "settings 1"; a name that is not UTF-8 would have made the status a 500."""
    if old:
        shutil.copy(FIRST_RELEASE, tmp_path / DB)
    with closing(open_database(tmp_path / DB)[0] if not old else sqlite3.connect(tmp_path / DB)) as db, db:
        db.execute("INSERT OR REPLACE INTO settings (name, value) VALUES ('pause', 'true')")
    behind(tmp_path / DB, f"UPDATE settings SET {change} WHERE name = 'pause'")
    notice = opened(tmp_path / DB)[1]
    assert f"1 row ({named})" in notice
    notice.encode()


def test_what_cannot_be_set_aside_is_reported_as_such(tmp_path):
    async def work(queue):
        def read(db):
            raise sums.Damaged(("deliveries", 1))

        await put(queue, message())
        with pytest.raises(Unreadable, match="deliveries 1"):
            await queue.read(read)
        with pytest.raises(Unavailable):
            await queue.write(read)
        await put(queue, message())

    on_queue(tmp_path, work)


OLD = [
    ("UPDATE deliveries SET state = 'quaued' WHERE id = 4", "deliveries", 4),
    ("UPDATE deliveries SET kind = 'massage' WHERE id = 4", "deliveries", 4),
    ("UPDATE deliveries SET mind = CAST(x'ff' AS TEXT) WHERE id = 4", "deliveries", 4),
    ("UPDATE deliveries SET result = '{' WHERE id = 4", "deliveries", 4),
    ("UPDATE deliveries SET attempts = 'many' WHERE id = 4", "deliveries", 4),
    ("UPDATE payloads SET body = x'7b' WHERE id = 1", "payloads", 1),
    ("DELETE FROM payloads WHERE id = 1", "deliveries", 1),
    ("UPDATE settings SET value = 'tru' WHERE name = 'pause'", "settings", "pause"),
    *(
        (
            f"UPDATE settings SET value = replace(value, '{key}', 'vamue') WHERE name = '{name}'",
            "settings",
            name,
        )
        for name, key in (
            ("limit.mind_concurrent_turns.mind.dora", "value"),
            ("fired.kept", "last"),
            ("sleep.mind.alice", "until"),
            ("schedule.kept", "mind"),
            ("schedule.kept", "enabled"),
        )
    ),
]


@pytest.mark.parametrize(("change", "table", "row"), OLD, ids=[sql for sql, _, _ in OLD])
def test_a_damaged_row_of_an_earlier_schema_does_not_stop_the_migration(tmp_path, change, table, row):
    shutil.copy(FIRST_RELEASE, tmp_path / DB)
    with closing(open_database(tmp_path / DB)[0]) as db:
        before = content(db)
    for file in tmp_path.iterdir():
        file.unlink()
    shutil.copy(FIRST_RELEASE, tmp_path / DB)
    behind(tmp_path / DB, change)
    found, notice = opened(tmp_path / DB)
    assert f"{table} {row}" in notice
    lost = {key for key in before.keys() - found.keys() if key[0] != "keys"}  # that goes with its row
    assert lost == {("settings", row) if table == "settings" else ("deliveries", row)}
    assert {key: found[key] for key in found} == {key: before[key] for key in found}
    assert opened(tmp_path / DB) == (found, notice)


def test_an_old_file_with_a_wrong_number_or_column_is_no_start_that_fails_for_ever(tmp_path):
    for number, change in enumerate(
        (
            "PRAGMA user_version=1",
            "PRAGMA user_version=18",
            "ALTER TABLE deliveries RENAME COLUMN mind TO mhnd",
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(FIRST_RELEASE, folder / DB)
        behind(folder / DB, change)
        found, notice = opened(folder / DB)
        assert bool(notice) == (number == 2)
        assert len(found) > 20 or number == 2


# -- the WAL


def test_another_process_that_closes_the_database_leaves_the_wal(tmp_path):
    """SQLite removes it if no other process seems to have the file open: later changes would be lost with us."""
    look = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM payloads'); db.close()"

    async def work(queue):
        await put(queue, message("a"))
        file = (tmp_path / WAL).stat().st_ino
        command = [sys.executable, "-c", look, str(tmp_path / DB)]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)
        await put(queue, message("b"))
        assert (tmp_path / WAL).stat().st_ino == file

    on_queue(tmp_path, work)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    return killed_queue(tmp_path_factory.mktemp("killed") / "made")


def frames(raw: bytes) -> int:
    return (len(raw) - wal.HEADER) // (wal.FRAME + 1024)


def test_bits_of_every_byte_of_the_header_and_of_the_last_frames_head_are_seen(killed):
    raw = killed.files[WAL]
    last = wal.HEADER + (frames(raw) - 1) * (wal.FRAME + 1024)
    for at in (*range(wal.HEADER), *range(last, last + wal.FRAME), last + wal.FRAME + 1000):
        for bit in (at % 8, (at + 3) % 8, (at + 5) % 8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            found = wal.examine(changed, 1024)
            assert found is not None, (at, bit)
            if found.repair is not None:
                offset, right = found.repair
                changed[offset : offset + len(right)] = right
                assert changed == raw, (at, bit)


def test_a_wal_that_was_cut_anywhere_is_none_that_was_damaged(killed):
    raw = killed.files[WAL]
    for length in (0, 10, wal.HEADER, *range(len(raw) - 3000, len(raw) + 1, 97)):
        assert wal.examine(raw[:length], 1024) is None, length
        assert wal.examine(raw[:length].ljust(len(raw), b"\0"), 1024) is None, length


def test_the_rest_of_an_earlier_wal_is_no_damage(killed):
    """A WAL is written over from its beginning: behind its end are frames with other salts."""
    raw, size = killed.files[WAL], wal.FRAME + 1024
    older = bytearray(raw)
    for frame in range(frames(raw) // 2, frames(raw)):
        older[wal.HEADER + frame * size + 8 : wal.HEADER + frame * size + 16] = b"earlier!"
    assert wal.examine(older, 1024) is None


def test_a_hole_in_the_last_change_is_taken_for_a_power_cut_and_one_before_it_for_damage(killed):
    size = wal.FRAME + 1024
    commits = [
        frame
        for frame in range(frames(killed.files[WAL]))
        if any(killed.files[WAL][wal.HEADER + frame * size + 4 : wal.HEADER + frame * size + 8])
    ]
    # The last change that has several frames, and the change before it.
    before, last = next((a, b) for a, b in zip(commits[-2::-1], commits[:0:-1], strict=True) if b - a > 2)
    raw = killed.files[WAL][: wal.HEADER + (last + 1) * size]
    earlier = commits[commits.index(before) - 1]  # two whole changes follow it
    for frame, told in ((last, False), (last - 1, False), (before, False), (earlier, True), (3, True)):
        holed = bytearray(raw)
        at = wal.HEADER + frame * size + wal.FRAME + 100
        holed[at : at + 900] = bytes(900) if any(holed[at : at + 900]) else b"x" * 900
        found = wal.examine(holed, 1024)
        assert (found is not None) == told, frame
        assert found is None or found.repair is None


def test_what_a_power_cut_left_is_not_looked_at_twice(killed, tmp_path):
    """Later changes are written over it, and its rest may hold whole changes."""
    flipped(killed, WAL, 0, tmp_path / "q")
    (tmp_path / "q" / WAL).write_bytes(killed.files[WAL][:-700])
    with closing(open_database(tmp_path / "q" / DB)[0]):
        assert (tmp_path / "q" / WAL).stat().st_size == 0


def test_a_file_of_a_queue_that_cannot_be_copied_is_left_as_it_was(killed, tmp_path, monkeypatch):
    flipped(killed, WAL, 8 * 5000, tmp_path / "q")
    before = (tmp_path / "q" / WAL).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="No space"):
        open_database(tmp_path / "q" / DB)
    assert sorted(file.name for file in (tmp_path / "q").iterdir()) == [DB, WAL]
    assert (tmp_path / "q" / WAL).read_bytes() == before


def test_what_integrity_check_says_of_rows_and_indexes_is_not_about_the_structure():
    for line in ("NULL value in deliveries.mind", "CHECK constraint failed in deliveries", "non-TEXT value in a.b",
                 "TEXT value in deliveries.id"):  # fmt: skip
        assert damage._OF_ROWS.match(line)
    for line in (
        "row 3 missing from index x",
        "wrong # of entries in index x",
        "non-unique entry in index x",
    ):
        assert damage._OF_INDEX.match(line)
