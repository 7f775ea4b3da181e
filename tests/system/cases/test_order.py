"""Caps and order: how many turns run at once, and which comes next."""

from __future__ import annotations

import time

import pytest
from card import Card
from guard import STATE, systemctl, wait_for
from host import Host

TWELVE = "abcdefghijkl"


def test_case_01_three_heartbeats_in_the_same_second_on_a_slow_card(host: Host, card: Card) -> None:
    """1, the spec's incident: global cap 2, so never more than 2 scopes; all three run, in order."""
    state = card.mount / "state"
    state.mkdir()
    host.start("abc", global_concurrent_turns=2, state=state)
    due = int(time.time() * 1000) + 800
    write = f"dd if=/dev/zero of={card.mount}/$HOSTGUARD_MIND bs=64K count=4 oflag=sync status=none"
    rows = [host.send(f"@{mind}", write, sender="heartbeat", not_before=due) for mind in "abc"]
    assert host.get("/v1/status")["due_later"] == 3
    ended = host.done(*rows)
    host.prove(cap=2)
    assert max(line.scopes for line in host.log()) == 2, "both slots were in use"
    assert host.order()[2] == rows[2]
    starts = [row["started_at"] for row in ended]
    assert due <= starts[0] <= starts[1] < starts[2]
    assert host.events("held") == [("held", rows[2])]
    assert [row["result"]["exit"] for row in ended] == [0, 0, 0]


def test_case_02_a_message_to_a_channel_of_twelve(host: Host) -> None:
    """2, the spec's fan-out: 12 rows in one transaction; at most the cap at once; none lost."""
    channel = f'[channels."#all"]\nminds = {list(TWELVE)}'
    host.start(TWELVE, channel, global_concurrent_turns=3)
    host.post("/v1/pause")
    before = commits()
    accepted = host.post("/v1/deliveries", to="#all", content="sleep 0.02", sender="person")
    rows = [row["id"] for row in accepted["deliveries"]]
    assert (commits() - before, accepted["refused"]) == (1, [])
    assert [row["mind"] for row in accepted["deliveries"]] == list(TWELVE)
    assert rows == list(range(rows[0], rows[0] + 12))
    host.post("/v1/resume")
    ended = host.done(*rows)
    assert {row["payload"]["content"] for row in ended} == {"sleep 0.02"}
    assert sorted(host.order()) == rows
    host.prove(cap=3)
    starts = [row["started_at"] for row in ended]
    assert starts == sorted(starts)


def commits() -> int:
    """How many transactions the write-ahead log holds, by SQLite's file format."""
    log = (STATE / "queue.db-wal").read_bytes()
    page, salt = int.from_bytes(log[8:12], "big"), log[16:24]
    frames = [log[at : at + 24] for at in range(32, len(log), page + 24)]
    return sum(frame[4:8] != bytes(4) for frame in frames if frame[8:16] == salt)


def test_case_12_a_row_held_for_one_second(host: Host) -> None:
    """12, bensheldon/good_job#1353: it starts when the slot frees, not hours later by backoff."""
    host.start("a")
    first = host.send("@a", "sleep 1")
    second = host.send("@a")
    ended = host.done(first, second)
    events = host.events("ended", "hold_ended", "started")
    assert events.index(("hold_ended", second)) == events.index(("ended", first)) + 1
    assert ended[1]["attempts"] == 0
    assert ended[1]["result"]["held_ms"] >= 900
    assert ended[1]["started_at"] - ended[0]["ended_at"] < 500


def test_case_13_a_session_busy_longer_than_any_retry_budget(host: Host) -> None:
    """13, gagan114662/openbot#13: offered more often than a failed row is tried, and attempts still 0."""
    host.start("a", mind_concurrent_turns=2)
    busy = host.send("@a", "wait_go")
    waits = host.send("@a")
    host.wait_started(busy)
    others = [host.send("@a", session=f"s{i}") for i in range(15)]  # each end offers it again
    host.done(*others)
    host.guard.restart()
    assert host.row(waits)["hold"]["reason"] == "session_busy"
    host.go(busy)
    (ended,) = host.done(waits)
    assert (ended["attempts"], ended["result"]["exit"]) == (0, 0)
    assert host.order()[-1] == waits
    host.prove(mind_cap=2)


