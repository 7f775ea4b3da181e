"""Resident minds over HTTP, in real scopes: how a turn begins, what folds into it, and every way it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from guard import Guard, wait_for
from guarded import LONG_S
from minds import OneMind
from resident_host import ResidentHost


@pytest.fixture
def host(guard: Guard) -> Iterator[ResidentHost]:
    with ResidentHost(guard) as host:
        yield host


def cgroup(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().rpartition("0::")[2].strip()


# -- a delivery


def test_a_message_is_posted_in_a_scope_and_done_ends_the_turn(host: ResidentHost) -> None:
    mind = host.one(work=0.5)
    row = host.send("m", "hello", sender="alice", channel="#x", isDM=False, participants=["alice", "m"])
    turn = host.in_turn(row)
    assert host.guard.scopes() == [turn["unit"]]
    [found] = host.done(row)
    [line] = mind.log("message")
    assert (line["content"], line["sender"], line["channel"], line["session"]) == (
        "hello",
        "alice",
        "#x",
        "main",
    )
    assert line["body"] == ["channel", "content", "interrupt", "isDM", "participants", "sender", "session"]
    assert line["turn"] == turn["id"] == found["turn"]
    assert line["key"]
    assert host.ended(row) == ("done", "the mind said that it is done")
    assert found["attempts"] == 0
    assert found["result"]["run_ms"] >= 500
    wait_for(lambda: not host.guard.scopes())


def test_the_work_is_in_the_turns_scope_and_the_mind_never_is(host: ResidentHost) -> None:
    mind = host.one("spawns", work=1.5)
    home = host.guard
    server_pid = mind_pid(mind.unit)
    before = cgroup(server_pid)
    assert before.endswith(f"/{mind.unit}"), before
    for _ in range(2):
        row = host.send("m", "x")
        turn = host.in_turn(row)
        [scope] = [unit for unit in home.scopes() if unit == turn["unit"]]
        begun = len(mind.log("begin"))
        wait_for(lambda begun=begun: len(mind.log("begin")) >= max(begun, 1), LONG_S)
        child = mind.log("begin")[-1]["pid"]
        wait_for(lambda child=child, scope=scope: scope in cgroup(child), 5)
        wait_for(lambda scope=scope, child=child: writers(scope) >= 3, 5)
        assert cgroup(server_pid) == before
        host.done(row)
        assert scope in mind.log("end")[-1]["cgroup"]
        wait_for(lambda scope=scope: scope not in home.scopes())
        assert mind.unit in cgroup(child), "the session's process is back in the mind's own unit"
        assert cgroup(server_pid) == before
    assert mind_pid(mind.unit) == server_pid


def mind_pid(unit: str) -> int:
    from guard import run

    return int(run("systemctl", "show", "--value", "--property=MainPID", unit).stdout)


def writers(scope: str) -> int:
    """Processes in the scope that a session's process started."""
    [folder] = Path("/sys/fs/cgroup/hostguard.slice").rglob(scope)
    pids = [int(pid) for file in folder.rglob("cgroup.procs") for pid in file.read_text().split()]
    texts = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if Path(f"/proc/{pid}").exists()]
    return sum(b"bytes(4096)" in text for text in texts)


# -- folding


def test_messages_of_a_live_session_fold_in_order_whatever_the_cap_or_a_pause(host: ResidentHost) -> None:
    mind = host.one(work=0.3, global_concurrent_turns=1)
    first = host.send("m", "0 !work=1")
    host.in_turn(first)
    host.post("/v1/pause")
    rows = [host.send("m", str(i), interrupt=i == 3) for i in range(1, 5)]
    wait_for(lambda: len(mind.taken()) == 5)
    assert len(host.turns()) == 1
    found = host.done(first, *rows)
    assert len({row["turn"] for row in found}) == 1
    assert mind.contents() == ["0 !work=1", "1", "2", "3", "4"]
    assert [line["interrupt"] for line in mind.taken()] == [False, False, False, True, False]
    assert len(mind.log("done")) == 1, "one done covers them all"
    assert [e["delivery"] for e in host.events("folded")] == rows
    host.post("/v1/resume")


def test_the_rows_behind_a_turn_drain_into_the_next_one_of_their_session(host: ResidentHost) -> None:
    mind = host.one(work=0.1, global_concurrent_turns=1)
    host.in_turn(host.send("m", "a !work=1", session="a"))
    rows = [host.send("m", f"{i}", session="b") for i in range(20)]
    found = host.done(*rows)
    assert mind.contents("b") == [str(i) for i in range(20)]
    assert len({row["turn"] for row in found}) == 1
    assert {row["attempts"] for row in found} == {0}


