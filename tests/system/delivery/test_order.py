"""Caps and order: how many turns run at once, and which comes next."""

from __future__ import annotations

import time

import pytest
from card import Card
from guard import STATE, systemctl, wait_for
from scripted_host import ScriptedHost

SHARES_GUARD = True
TWELVE = "abcdefghijkl"


def test_case_01_three_heartbeats_in_the_same_second_on_a_slow_card(
    scripted: ScriptedHost, card: Card
) -> None:
    """1, the spec's incident: global cap 2, so never more than 2 scopes; all three run, in order."""
    state = card.mount / "state"
    state.mkdir()
    scripted.start("abc", global_concurrent_turns=2, state=state)
    due = int(time.time() * 1000) + 800
    write = f"dd if=/dev/zero of={card.mount}/$HOSTGUARD_MIND bs=64K count=4 oflag=sync status=none"
    rows = [scripted.send(f"@{mind}", write, sender="heartbeat", not_before=due) for mind in "abc"]
    assert scripted.get("/v1/status")["due_later"] == 3
    ended = scripted.done(*rows)
    scripted.prove(cap=2)
    assert max(line.scopes for line in scripted.log()) == 2, "both slots were in use"
    assert scripted.order()[2] == rows[2]
    starts = [row["started_at"] for row in ended]
    assert due <= starts[0] <= starts[1] < starts[2]
    assert scripted.events("held") == [("held", rows[2])]
    assert [row["result"]["exit"] for row in ended] == [0, 0, 0]


def test_case_02_a_message_to_a_channel_of_twelve(scripted: ScriptedHost) -> None:
    """2, the spec's fan-out: 12 rows in one transaction; at most the cap at once; none lost."""
    channel = f'[channels."#all"]\nminds = {list(TWELVE)}'
    scripted.start(TWELVE, channel, global_concurrent_turns=3)
    scripted.post("/v1/pause")
    before = commits()
    accepted = scripted.post("/v1/deliveries", to="#all", content="sleep 0.02", sender="person")
    rows = [row["id"] for row in accepted["deliveries"]]
    assert (commits() - before, accepted["refused"]) == (1, [])
    assert [row["mind"] for row in accepted["deliveries"]] == list(TWELVE)
    assert rows == list(range(rows[0], rows[0] + 12))
    scripted.post("/v1/resume")
    ended = scripted.done(*rows)
    assert {row["payload"]["content"] for row in ended} == {"sleep 0.02"}
    assert sorted(scripted.order()) == rows
    scripted.prove(cap=3)
    starts = [row["started_at"] for row in ended]
    assert starts == sorted(starts)


def commits() -> int:
    """How many transactions the write-ahead log holds, by SQLite's file format."""
    log = (STATE / "queue.db-wal").read_bytes()
    page, salt = int.from_bytes(log[8:12], "big"), log[16:24]
    frames = [log[at : at + 24] for at in range(32, len(log), page + 24)]
    return sum(frame[4:8] != bytes(4) for frame in frames if frame[8:16] == salt)


def test_case_12_a_row_held_for_one_second(scripted: ScriptedHost) -> None:
    """12, bensheldon/good_job#1353: it starts when the slot frees, not hours later by backoff."""
    scripted.start("a")
    first = scripted.send("@a", "sleep 1")
    second = scripted.send("@a")
    ended = scripted.done(first, second)
    events = scripted.events("ended", "hold_ended", "started")
    assert events.index(("hold_ended", second)) == events.index(("ended", first)) + 1
    assert ended[1]["attempts"] == 0
    assert ended[1]["result"]["held_ms"] >= 900
    assert ended[1]["started_at"] - ended[0]["ended_at"] < 500


def test_case_13_a_session_busy_longer_than_any_retry_budget(scripted: ScriptedHost) -> None:
    """13, gagan114662/openbot#13: offered more often than a failed row is tried, and attempts still 0."""
    scripted.start("a", mind_concurrent_turns=2)
    busy = scripted.send("@a", "wait_go")
    waits = scripted.send("@a")
    scripted.wait_started(busy)
    others = [scripted.send("@a", session=f"s{i}") for i in range(15)]  # each end offers it again
    scripted.done(*others)
    scripted.guard.restart()
    assert scripted.row(waits)["hold"]["reason"] == "session_busy"
    scripted.go(busy)
    (ended,) = scripted.done(waits)
    assert (ended["attempts"], ended["result"]["exit"]) == (0, 0)
    assert scripted.order()[-1] == waits
    scripted.prove(mind_cap=2)