@pytest.mark.parametrize("how", ["stop", "SIGKILL"])
def test_case_15_one_running_is_ended_and_one_queued_is_cancelled(host: Host, how: str) -> None:
    """15, kestra-io/kestra#13211: limit 2, two run, two queued: never three at once."""
    host.start("abcde", global_concurrent_turns=2)
    first, second, third, fourth, fifth = (host.send(f"@{mind}", "wait_go") for mind in "abcde")
    host.wait_started(first, second)
    if how == "stop":
        host.post(f"/v1/turns/{first}/stop")
        host.done(first)
    else:
        systemctl("kill", "--signal=KILL", host.turns()[0]["unit"])
        wait_for(lambda: host.row(first)["attempts"] == 1)
        host.post(f"/v1/deliveries/{first}/cancel")  # it failed, and would be tried again
    host.post(f"/v1/deliveries/{fourth}/cancel")
    host.wait_started(third)
    assert len(host.turns()) == 2
    host.go(second)
    host.wait_started(fifth)
    assert len(host.turns()) == 2
    host.go(third, fifth)
    host.done(second, third, fifth)
    host.done(fourth, state="cancelled")
    assert host.order()[2:] == [third, fifth]
    host.prove(cap=2, killed=(str(first),))


def test_case_16_a_stuck_turn_with_eight_rows_behind_it(host: Host) -> None:
    """16, openclaw/openclaw#130810 and #89208: a person stops it, and all eight are delivered, in order."""
    host.start("a")
    stuck = host.send("@a", "wait_go")
    rows = [host.send("@a") for _ in range(8)]
    host.wait_started(stuck)
    host.guard.cli("stop", str(stuck))
    host.done(*rows)
    (ended,) = host.done(stuck)
    assert (ended["result"]["outcome"], ended["attempts"]) == ("stopped", 0)
    assert host.order() == [stuck, *rows]
    host.prove(cap=1)


def test_case_26_a_cold_start(host: Host) -> None:
    """26, anthony-chaudhary/fak#2769: nothing is live and rows wait: they start, under whatever cap."""
    host.start("abc", global_concurrent_turns=0)
    rows = [host.send(f"@{mind}") for mind in "abc"]
    assert host.turns() == []
    host.guard.stop()
    host.guard.configure(host.config("abc", global_concurrent_turns=1))
    systemctl("stop", "hostguard.slice")
    host.guard.restart()
    host.done(*rows)
    assert host.order() == rows
    host.prove(cap=1)


def test_case_31_the_cap_is_lowered_while_five_run(host: Host) -> None:
    """31, elasticclaw#119: from 5 to 2: none is killed, and none started until fewer than 2 are left."""
    host.start("abcdefg", global_concurrent_turns=5)
    rows = [host.send(f"@{mind}", "wait_go") for mind in "abcdefg"]
    host.wait_started(*rows[:5])
    host.limit(2)
    for left, row in zip((4, 3, 2), rows, strict=False):
        host.go(row)
        (ended,) = host.done(row)
        assert ended["result"]["exit"] == 0
        assert host.get("/v1/status")["turns"] == left
        assert host.row(rows[5])["hold"]["reason"] == "global_cap"
    host.go(rows[3])
    host.wait_started(rows[5])
    assert len(host.turns()) == 2
    host.go(rows[4])
    host.wait_started(rows[6])
    host.go(*rows[5:])
    host.done(*rows)
    assert host.log("start")[5].scopes == host.log("start")[6].scopes == 2
    host.prove(cap=5)


def test_a_cap_that_is_raised_starts_as_many_as_fit_at_once(host: Host) -> None:
    """Kin of 31: each raise starts just the rows that fit, the lowest ids first."""
    host.start("abcdef", global_concurrent_turns=1)
    rows = [host.send(f"@{mind}", "wait_go") for mind in "abcdef"]
    host.wait_started(rows[0])
    host.limit(4)
    host.wait_started(*rows[:4])
    assert len(host.turns()) == 4
    host.limit("unlimited")
    host.wait_started(*rows)
    host.go(*rows)
    host.done(*rows)
    wait_for(lambda: not host.guard.scopes())
