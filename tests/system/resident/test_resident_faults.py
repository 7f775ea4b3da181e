"""Resident minds that refuse, are down or die, and guards that are killed: each message arrives, and once."""

from __future__ import annotations

import time

import pytest
from guard import wait_for
from guarded import LONG_S
from resident_host import ResidentHost
from searches import sized

SHARES_GUARD = True

# -- failures


def test_a_refusal_counts_and_is_tried_again_with_the_same_key(host: ResidentHost) -> None:
    mind = host.one()
    mind.control(refuse=1)
    row = host.send("m", "a")
    host.done(row)
    first, second = mind.log("message")
    assert 4 < second["at"] - first["at"] < 10
    assert first["key"] == second["key"]
    assert host.row(row)["attempts"] == 1
    [failed] = host.events("failed", row=row)
    assert "HTTP 500" in failed["reason"]


def test_a_mind_that_is_down_is_no_failure(host: ResidentHost) -> None:
    mind = host.minds.add("m")
    host.start(down=("m",))
    first = host.send("m", "a")
    wait_for(lambda: host.events("held", row=first), LONG_S)
    second = host.send("m", "b")
    for row in (first, second):
        assert host.get(f"/v1/deliveries/{row}/why")["reason"] == "mind_down"
    host.minds.start("m")
    assert {row["attempts"] for row in host.done(first, second)} == {0}
    assert mind.contents() == ["a", "b"]


def test_a_mind_that_is_gone_for_a_while_in_the_middle_gets_its_rows_in_order(host: ResidentHost) -> None:
    mind = host.one(work=0.05, config="idle_end = 2")  # it knows the keys of what it took, and tells no done
    for i in range(30):
        host.send("m", f"{i}{' !die' if i == 5 else ''}", session="s")
    rows = host.rows()
    host.done(*(row["id"] for row in rows))
    died = {event["turn"] for event in host.events("failed") if event["outcome"] == "died"}
    assert len(died) == 1
    again = {event["delivery"] for event in host.events("failed", "folded") if event["turn"] in died}
    tried = {row["id"] for row in host.rows() if row["attempts"]}
    assert len(tried - again) < 2, "the one that was on its way"
    assert again <= tried, "all that the mind had taken in that turn"
    numbers = [int(line["content"].split()[0]) for line in mind.taken()]
    assert numbers == sorted(numbers), "what came after it waited, too"


def test_a_dead_letter_is_told_once_to_its_mind_and_its_sender(host: ResidentHost) -> None:
    sender = host.minds.add("s")
    mind = host.one()
    host.post("/v1/pause")
    row = host.send("m", "bad", sender="s")
    host.guard.stop()
    host.sql("UPDATE deliveries SET attempts = 9 WHERE id = ?", row)
    host.guard.restart()
    mind.control(refuse=1)
    host.post("/v1/resume")
    [found] = host.done(row, state="dead")
    assert found["attempts"] == 10
    wait_for(lambda: len(sender.taken()) == len(mind.taken()) == 1)
    time.sleep(1)
    for told in (mind, sender):
        [content] = told.contents()
        assert f"message {row} from s to m could not be delivered" in content
    assert len(host.events("dead")) == 1
    host.post(f"/v1/deliveries/{row}/retry")
    host.done(row)
    assert mind.contents()[-1] == "bad"


# -- duplicates


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_mind_that_honours_the_key_sees_each_delivery_once_though_the_guard_is_killed(
    host: ResidentHost, when: str
) -> None:
    mind = host.one(work=3 if when == "after" else 0.1)
    if when == "during":
        mind.control(delay=5.0)
    row = host.send("m", "x")
    if when != "before":
        wait_for(lambda: mind.taken())
    if when == "after":
        wait_for(lambda: host.sql("SELECT 1 FROM deliveries WHERE id = ? AND posted_at > 0", row))
    host.kill()
    mind.control(delay=0)
    [found] = host.done(row)
    assert mind.contents() == ["x"]
    assert found["attempts"] == 0
    lines = mind.log("message")
    assert len({line["key"] for line in lines}) == 1
    # On a busy machine the kill "before" the POST may come too late for that.
    assert len(lines) in {"before": (1, 2), "during": (2,), "after": (1,)}[when]
    if when == "after":
        assert host.ended(row)[0] == "done"


def test_killed_at_any_moment_of_many_deliveries_each_arrives_once(host: ResidentHost) -> None:
    # A `done` is told three times, and each may meet a kill: then the turn ends as idle.
    minds = [host.minds.add(name, work=0.03, config="idle_end = 2") for name in "abc"]
    host.start(global_concurrent_turns=2)
    rows: list[int] = []
    rounds = sized(12)
    for i in range(rounds):
        rows += [host.send(name, f"{i}", session=f"s{i % 2}", key=f"{name}{i}") for name in "abc"]
        time.sleep(0.01 * (i % 5))
        host.kill()
    found = host.done(*rows)
    assert {row["attempts"] for row in found} == {0}
    for mind in minds:
        for session in ("s0", "s1"):
            # On a busy host some waited for a minute, and say so.
            assert [text.splitlines()[-1] for text in mind.contents(session)] == [
                str(i) for i in range(rounds) if f"s{i % 2}" == session
            ]


def test_a_lost_answer_is_a_failure_and_the_key_prevents_the_double(host: ResidentHost) -> None:
    mind = host.one(config="idle_end = 2")
    mind.control(lose=1)
    row = host.send("m", "x")
    [found] = host.done(row)
    assert [line["repeat"] for line in mind.log("message")] == [False, True]
    assert found["attempts"] == 1
