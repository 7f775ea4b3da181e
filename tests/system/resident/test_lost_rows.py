"""A resident mind's turn whose row is lost while it is live: it ends as any other, and keeps its slot until then."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from guard import STATE, wait_for
from guarded import LONG_S
from minds import OneMind
from resident_host import ResidentHost

from hostguard.core import paths

SHARES_GUARD = True


def damaged(host: ResidentHost) -> None:
    """Spoiled on the card, as a bad one does."""
    host.kill_for_good()
    file = STATE / "queue.db"
    with file.open("r+b") as spoiled:
        spoiled.seek(1024)
        spoiled.write(os.urandom(file.stat().st_size - 1024))
    (STATE / "queue.db-wal").unlink(missing_ok=True)


def moved_away(host: ResidentHost) -> None:
    host.guard.stop()
    for file in STATE.iterdir():
        file.rename(file.with_name(f"away-{file.name}"))


def restored(host: ResidentHost) -> None:
    """From a backup that is older than the row."""
    host.guard.stop()
    for file in STATE.glob("queue.db*"):
        file.unlink()
    shutil.copy(STATE / "backup", STATE / "queue.db")


def deleted(host: ResidentHost) -> None:
    host.sql("DELETE FROM deliveries WHERE state = 'delivering'")
    host.guard.stop()


def changed(host: ResidentHost) -> None:
    """By somebody who does not keep its checksum, or by the card: the row alone is set aside."""
    host.guard.stop()
    with closing(sqlite3.connect(paths.DATABASE)) as db, db:
        db.execute("UPDATE deliveries SET sender = 'x' WHERE state = 'delivering'")


WAYS = [damaged, moved_away, restored, deleted, changed]


def lose_row(host: ResidentHost, mind: OneMind, lose: Callable[[ResidentHost], None], content: str) -> None:
    """A turn of session s is live, and its row is lost."""
    host.done(host.send("m", "before"))
    host.guard.stop()
    shutil.copy(STATE / "queue.db", STATE / "backup")
    host.guard.restart()
    row = host.send("m", content, session="s")
    host.in_turn(row)
    wait_for(lambda: [line for line in mind.log("begin") if line["session"] == "s"], LONG_S)
    lose(host)
    host.guard.restart()
    assert host.api.get(f"/v1/deliveries/{row}").status_code == 404
    [turn] = host.turns()
    assert (turn["id"], turn["session"], turn["state"], turn["delivery"]) == (str(row), "s", "running", None)


@pytest.mark.parametrize("lose", WAYS)
def test_it_ends_with_its_done(host: ResidentHost, lose: Callable[[ResidentHost], None]) -> None:
    """It was foreign, and nobody ended it, though the mind said done."""
    mind = host.one(config="concurrent_turns = 1")
    lose_row(host, mind, lose, "x !work=8")
    folds, waits = host.send("m", "folds", session="s"), host.send("m", "waits", session="t")
    host.done(folds, waits)
    assert mind.contents() == ["before", "x !work=8", "folds", "waits"], "each once"
    wait_for(lambda: not host.guard.scopes())
    [began] = [line for line in mind.log("begin") if line["session"] == "t"]
    assert all(end["at"] <= began["at"] for end in mind.log("end") if end["session"] == "s")


@pytest.mark.parametrize(
    ("content", "config"), [("x !work=4 silent", "idle_end = 2"), ("x !work=4 quit", "idle_end = 3")]
)
def test_it_ends_once_it_is_idle_or_its_processes_are_gone(
    host: ResidentHost, content: str, config: str
) -> None:
    mind = host.one(config=config)
    lose_row(host, mind, moved_away, content)
    waits = host.send("m", "waits", session="t")
    assert host.row(waits)["hold"]["reason"] == "mind_busy"
    host.done(waits)
    wait_for(lambda: not host.guard.scopes())


def test_it_ends_with_its_mind(host: ResidentHost) -> None:
    mind = host.one()
    lose_row(host, mind, moved_away, "x !work=24 die")
    waits = host.send("m", "waits", session="t")
    host.done(waits)
    wait_for(lambda: not host.guard.scopes())


def test_it_is_followed_by_the_next_guards_too_and_can_be_stopped(host: ResidentHost) -> None:
    mind = host.one()
    lose_row(host, mind, moved_away, "x !work=30")
    for _ in range(2):
        host.kill()
        [turn] = host.turns()
        assert (turn["session"], turn["state"]) == ("s", "running")
    host.post(f"/v1/turns/{turn['id']}/stop")
    wait_for(lambda: not host.turns(), LONG_S)
    host.done(host.send("m", "after", session="s"))
    assert mind.contents() == ["before", "x !work=30", "after"]
