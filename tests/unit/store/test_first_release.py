"""What the first release (0.1) wrote, which every later version must open: its database and its configuration.

first_release/ was written by the real daemon of 0.1, with rows in each state and of nearly each kind, settings of
each sort, and every key of the configuration. It is never changed. tests/system/host/test_upgraded.py runs on it.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from onqueue import on_queue

from hostguard.config import load as config
from hostguard.core.model import Channel, Kind, State
from hostguard.gate.policy import Policy
from hostguard.store import deliveries
from hostguard.store.schema import SCHEMA
from hostguard.store.settings import SCHEDULE, SettingsStore

FOLDER = Path(__file__).with_name("first_release")
STATES = {
    State.QUEUED: 12, State.DELIVERING: 1, State.BATCHING: 1, State.QUARANTINED: 2, State.BATCHED: 2, State.DONE: 6,
    State.DEAD: 1, State.CANCELLED: 1, State.EXPIRED: 1, State.SKIPPED: 1,
}  # fmt: skip
KINDS = {
    Kind.MESSAGE: 18, Kind.NOTICE: 4, Kind.SCHEDULE: 1, Kind.SCRIPT: 1, Kind.FILE: 1, Kind.BATCH: 1,
    Kind.LIFECYCLE: 1, Kind.RUN: 1,
}  # fmt: skip


def test_the_database_is_that_of_then() -> None:
    with closing(sqlite3.connect(f"{(FOLDER / 'queue.db').as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_database_opens_with_every_row_and_setting(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "queue.db", tmp_path)

    async def work(queue: Any) -> None:
        assert queue.notice is None  # nothing was damaged
        assert await queue.read(lambda db: db.execute("PRAGMA user_version").fetchone()) == (SCHEMA,)
        rows = await queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 1000))
        assert Counter(row.state for row in rows) == STATES
        assert Counter(row.kind for row in rows) == KINDS
        for row in rows:
            found = await queue.read(lambda db, id_=row.id: deliveries.with_payload(db, id_))
            assert found is not None
            assert {"content", "batch", "argv0"} & json.loads(found[1]).keys()
        first = rows[0]
        assert (first.mind, first.key, first.sender, first.result["outcome"]) == (
            "alice",
            "mail-1",
            "eve",
            "exited",
        )

        settings = SettingsStore(queue)
        await settings.load()
        policy = Policy(settings, "another boot")
        policy.config = loaded()
        assert policy.paused()
        assert policy.paused("dora")
        assert policy.limit("mind_concurrent_turns", "dora") == (3, "kept")
        assert policy.limit("global_concurrent_turns") == (2, "config")  # --runtime ended with that boot
        assert policy.asleep("alice")
        assert [*settings.all(SCHEDULE)] == ["kept", "later"]
        assert len(policy.token("alice") or "") == 64

    on_queue(tmp_path, work)


def loaded() -> config.Config:
    return config.load([FOLDER / "hostguard.toml"])


def test_the_configuration_is_read_with_every_key() -> None:
    found = loaded()  # an unknown key, or a value that is not allowed any more, would be refused
    assert (found.global_concurrent_turns, found.payload_max, found.device_path) == (2, 1 << 20, "auto")
    assert (found.turn.io_weight, found.turn.write_bandwidth, found.turn.max_turn) == (50, 4_000_000, 1800)
    alice, bob = found.minds["alice"], found.minds["bob"]
    assert (alice.user, alice.limits.tasks_max, alice.environment) == ("root", 512, {"LANG": "C.UTF-8"})
    assert (bob.url, bob.unit, bob.routes) == (
        "http://127.0.0.1:4100", "hostguard-mind@bob.service", "/etc/hostguard/bob.json",
    )  # fmt: skip
    assert (bob.wake_on.channels, bob.sleep_after, bob.idle_end) == (("#urgent*",), 60, 600)
    assert found.channels == {"#general": Channel("#general", ("alice", "bob"))}
    assert (found.schedules["tidy"].cron, found.schedules["look"].script) == ("0 3 * * *", "echo looked")
    assert found.events_listen == ("127.0.0.1", 4200)
    assert found.pressure.stall_after == 1.5
