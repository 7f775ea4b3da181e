"""The daemon stops, or is killed, at a bad moment: every message still runs, once, and nothing is stuck."""

from __future__ import annotations

import pytest
from guard import systemctl, wait_for
from scripted_host import ScriptedHost

from hostguard.core import paths

SHARES_GUARD = True


def go_away_and_come_back(scripted: ScriptedHost, how: str) -> None:
    if how == "stopped":
        scripted.guard.restart()
    else:
        scripted.kill()


def test_case_04_the_daemon_is_killed_in_a_turn(scripted: ScriptedHost) -> None:
    """4, rails/solid_queue#735: started again it never runs two turns of a mind at once; all three are done."""
    scripted.start("a")
    rows = [scripted.send("@a", "wait_go"), scripted.send("@a"), scripted.send("@a")]
    scripted.wait_started(rows[0])
    scripted.kill()
    assert [turn["delivery"] for turn in scripted.turns()] == rows[:1]
    assert [scripted.row(row)["state"] for row in rows] == ["in_turn", "queued", "queued"]
    scripted.go(rows[0])
    assert [row["attempts"] for row in scripted.done(*rows)] == [0, 0, 0]
    assert scripted.order() == rows
    scripted.prove(cap=1)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_case_17_ten_rows_behind_a_running_turn(scripted: ScriptedHost, how: str) -> None:
    """17, openclaw/openclaw#135880: stopped gracefully or killed, the daemon loses none."""
    scripted.start("ab", global_concurrent_turns=1)
    rows = [scripted.send("@a", "wait_go"), *(scripted.send(f"@{mind}") for mind in "ab" * 5)]
    scripted.wait_started(rows[0])
    go_away_and_come_back(scripted, how)
    later = scripted.send("@b")
    assert scripted.get("/v1/status")["queued"] == 11
    scripted.go(rows[0])
    scripted.done(*rows, later)
    assert scripted.order() == [*rows, later]
    scripted.prove(cap=1)


@pytest.mark.parametrize("how", ["stopped", "killed", "frozen"])
def test_case_21_a_turn_ends_while_the_daemon_is_away(scripted: ScriptedHost, how: str) -> None:
    """21, multica-ai/multica#4336: at its start the records are set right against the live scopes."""
    scripted.start("abc", global_concurrent_turns=2)
    ends, lives, waits = (
        scripted.send("@a", "wait_go; exit 7"),
        scripted.send("@b", "wait_go; exit 5"),
        scripted.send("@c"),
    )
    scripted.wait_started(ends, lives)
    if how == "stopped":
        scripted.guard.stop()
    elif how == "killed":
        scripted.kill_for_good()
    else:
        scripted.guard.kill("STOP")
    scripted.go(ends)
    wait_for(lambda: scripted.guard.scopes() == [f"hostguard-turn-b-{lives}.scope"])
    states = scripted.sql(f"SELECT state FROM deliveries WHERE id >= {ends} ORDER BY id")
    assert states == [("delivering",), ("delivering",), ("queued",)]
    if how == "frozen":
        scripted.kill_for_good()
    scripted.guard.restart()
    ended, next_ = scripted.done(ends, waits)
    assert (ended["result"]["outcome"], ended["result"]["exit"], ended["attempts"]) == ("exited", 7, 0)
    assert ended["ended_at"] <= next_["started_at"]
    assert [turn["delivery"] for turn in scripted.turns()] == [lives]
    scripted.go(lives)
    (ended,) = scripted.done(lives)
    assert (ended["result"]["exit"], ended["attempts"]) == (5, 0)
    wait_for(lambda: list(paths.TURNS.iterdir()) == [])
    scripted.prove(cap=2)


def test_case_10_a_turns_record_is_removed_by_hand(scripted: ScriptedHost) -> None:
    """10, taskforcesh/bullmq#3929: row and exit record are gone, and counts still match the live scopes."""
    scripted.start("ab", global_concurrent_turns=2)
    rows = [
        scripted.send("@a", "wait_go"),
        scripted.send("@b", "wait_go"),
        scripted.send("@a"),
        scripted.send("@b"),
    ]
    scripted.wait_started(*rows[:2])
    scripted.sql("DELETE FROM deliveries WHERE id IN (?, ?)", *rows[:2])
    for record in paths.TURNS.iterdir():
        record.unlink()
    counted_as_live(scripted, 2)
    assert [scripted.row(row)["hold"]["reason"] for row in rows[2:]] == ["session_busy"] * 2
    scripted.kill()
    counted_as_live(scripted, 2)
    assert [scripted.row(row)["hold"]["reason"] for row in rows[2:]] == ["mind_busy"] * 2
    scripted.go(rows[1])
    scripted.done(rows[3])
    counted_as_live(scripted, 1)
    scripted.go(rows[0])
    scripted.done(rows[2])
    counted_as_live(scripted, 0)
    assert scripted.order()[2:] == [rows[3], rows[2]]
    scripted.prove(cap=2)


def counted_as_live(scripted: ScriptedHost, count: int) -> None:
    wait_for(lambda: len(scripted.guard.scopes()) == count)
    assert sorted(turn["unit"] for turn in scripted.turns()) == sorted(scripted.guard.scopes())
    assert scripted.get("/v1/status")["turns"] == count


def test_case_11_rows_left_delivering_are_recovered(scripted: ScriptedHost) -> None:
    """11, procrastinate-org/procrastinate#1446 and #1408: whatever became of its turn, none stays delivering."""
    scripted.start("abcd")
    first = "[ $HOSTGUARD_ATTEMPT -gt 1 ] || wait_go"
    again, dead, unrun, unknown = (scripted.send(f"@{mind}", first, key="one key") for mind in "abcd")
    behind = [scripted.send(f"@{mind}") for mind in "abc"]
    scripted.wait_started(again, dead, unrun, unknown)
    scripted.kill_for_good()
    systemctl("stop", "hostguard.slice")
    for record in paths.TURNS.iterdir():
        record.unlink()
    scripted.sql("UPDATE deliveries SET attempts = 9 WHERE id = ?", dead)
    (paths.TURNS / str(unrun)).touch()  # as if it had not been let run
    scripted.guard.configure(scripted.config("abc"))
    scripted.guard.restart()
    scripted.go(unrun)
    scripted.done(*behind)
    delivering = scripted.get("/v1/deliveries?state=delivering")["deliveries"]
    assert [row for row in delivering if row["kind"] != "notice"] == []  # but that of the dead letter
    scripted.done(dead, state="dead")
    assert [scripted.row(row)["attempts"] for row in (again, unknown)] == [1, 1]
    assert scripted.row(unknown)["hold"] is None or scripted.row(unknown)["hold"]["reason"] == "unknown_mind"
    answer = scripted.api.post("/v1/deliveries", json={"to": "@a", "content": first, "key": "one key"})
    assert (answer.status_code, answer.json()["deliveries"][0]["id"]) == (200, again)

    scripted.kill_for_good()
    scripted.sql(
        "UPDATE deliveries SET not_before = 0, due = 0 WHERE state = 'queued'"
    )  # rather than wait 5 s
    scripted.guard.configure(scripted.config("abcd"))
    scripted.guard.restart()
    scripted.done(again, unrun, unknown)
    assert {row: scripted.order().count(row) for row in (again, dead, unrun, unknown, *behind)} == {
        again: 2, dead: 1, unrun: 2, unknown: 2, **dict.fromkeys(behind, 1),
    }  # fmt: skip
    scripted.prove(attempts=2, killed=tuple(map(str, (again, dead, unrun, unknown))))