@pytest.mark.parametrize("how", ["stop", "SIGKILL"])
def test_case_15_one_running_is_ended_and_one_queued_is_cancelled(scripted: ScriptedHost, how: str) -> None:
    """15, kestra-io/kestra#13211: limit 2, two run, two queued: never three at once."""
    scripted.start("abcde", global_concurrent_turns=2)
    first, second, third, fourth, fifth = (scripted.send(f"@{mind}", "wait_go") for mind in "abcde")
    scripted.wait_started(first, second)
    if how == "stop":
        scripted.post(f"/v1/turns/{first}/stop")
        scripted.done(first)
    else:
        systemctl("kill", "--signal=KILL", scripted.turns()[0]["unit"])
        wait_for(lambda: scripted.row(first)["attempts"] == 1)
        scripted.post(f"/v1/deliveries/{first}/cancel")  # it failed, and would be tried again
    scripted.post(f"/v1/deliveries/{fourth}/cancel")
    scripted.wait_started(third)
    assert len(scripted.turns()) == 2
    scripted.go(second)
    scripted.wait_started(fifth)
    assert len(scripted.turns()) == 2
    scripted.go(third, fifth)
    scripted.done(second, third, fifth)
    scripted.done(fourth, state="cancelled")
    assert scripted.order()[2:] == [third, fifth]
    scripted.prove(cap=2, killed=(str(first),))


def test_case_16_a_stuck_turn_with_eight_rows_behind_it(scripted: ScriptedHost) -> None:
    """16, openclaw/openclaw#130810 and #89208: a person stops it, and all eight are delivered, in order."""
    scripted.start("a")
    stuck = scripted.send("@a", "wait_go")
    rows = [scripted.send("@a") for _ in range(8)]
    scripted.wait_started(stuck)
    scripted.guard.cli("stop", str(stuck))
    scripted.done(*rows)
    (ended,) = scripted.done(stuck)
    assert (ended["result"]["outcome"], ended["attempts"]) == ("stopped", 0)
    assert scripted.order() == [stuck, *rows]
    scripted.prove(cap=1)


def test_case_26_a_cold_start(scripted: ScriptedHost) -> None:
    """26, anthony-chaudhary/fak#2769: nothing is live and rows wait: they start, under whatever cap."""
    scripted.start("abc", global_concurrent_turns=0)
    rows = [scripted.send(f"@{mind}") for mind in "abc"]
    assert scripted.turns() == []
    scripted.guard.stop()
    scripted.guard.configure(scripted.config("abc", global_concurrent_turns=1))
    systemctl("stop", "hostguard.slice")
    scripted.guard.restart()
    scripted.done(*rows)
    assert scripted.order() == rows
    scripted.prove(cap=1)


def test_case_31_the_cap_is_lowered_while_five_run(scripted: ScriptedHost) -> None:
    """31, elasticclaw#119: from 5 to 2: none is killed, and none started until fewer than 2 are left."""
    scripted.start("abcdefg", global_concurrent_turns=5)
    rows = [scripted.send(f"@{mind}", "wait_go") for mind in "abcdefg"]
    scripted.wait_started(*rows[:5])
    scripted.limit(2)
    for left, row in zip((4, 3, 2), rows, strict=False):
        scripted.go(row)
        (ended,) = scripted.done(row)
        assert ended["result"]["exit"] == 0
        assert scripted.get("/v1/status")["turns"] == left
        assert scripted.row(rows[5])["hold"]["reason"] == "global_cap"
    scripted.go(rows[3])
    scripted.wait_started(rows[5])
    assert len(scripted.turns()) == 2
    scripted.go(rows[4])
    scripted.wait_started(rows[6])
    scripted.go(*rows[5:])
    scripted.done(*rows)
    assert scripted.log("start")[5].scopes == scripted.log("start")[6].scopes == 2
    scripted.prove(cap=5)


def test_a_cap_that_is_raised_starts_as_many_as_fit_at_once(scripted: ScriptedHost) -> None:
    """Kin of 31: each raise starts just the rows that fit, the lowest ids first."""
    scripted.start("abcdef", global_concurrent_turns=1)
    rows = [scripted.send(f"@{mind}", "wait_go") for mind in "abcdef"]
    scripted.wait_started(rows[0])
    scripted.limit(4)
    scripted.wait_started(*rows[:4])
    assert len(scripted.turns()) == 4
    scripted.limit("unlimited")
    scripted.wait_started(*rows)
    scripted.go(*rows)
    scripted.done(*rows)
    wait_for(lambda: not scripted.guard.scopes())
