"""The daemon stops, or is killed, at a bad moment: nothing is unrun, doubled or stuck."""

from __future__ import annotations

import pytest
from guard import systemctl, wait_for
from host import Host

from hostguard import paths


def go_away_and_come_back(host: Host, how: str) -> None:
    if how == "stopped":
        host.guard.restart()
    else:
        host.kill()


def test_case_04_the_daemon_is_killed_in_a_turn(host: Host) -> None:
    """4, rails/solid_queue#735: started again it never runs two turns of a mind at once; all three are done."""
    host.start("a")
    rows = [host.send("@a", "wait_go"), host.send("@a"), host.send("@a")]
    host.wait_started(rows[0])
    host.kill()
    assert [turn["delivery"] for turn in host.turns()] == rows[:1]
    assert [host.row(row)["state"] for row in rows] == ["in_turn", "queued", "queued"]
    host.go(rows[0])
    assert [row["attempts"] for row in host.done(*rows)] == [0, 0, 0]
    assert host.order() == rows
    host.prove(cap=1)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_case_17_ten_rows_behind_a_running_turn(host: Host, how: str) -> None:
    """17, openclaw/openclaw#135880: stopped gracefully or killed, the daemon loses none."""
    host.start("ab", global_concurrent_turns=1)
    rows = [host.send("@a", "wait_go"), *(host.send(f"@{mind}") for mind in "ab" * 5)]
    host.wait_started(rows[0])
    go_away_and_come_back(host, how)
    later = host.send("@b")
    assert host.get("/v1/status")["queued"] == 11
    host.go(rows[0])
    host.done(*rows, later)
    assert host.order() == [*rows, later]
    host.prove(cap=1)


@pytest.mark.parametrize("how", ["stopped", "killed", "frozen"])
def test_case_21_a_turn_ends_while_the_daemon_is_away(host: Host, how: str) -> None:
    """21, multica-ai/multica#4336: at its start the records are set right against the live scopes."""
    host.start("abc", global_concurrent_turns=2)
    ends, lives, waits = (
        host.send("@a", "wait_go; exit 7"),
        host.send("@b", "wait_go; exit 5"),
        host.send("@c"),
    )
    host.wait_started(ends, lives)
    if how == "stopped":
        host.guard.stop()
    elif how == "killed":
        host.kill_for_good()
    else:
        host.guard.kill("STOP")
    host.go(ends)
    wait_for(lambda: host.guard.scopes() == [f"hostguard-turn-b-{lives}.scope"])
    assert host.sql("SELECT state FROM deliveries") == [("delivering",), ("delivering",), ("queued",)]
    if how == "frozen":
        host.kill_for_good()
    host.guard.restart()
    ended, next_ = host.done(ends, waits)
    assert (ended["result"]["outcome"], ended["result"]["exit"], ended["attempts"]) == ("exited", 7, 0)
    assert ended["ended_at"] <= next_["started_at"]
    assert [turn["delivery"] for turn in host.turns()] == [lives]
    host.go(lives)
    (ended,) = host.done(lives)
    assert (ended["result"]["exit"], ended["attempts"]) == (5, 0)
    wait_for(lambda: list(paths.TURNS.iterdir()) == [])
    host.prove(cap=2)


def test_case_10_a_turns_record_is_removed_by_hand(host: Host) -> None:
    """10, taskforcesh/bullmq#3929: row and exit record are gone, and counts still match the live scopes."""
    host.start("ab", global_concurrent_turns=2)
    rows = [host.send("@a", "wait_go"), host.send("@b", "wait_go"), host.send("@a"), host.send("@b")]
    host.wait_started(*rows[:2])
    host.sql("DELETE FROM deliveries WHERE id <= 2")
    for record in paths.TURNS.iterdir():
        record.unlink()
    counted_as_live(host, 2)
    assert [host.row(row)["hold"]["reason"] for row in rows[2:]] == ["session_busy"] * 2
    host.kill()
    counted_as_live(host, 2)
    assert [host.row(row)["hold"]["reason"] for row in rows[2:]] == ["mind_busy"] * 2
    host.go(rows[1])
    host.done(rows[3])
    counted_as_live(host, 1)
    host.go(rows[0])
    host.done(rows[2])
    counted_as_live(host, 0)
    assert host.order()[2:] == [rows[3], rows[2]]
    host.prove(cap=2)


def counted_as_live(host: Host, count: int) -> None:
    wait_for(lambda: len(host.guard.scopes()) == count)
    assert sorted(turn["unit"] for turn in host.turns()) == sorted(host.guard.scopes())
    assert host.get("/v1/status")["turns"] == count


def test_case_11_rows_left_delivering_are_recovered(host: Host) -> None:
    """11, procrastinate-org/procrastinate#1446 and #1408: whatever became of its turn, none stays delivering."""
    host.start("abcd")
    first = "[ $HOSTGUARD_ATTEMPT -gt 1 ] || wait_go"
    again, dead, unrun, unknown = (host.send(f"@{mind}", first, key="one key") for mind in "abcd")
    behind = [host.send(f"@{mind}") for mind in "abc"]
    host.wait_started(again, dead, unrun, unknown)
    host.kill_for_good()
    systemctl("stop", "hostguard.slice")
    for record in paths.TURNS.iterdir():
        record.unlink()
    host.sql("UPDATE deliveries SET attempts = 9 WHERE id = ?", dead)
    (paths.TURNS / str(unrun)).touch()  # as if it had not been let run
    host.guard.configure(host.config("abc"))
    host.guard.restart()
    host.go(unrun)
    host.done(*behind)
    delivering = host.get("/v1/deliveries?state=delivering")["deliveries"]
    assert [row for row in delivering if row["kind"] != "notice"] == []  # but that of the dead letter
    host.done(dead, state="dead")
    assert [host.row(row)["attempts"] for row in (again, unknown)] == [1, 1]
    assert host.row(unknown)["hold"] is None or host.row(unknown)["hold"]["reason"] == "unknown_mind"
    answer = host.api.post("/v1/deliveries", json={"to": "@a", "content": first, "key": "one key"})
    assert (answer.status_code, answer.json()["deliveries"][0]["id"]) == (200, again)

    host.kill_for_good()
    host.sql("UPDATE deliveries SET not_before = 0 WHERE state = 'queued'")  # rather than wait 5 s
    host.guard.configure(host.config("abcd"))
    host.guard.restart()
    host.done(again, unrun, unknown)
    assert {row: host.order().count(row) for row in (again, dead, unrun, unknown, *behind)} == {
        again: 2, dead: 1, unrun: 2, unknown: 2, **dict.fromkeys(behind, 1),
    }  # fmt: skip
    host.prove(attempts=2, killed=("1", "2", "3", "4"))