# -- every way a turn ends


def test_done_without_a_session_ends_the_turns_of_all_sessions(host: ResidentHost) -> None:
    host.one("all", config="concurrent_turns = 2")
    slow = host.send("m", "a !work=20 silent", session="a")
    host.in_turn(slow)
    quick = host.send("m", "b", session="b")
    host.done(slow, quick)
    told = ("done", "the mind said that it is done with all sessions")
    assert [host.ended(row) for row in (slow, quick)] == [told, told]


def test_the_turn_of_processes_that_are_gone_ends(host: ResidentHost) -> None:
    host.one(config="idle_end = 3")
    row = host.send("m", "!quit work=1")
    host.done(row)
    assert host.ended(row) == ("gone", "its processes are gone")


def test_the_turn_of_a_mind_that_died_ends_at_once(host: ResidentHost) -> None:
    mind = host.one(work=1)
    row, folded = host.send("m", "!die"), host.send("m", "x")
    began = time.monotonic()
    host.done(row, folded)
    assert time.monotonic() - began < 3
    assert [host.ended(r) for r in (row, folded)] == [("died", "the mind's process died")] * 2
    host.minds.wait_up(mind)
    host.done(host.send("m", "after"))
    assert mind.contents() == ["!die", "x", "after"]


def test_a_turn_without_done_ends_once_it_is_idle(host: ResidentHost) -> None:
    mind = host.one("silent", work=3, config="idle_end = 1")
    row, held = host.send("m", "a", session="a"), host.send("m", "b", session="b")
    host.done(row, held)
    assert host.ended(row) == ("idle", "the mind has been idle for 1 s and sent no done")
    end, second = mind.log("end")[0], mind.log("begin")[1]
    assert 0.9 < second["at"] - end["at"] < 4, "not while it worked, and soon after"


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
    assert host.ended(row) == ("timeout", "ran longer than max_turn (2 s)")
    assert mind.up(), "the mind itself is never killed"


def test_a_turn_that_is_stopped_ends(host: ResidentHost) -> None:
    mind = host.one("silent", work=30)
    row = host.send("m", "x")
    turn = host.in_turn(row)
    host.post(f"/v1/turns/{turn['id']}/stop")
    host.done(row)
    assert host.ended(row) == ("stopped", "was asked to stop")
    assert mind.up()


def test_nothing_more_is_posted_into_a_turn_that_is_stopped(host: ResidentHost) -> None:
    other = host.minds.add("o", work=1.5)
    mind = host.one("slow", global_concurrent_turns=1)
    first = host.send("m", "0 !work=60")
    turn = host.in_turn(first)
    waits = host.send("o", "x")
    rows = [host.send("m", str(i)) for i in range(1, 7)]
    wait_for(lambda: len(mind.taken()) == 3)
    host.post(f"/v1/turns/{turn['id']}/stop")
    host.done(first, waits, *rows)
    assert host.ended(first) == ("stopped", "was asked to stop")
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


# -- failures


def test_a_refusal_counts_and_is_tried_again_with_the_same_key(host: ResidentHost) -> None:
    mind = host.one()
    mind.control(refuse=1)
    row = host.send("m", "a")
    host.done(row)
    first, second = mind.log("message")
    assert 4 < second["at"] - first["at"] < 8
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
    mind = host.one(work=0.05)
    for i in range(30):
        host.send("m", f"{i}{' !die' if i == 5 else ''}", session="s")
    rows = host.rows()
    host.done(*(row["id"] for row in rows))
    late = {row["id"] for row in host.rows() if row["attempts"]}  # on its way as the mind died
    assert len(late) < 2
    taken = [line for line in mind.taken() if line["key"].split("-")[1] not in {str(row) for row in late}]
    numbers = [int(line["content"].split()[0]) for line in taken]
    assert numbers == sorted(numbers)


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


# -- the hold note


def test_who_waited_more_than_a_minute_is_told_how_long_and_behind_what(host: ResidentHost) -> None:
    mind = host.one(work=0.1, global_concurrent_turns=1)
    first = host.send("m", "a !work=1.5", session="a")
    unit = host.in_turn(first)["unit"]
    rows = [host.send("m", content, session="b") for content in ("old", "old too", "new")]
    host.sql("UPDATE deliveries SET created_at = created_at - 100000 WHERE id IN (?, ?)", *rows[:2])
    host.done(first, *rows)
    old, old_too, new = mind.contents("b")
    assert old.startswith("[hostguard held this message for 1 min 4"), old
    assert unit in old.splitlines()[0]
    assert old.splitlines()[1:] == ["old"]
    assert old_too.startswith("[hostguard held this message for 1 min 4")
    assert new == "new"
    [ended] = [e for e in host.events("hold_ended") if e["delivery"] == rows[0]]
    assert ended["waited_ms"] > 100_000


