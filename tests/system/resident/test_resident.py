"""Resident minds over HTTP, in real scopes: how a turn begins, what folds into it, what minds send."""

from __future__ import annotations

from pathlib import Path

import httpx
from guard import run, wait_for
from guarded import LONG_S
from resident_host import ResidentHost

SHARES_GUARD = True


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
    assert host.ended(row) == ("done", "the mind reported that it is done")
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
        wait_for(lambda child=child, scope=scope: scope in cgroup(child))
        wait_for(lambda scope=scope, child=child: writers(scope) >= 3)
        assert cgroup(server_pid) == before
        host.done(row)
        assert scope in mind.log("end")[-1]["cgroup"]
        wait_for(lambda scope=scope: scope not in home.scopes())
        assert mind.unit in cgroup(child), "the session's process is back in the mind's own unit"
        assert cgroup(server_pid) == before
    assert mind_pid(mind.unit) == server_pid


def mind_pid(unit: str) -> int:
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
    assert host.ended(first) == ("done", "the mind reported that it is done, and has been quiet since")
    wait_for(lambda: mind.log("done"))  # it notes its answer, which may come later than ours
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


# -- the hold note


def test_who_waited_more_than_a_minute_is_told_how_long_and_behind_what(host: ResidentHost) -> None:
    mind = host.one(work=0.1, global_concurrent_turns=1)
    first = host.send("m", "a !work=6", session="a")
    unit = host.in_turn(first)["unit"]
    rows = [host.send("m", content, session="b") for content in ("old", "old too", "new")]
    host.guard.stop()  # it reads them again
    host.sql("UPDATE deliveries SET accepted = accepted - 100000 WHERE id IN (?, ?)", *rows[:2])
    host.guard.restart()
    host.done(first, *rows)
    old, old_too, new = mind.contents("b")
    assert old.startswith("[hostguard held this message for 1 min 4"), old
    assert unit in old.splitlines()[0]
    assert old.splitlines()[1:] == ["old"]
    assert old_too.startswith("[hostguard held this message for 1 min 4")
    assert new == "new"
    [ended] = [e for e in host.events("hold_ended") if e["delivery"] == rows[0]]
    assert ended["waited_ms"] > 100_000


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
