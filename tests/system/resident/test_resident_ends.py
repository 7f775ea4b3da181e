"""Every way in which a resident mind's turn ends, over HTTP and in real scopes, and what does not end it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest
from guard import run, wait_for
from guarded import LONG_S
from minds import OneMind
from resident_host import ResidentHost

from hostguard.core.outcome import LOST

# -- every way a turn ends


def test_done_without_a_session_ends_the_turns_of_all_sessions(host: ResidentHost) -> None:
    host.one("all", config="concurrent_turns = 2")
    slow = host.send("m", "a !work=20 silent", session="a")
    host.in_turn(slow)
    quick = host.send("m", "b", session="b")
    host.done(slow, quick)
    told = ("done", "the mind reported that it is done with all sessions")
    assert [host.ended(row) for row in (slow, quick)] == [told, told]


def test_the_turn_of_processes_that_are_gone_ends(host: ResidentHost) -> None:
    host.one(config="idle_end = 3")
    row = host.send("m", "!quit work=1")
    host.done(row)
    assert host.ended(row) == ("gone", "its processes are gone")


def test_all_messages_of_a_turn_whose_mind_died_run_again_in_order(host: ResidentHost) -> None:
    mind = host.one()
    row, folded = host.send("m", "a !work=60 keyless"), host.send("m", "b !work=0.1 keyless")
    wait_for(lambda: host.events("folded", row=folded), LONG_S)
    run("systemctl", "kill", "--signal=KILL", mind.unit)
    wait_for(lambda: host.events("failed", row=row), LONG_S)  # at once: it is idle only after 10 minutes
    wait_for(lambda: len(mind.taken()) == 4, LONG_S)
    wait_for(lambda: len(mind.log("begin")) == 2, LONG_S)
    host.send("m", "c !work=0.1", interrupt=True)
    found = host.done(row, folded)
    assert [one["attempts"] for one in found] == [1, 1]
    assert [host.ended(one["id"])[0] for one in found] == ["done", "done"]
    for one in (row, folded):
        [failed] = host.events("failed", row=one)
        assert (failed["outcome"], failed["reason"]) == ("died", "the mind's process died")
    assert [text.split()[0] for text in mind.contents()] == ["a", "b", "a", "b", "c"]


def test_a_turn_without_done_ends_once_it_is_idle(host: ResidentHost) -> None:
    mind = host.one("silent", work=3, config="idle_end = 1")
    row, held = host.send("m", "a", session="a"), host.send("m", "b", session="b")
    host.done(row, held)
    assert host.ended(row) == ("idle", "the mind has been idle for 1 s and sent no done")
    end, second = mind.log("end")[0], mind.log("begin")[1]
    assert 0.9 < second["at"] - end["at"] < 10, "not while it worked, and soon after"


def test_a_mind_that_tells_for_ever_but_does_nothing_is_idle(host: ResidentHost) -> None:
    mind = host.one("silent", config="idle_end = 2")
    row = host.send("m", "x")
    end = time.monotonic() + 15
    while host.row(row)["state"] != "done" and time.monotonic() < end:
        host.tell(mind, type="thinking", session="main", content="...")
        time.sleep(0.2)
    assert host.ended(row) == ("idle", "the mind has been idle for 2 s and sent no done")


def test_no_turn_is_longer_than_max_turn(host: ResidentHost) -> None:
    mind = host.one("silent", work=30, config="[minds.m.turn]\nmax_turn = 2")
    row = host.send("m", "x")
    host.done(row)
    assert host.ended(row) == ("timeout", f"ran longer than max_turn (2 s); {LOST}")
    assert mind.up(), "the mind itself is never killed"


def test_a_turn_that_is_stopped_ends(host: ResidentHost) -> None:
    mind = host.one("silent", work=30)
    row = host.send("m", "x")
    turn = host.in_turn(row)
    host.post(f"/v1/turns/{turn['id']}/stop")
    host.done(row)
    assert host.ended(row) == ("stopped", f"stopped on request; {LOST}")
    assert mind.up()


def test_nothing_more_is_posted_into_a_turn_that_is_stopped(host: ResidentHost) -> None:
    other = host.minds.add("o", work=1.5)
    mind = host.one("slow", global_concurrent_turns=1)
    first = host.send("m", "0 !work=60")
    turn = host.in_turn(first)
    waits = host.send("o", "x")
    rows = [
        host.send("m", f"{i} !work=0.5") for i in range(1, 7)
    ]  # so that each finds the turn before it live
    wait_for(lambda: len(mind.taken()) == 3)
    host.post(f"/v1/turns/{turn['id']}/stop")
    host.done(first, waits, *rows)
    assert host.ended(first) == ("stopped", f"stopped on request; {LOST}")
    assert [text.split()[0] for text in mind.contents()] == [str(i) for i in range(7)]
    into = [line["turn"] for line in mind.taken()]
    assert into.count(turn["id"]) <= 4, "one may have been on its way"
    assert len({*into}) == 2
    [begin], [end] = other.log("begin"), other.log("end")
    assert not [line for line in mind.taken() if begin["at"] < line["at"] < end["at"]], "beside the gate"


# -- what ends nothing


def test_a_done_that_is_late_double_unknown_or_foreign_ends_nothing(host: ResidentHost) -> None:
    other = host.minds.add("o", work=0.1)
    mind = host.one()
    assert host.tell(mind, type="done", session="main") == 200, "without any turn"
    first = host.send("m", "a")
    host.done(first)
    began = time.monotonic()
    second = host.send("m", "b !work=4 silent mute")
    host.in_turn(second)
    assert host.tell(mind, type="done", session="main") == 200, "the first one's, tried again"
    time.sleep(max(0, 2.5 - (time.monotonic() - began)))  # now it is none that is tried again
    assert host.tell(mind, type="done", session="no such session") == 200
    assert host.tell(other, type="done") == 200, "the other mind's own"
    assert host.tell(other, about="m", type="done", session="main") == 403
    assert host.tell(mind, type="done", session="main", endsTurn=False) == 200
    assert host.tell(mind, type="error", session="main") == 200
    time.sleep(0.7)
    assert [turn["delivery"] for turn in host.turns()] == [second]
    assert host.tell(mind, type="done", session="main") == 200
    host.done(second)
    assert host.row(second)["result"]["run_ms"] > 2000


@pytest.mark.parametrize("session", ["main", None])
def test_the_done_of_a_turn_that_was_stopped_ends_no_later_one(
    host: ResidentHost, session: str | None
) -> None:
    mind = host.one("silent")
    turn = host.in_turn(host.send("m", "a !work=20 mute"))
    host.post(f"/v1/turns/{turn['id']}/stop")
    wait_for(lambda: not host.turns())
    second = host.send("m", "b !work=20 mute")
    host.in_turn(second)
    told = {"session": session} if session else {}
    assert host.tell(mind, type="done", **told) == 200, "the mind has seen its process end"
    time.sleep(0.5)
    assert [turn["delivery"] for turn in host.turns()] == [second]
    time.sleep(2)
    assert host.tell(mind, type="done", **told) == 200
    host.done(second)
    assert host.ended(second)[0] == "done"


def test_a_done_without_a_session_that_is_tried_again_ends_no_turn_of_another(host: ResidentHost) -> None:
    mind = host.one("silent")
    first, second = (host.send("m", f"{s} !work=20 mute", session=s) for s in "ab")
    host.in_turn(first)
    leave_after_telling(host, mind, type="done")
    host.done(first)
    host.in_turn(second)
    assert host.tell(mind, type="done") == 200, "the first one's, tried again"
    time.sleep(0.5)
    assert [turn["delivery"] for turn in host.turns()] == [second]
    time.sleep(2)
    assert host.tell(mind, type="done") == 200
    host.done(second)


def test_a_done_whose_answer_was_lost_ends_no_later_turn_though_that_told_something(
    host: ResidentHost,
) -> None:
    mind = host.one(work=0.1)
    first = host.send("m", "a !work=20 silent", session="s")
    host.in_turn(first)
    leave_after_telling(host, mind, type="done", session="s")
    host.done(first)
    second = host.send("m", "b !work=20 silent", session="s")
    host.in_turn(second)
    assert host.tell(mind, type="thinking", session="s") == 200
    assert host.tell(mind, type="done", session="s") == 200, "the first one's, tried again"
    time.sleep(0.5)
    assert [turn["delivery"] for turn in host.turns()] == [second]
    time.sleep(2)
    assert host.tell(mind, type="done", session="s") == 200
    host.done(second)


def leave_after_telling(host: ResidentHost, mind: OneMind, **event: object) -> None:
    """Tell an event, and be gone before the answer comes."""
    body = json.dumps(event).encode()
    with socket.create_connection(("127.0.0.1", host.minds.events_port)) as sock:
        sock.sendall(
            f"POST /api/minds/{mind.name}/events HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {mind.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )


def test_a_done_that_was_answered_is_never_forgotten(host: ResidentHost) -> None:
    mind = host.one("silent", config="idle_end = 60")
    for _ in range(3):
        row = host.send("m", "x")
        host.in_turn(row)
        pid = host.guard.pid
        assert host.tell(mind, type="done", session="main") == 200
        os.kill(pid, signal.SIGKILL)
        host.guard.restart()
        assert host.row(row)["state"] == "done"
        assert host.ended(row)[0] == "done"


# -- the guard restarts


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_a_done_that_is_told_while_the_guard_is_away_waits_for_it(host: ResidentHost, how: str) -> None:
    mind = host.one(work=3 if how == "killed" else 1)
    row = host.send("m", "x")
    host.in_turn(row)
    if how == "killed":
        host.guard.kill()  # systemd starts it again after RestartSec, 5 s: longer than a mind tries
    else:
        wait_for(lambda: mind.log("begin"))
        time.sleep(max(0, mind.log("begin")[0]["at"] + 0.9 - time.time()))
        host.guard.restart()
    wait_for(lambda: mind.log("done"), LONG_S)
    host.guard.wait_ready()
    host.done(row)
    assert host.ended(row)[0] == "done"
    assert [line["status"] for line in mind.log("done")] == [200]