# -- duplicates


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_mind_that_honours_the_key_sees_each_delivery_once_though_the_guard_is_killed(
    host: ResidentHost, when: str
) -> None:
    mind = host.one(work=3 if when == "after" else 0.1)
    if when == "during":
        mind.control(delay=1.0)
    row = host.send("m", "x")
    if when != "before":
        wait_for(lambda: mind.taken())
    if when == "after":
        wait_for(lambda: host.events("started", row=row))
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
    for i in range(12):
        rows += [host.send(name, f"{i}", session=f"s{i % 2}", key=f"{name}{i}") for name in "abc"]
        time.sleep(0.01 * (i % 5))
        host.kill()
    found = host.done(*rows)
    assert {row["attempts"] for row in found} == {0}
    for mind in minds:
        for session in ("s0", "s1"):
            assert mind.contents(session) == [str(i) for i in range(12) if f"s{i % 2}" == session]


def test_a_lost_answer_is_a_failure_and_the_key_prevents_the_double(host: ResidentHost) -> None:
    mind = host.one(config="idle_end = 2")
    mind.control(lose=1)
    row = host.send("m", "x")
    [found] = host.done(row)
    assert [line["repeat"] for line in mind.log("message")] == [False, True]
    assert found["attempts"] == 1


# -- minds that send


def test_a_turn_that_sends_to_its_own_session_and_waits_is_not_deadlocked(host: ResidentHost) -> None:
    mind = host.one(global_concurrent_turns=1)
    host.done(host.send("m", "!say=m:the_answer wait=20"))
    assert mind.contents() == ["!say=m:the_answer wait=20", "the answer"]
    [waited] = mind.log("waited")
    assert waited["came"] is True
    assert len({line["turn"] for line in mind.taken()}) == 1


def test_a_turn_that_waits_for_another_turn_at_cap_1_waits_in_vain_and_goes_on(host: ResidentHost) -> None:
    mind = host.one(global_concurrent_turns=1)
    first = host.send("m", "!say=m/other:x wait=1")
    host.done(first)
    wait_for(lambda: len(mind.log("end")) == 2)
    assert mind.log("waited")[0]["came"] is False
    assert mind.contents("other") == ["x"]


def test_minds_send_to_each_other_under_their_own_names(host: ResidentHost) -> None:
    other = host.minds.add("o")
    mind = host.one()
    host.done(host.send("m", "!say=o:hello"))
    wait_for(lambda: other.taken())
    [line] = other.taken()
    assert (line["content"], line["sender"], line["channel"]) == ("hello", "m", "@m")
    assert mind.log("sent")[0]["status"] == 200


# -- tokens


def test_a_token_is_told_once_and_kept_as_a_hash(host: ResidentHost) -> None:
    mind = host.minds.add("m")
    config = host.minds.config()
    host.start()
    answer = host.api.post("/v1/minds/m/token")
    assert answer.status_code == 409, "the configuration's wins"
    host.guard.configure("\n".join(line for line in config.splitlines() if not line.startswith("token")))
    host.guard.reload()
    assert host.tell(mind, type="text") == 401
    first, second = (host.post("/v1/minds/m/token")["token"] for _ in range(2))
    assert len(second) >= 43
    mind.token = first
    assert host.tell(mind, type="text") == 401, "an older one ends"
    mind.token = second
    assert host.tell(mind, type="text") == 200
    host.kill()
    wait_for(lambda: tells(host, mind))
    stored = host.sql("SELECT name, value FROM settings")
    assert "token.mind.m" in str(stored)
    assert second not in str(stored)
    assert not host.guard.journal(f"MESSAGE={second}")
    assert host.api.post("/v1/minds/nobody/token").status_code == 404


def tells(host: ResidentHost, mind: object) -> bool:
    try:
        return host.tell(mind, type="text") == 200  # type: ignore[arg-type]
    except httpx.ConnectError:
        return False


# -- the guard restarts


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_a_done_that_is_told_while_the_guard_is_away_waits_for_it(host: ResidentHost, how: str) -> None:
    mind = host.one(work=1)
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
