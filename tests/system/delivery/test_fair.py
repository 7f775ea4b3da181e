"""No mind starves, no message is refused silently, and everyone can see why they wait."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

from guard import wait_for
from scripted_host import ScriptedHost

from hostguard.core import paths
from hostguard.core.model import Target
from hostguard.store import deliveries
from hostguard.store.sums import maintain

MANY = 9644


def test_case_14_one_producer_queues_thousands_of_rows(scripted: ScriptedHost) -> None:
    """14, ConductionNL/openregister#2267: another mind's next row starts within one hand-off."""
    scripted.start("abc", global_concurrent_turns=2)
    running, other = scripted.send("@a", "wait_go"), scripted.send("@c", "wait_go")
    scripted.wait_started(running, other)
    scripted.guard.stop()
    new = deliveries.New([Target("a", "main")], b'{"content":""}', int(time.time() * 1000))
    with closing(sqlite3.connect(paths.DATABASE)) as db, db:  # the last few come the common way
        maintain(db)
        for _ in range(MANY - 20):
            deliveries.enqueue(db, new)
    scripted.guard.restart()
    rows = [scripted.send("@a") for _ in range(20)]
    assert rows[-1] == MANY + 2
    assert scripted.get("/v1/status")["queued"] == MANY
    row = scripted.send("@b", "wait_go")
    assert scripted.row(row)["hold"]["reason"] == "global_cap"
    scripted.go(other)
    scripted.wait_started(row)
    assert scripted.order()[2:] == [row], "the next to start"
    scripted.go(running)
    wait_for(lambda: len(scripted.order()) > 8)
    assert scripted.order()[3:9] == [3, 4, 5, 6, 7, 8], "and a's own rows go on, in order, beside it"
    scripted.post("/v1/pause")
    scripted.go(row)
    scripted.done(row)
    scripted.wait_turns(0)
    scripted.prove(cap=2)


def test_case_18_the_queue_limit_is_reached_while_a_row_is_in_a_turn(scripted: ScriptedHost) -> None:
    """18, openclaw/openclaw#103246: the row in the turn is never the victim; the caller is told who was refused."""
    channels = '[channels."#ab"]\nminds = ["a", "b"]\n[channels."#a"]\nminds = ["a"]'
    scripted.start("ab", channels, rows_per_mind=3)
    running = scripted.send("@a", "wait_go")
    scripted.wait_started(running)
    rows = [scripted.send("@a") for _ in range(3)]
    for to in ("@a", "#a"):
        refused = scripted.api.post("/v1/deliveries", json={"to": to, "content": ""})
        assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
        assert "a" in refused.json()["detail"].split()
    told = scripted.post("/v1/deliveries", to="#ab", content="")
    assert ([row["mind"] for row in told["deliveries"]], told["refused"]) == (["b"], ["a"])
    scripted.done(told["deliveries"][0]["id"])
    assert scripted.row(running)["state"] == "in_turn"
    person = scripted.guard.cli("send", "#ab", "hello", check=False)
    assert "a" in person.stderr, person
    scripted.go(running)
    scripted.done(running, *rows)
    assert [row for row in scripted.order() if row in {running, *rows}] == [running, *rows]
    scripted.done(scripted.send("@a"))
    ids = [row["id"] for row in scripted.get("/v1/deliveries?state=all&mind=a")["deliveries"]]
    assert len(ids) == 5, "nothing refused was stored"


def test_case_24_why_does_it_wait(scripted: ScriptedHost) -> None:
    """24, dagster-io/dagster#16441: reason, blocker, since when, place in line; "due at T" differs from "held"."""
    scripted.start("abc", global_concurrent_turns=2)
    running, other = scripted.send("@a", "wait_go"), scripted.send("@b", "wait_go")
    scripted.wait_started(running, other)
    sent = [scripted.send("@a"), scripted.send("@a"), scripted.send("@c"), scripted.send("@a", session="two")]
    later = scripted.send("@a", not_before=int(time.time() * 1000) + 3_600_000)

    def why(row: int) -> tuple[object, ...]:
        told = scripted.get(f"/v1/deliveries/{row}/why")
        created = scripted.row(row)["created_at"]
        since = told["since"] is not None and abs(told["since"] - created) < 1_000
        return told["reason"], told["blocker"], since, told["place"], told["ahead"]

    turn_a = f"hostguard-turn-a-{running}.scope"
    assert why(sent[0]) == ("session_busy", turn_a, True, 1, 0)
    assert why(sent[1]) == ("session_busy", turn_a, True, 2, 1)
    assert why(sent[2]) == ("global_cap", turn_a, True, 1, 0)
    assert why(sent[3]) == ("mind_busy", turn_a, True, 3, 2)
    assert why(later) == ("not_due", None, False, None, None)
    assert scripted.row(later)["hold"] is None
    assert scripted.get("/v1/status")["due_later"] == 1
    assert "is not held: it is due in " in scripted.get(f"/v1/deliveries/{later}/why")["text"]
    told = scripted.guard.cli("why", str(sent[1])).stdout
    assert f"its session is busy, behind turn {running}; it is number 2 in line" in told, told
    told = scripted.guard.cli("why", str(sent[2])).stdout
    assert f"no slot of the global cap is free, behind turn {running};" in told, told
    scripted.post("/v1/pause", mind="a")
    assert why(sent[0])[0] == "mind_paused"
    scripted.post("/v1/pause")
    assert [why(row)[0] for row in (sent[0], sent[2])] == ["paused", "paused"]
    scripted.post("/v1/resume")
    scripted.post("/v1/resume", mind="a")
    scripted.go(running)
    scripted.wait_turns(1)
    assert "does not wait" in scripted.get(f"/v1/deliveries/{running}/why")["text"]
    scripted.done(*sent)
    scripted.go(other)
    scripted.done(other)
