"""The daemon on the state that the first release left; see tests/unit/store/test_first_release.py."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from guard import DISK, ROOT, Guard, wait_for
from guarded import LONG_S, GuardedHost

LEFT = ROOT / "tests/unit/store/first_release"
SAID = Path("/tmp/alice")  # where the configuration has alice write what she is sent


@pytest.fixture
def host(guard: Guard) -> Iterator[GuardedHost]:
    SAID.unlink(missing_ok=True)
    state = Path(tempfile.mkdtemp(prefix="state-", dir=DISK))
    shutil.copy(LEFT / "queue.db", state)
    with (
        closing(sqlite3.connect(state / "queue.db")) as db,
        db,
    ):  # no schedule was missed; one would wake alice
        seen = "UPDATE settings SET value = json_set(value, '$.seen', ?) WHERE name LIKE 'fired.%'"
        assert db.execute(seen, (time.time_ns() // 1_000_000,)).rowcount == 2
    Path("/etc/hostguard").mkdir(exist_ok=True)
    shutil.copy(LEFT / "bob.json", "/etc/hostguard")
    guard.start((LEFT / "hostguard.toml").read_text(), state)
    made = GuardedHost(guard)
    yield made
    made.api.close()


def test_what_the_first_release_left_goes_on(host: GuardedHost) -> None:
    status = host.get("/v1/status")
    broken, *of_carol = status["problems"]
    assert [one["code"] for one in of_carol] == ["mind_failing", "dead_letters"]
    # Of then nobody knows for whom a script was authorised.
    unknown = "an older hostguard did not note for which user it was authorised"
    assert broken["text"].startswith(f"schedule later: its script is refused: {unknown}")
    assert (status["state"], status["turns"]) == ("paused", 0)
    assert [(host.row(row)["kind"], host.row(row)["uid"]) for row in (7, 9)] == [
        ("script", None),
        ("file", None),
    ]
    minds = {mind["name"]: mind for mind in host.get("/v1/minds")["minds"]}
    assert sorted(minds) == ["alice", "bob", "carol", "dora"]
    assert (minds["alice"]["state"], minds["dora"]["state"]) == ("asleep", "paused")
    assert minds["bob"]["gated"] == 2
    # Its hour in the batch of then is over: it goes out as the guard starts.
    wait_for(lambda: host.row(16)["state"] == "batched", LONG_S)
    schedules = {one["name"]: one["source"] for one in host.get("/v1/schedules")["schedules"]}
    assert schedules == {"kept": "kept", "later": "kept", "tidy": "config", "look": "config"}

    host.post("/v1/resume")
    host.post("/v1/minds/alice/wake")
    host.done(22)
    assert "good night" in SAID.read_text()
    # After its pause the turn that was live when the host of then went down runs again; then what was held behind it.
    host.post("/v1/resume", mind="dora")
    for row in (20, 24):
        wait_for(lambda row=row: (row, "running") in [(t["delivery"], t["state"]) for t in host.turns()], 60)
        host.post(f"/v1/turns/{host.row(row)['turn']}/stop")
        host.done(row)
    assert host.row(25)["not_before"] == 4_000_000_000_000
    # The same key is still taken for the message of then.
    again = host.api.post(
        "/v1/deliveries",
        json={"to": "@alice", "content": {"text": ["any", "JSON"]}, "key": "mail-1", "sender": "eve"},
    )
    assert (again.status_code, again.json()["deliveries"][0]["id"]) == (200, 1)
    wait_for(lambda: not host.turns(), 60)
