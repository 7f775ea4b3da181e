"""A row given back stays the first of its session, which waits for it; other sessions go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guard import run, wait_for
from guarded import LONG_S
from resident_host import ResidentHost
from scripted_host import ScriptedHost

SHARES_GUARD = True
BACKOFF_S = 5.0  # the first one


@pytest.fixture
def refused(host: ResidentHost) -> tuple[ResidentHost, list[int]]:
    """Mind m refused the first of three messages of session s."""
    host.one(work=0.05)
    return host, refuse_first(host)


def refuse_first(host: ResidentHost, **first: int) -> list[int]:
    """Have the mind refuse the first of three messages of session s; the rows."""
    host.post("/v1/pause")
    rows = [host.send("m", "1", session="s", **first)]
    rows += [host.send("m", text, session="s") for text in ("2", "3")]
    host.minds["m"].control(refuse=1)
    host.post("/v1/resume")
    wait_for(lambda: host.events("failed", row=rows[0]) or host.events("dead", row=rows[0]), LONG_S)
    return rows


def test_a_refused_message_stays_first_and_other_sessions_go_on(
    refused: tuple[ResidentHost, list[int]],
) -> None:
    host, rows = refused
    other = host.send("m", "other", session="t")
    host.done(other)
    first, second = (host.get(f"/v1/deliveries/{row}/why") for row in rows[:2])
    assert (first["reason"], first["due"]) == ("retry", host.row(rows[0])["not_before"])
    assert f"{rows[0]} is tried again in " in first["text"]
    assert "(attempt 2); the last one failed: the mind did not accept it: HTTP 500" in first["text"]
    assert second["reason"] == "retry"
    assert f"{rows[0]}, before it in its session, is tried again after a pause" in second["text"]
    assert host.row(rows[0])["hold"] is None
    assert host.row(rows[1])["hold"]["reason"] == "retry"
    [mind] = host.get("/v1/minds")["minds"]
    assert (mind["held"], mind["hold"]["reason"], mind["hold"]["delivery"]) == (3, "retry", rows[0])
    assert host.get("/v1/status")["due_later"] == 0
    assert "tried again after a pause" in host.guard.cli("status").stdout
    assert [row["attempts"] for row in host.done(*rows)] == [1, 0, 0]
    assert host.minds["m"].contents() == ["other", "1", "2", "3"]


def test_a_message_that_a_live_turn_refuses_is_not_overtaken_by_an_interrupt(host: ResidentHost) -> None:
    mind = host.one(work=0.05)
    first = host.send("m", "0 !work=8")
    host.in_turn(first)
    mind.control(refuse=1)
    rows = [host.send("m", "1"), host.send("m", "2"), host.send("m", "3", interrupt=True)]
    host.done(first, *rows)
    assert [text for text in mind.contents()] == ["0 !work=8", "1", "2", "3"]
    assert len({line["turn"] for line in mind.taken()}) == 1, "a fold needs no slot, also after the pause"


def test_it_stays_first_over_a_restart(refused: tuple[ResidentHost, list[int]]) -> None:
    host, rows = refused
    host.guard.restart()
    # On a busy machine the pause may be over by now.
    assert host.get(f"/v1/deliveries/{rows[1]}/why")["reason"] in ("retry", "session_busy", "mind_busy", None)
    host.done(*rows)
    assert host.minds["m"].contents() == ["1", "2", "3"]


def test_its_session_goes_on_once_it_is_cancelled(refused: tuple[ResidentHost, list[int]]) -> None:
    host, rows = refused
    due = host.row(rows[0])["not_before"]
    host.guard.cli("cancel", str(rows[0]))
    found = host.done(*rows[1:])
    assert found[0]["started_at"] < due
    assert host.minds["m"].contents() == ["2", "3"]


def test_its_session_goes_on_once_it_has_expired(host: ResidentHost) -> None:
    host.one(work=0.05)
    rows = refuse_first(host, expires_at=int(time.time() * 1000) + 3_000)
    due = host.row(rows[0])["not_before"]
    assert host.done(*rows[1:])[0]["started_at"] < due
    host.done(rows[0], state="expired")
    assert host.minds["m"].contents() == ["2", "3"]


def test_its_session_goes_on_once_it_is_a_dead_letter_and_a_retry_takes_its_old_place(
    host: ResidentHost,
) -> None:
    mind = host.one(work=0.05)
    host.post("/v1/pause")
    row = host.send("m", "1", session="s")
    host.guard.stop()
    host.sql("UPDATE deliveries SET attempts = 9 WHERE id = ?", row)
    host.guard.restart()
    later = [host.send("m", text, session="s") for text in ("2", "3")]
    mind.control(refuse=1)
    host.post("/v1/resume")
    host.done(row, state="dead")
    host.done(*later)
    assert mind.contents("s") == ["2", "3"]
    host.post("/v1/pause")
    later.append(host.send("m", "4", session="s"))
    host.guard.cli("retry", str(row))
    host.post("/v1/resume")
    host.done(row, *later)
    assert mind.contents("s") == ["2", "3", "1", "4"]


# -- exec minds


def test_a_command_that_cannot_be_run_stays_first(scripted: ScriptedHost) -> None:
    scripted.start("ab")
    scripted.turn.chmod(0o644)
    rows = [scripted.send("@a"), scripted.send("@a")]
    wait_for(lambda: scripted.row(rows[0])["attempts"] == 1)
    scripted.turn.chmod(0o755)
    other = scripted.send("@a", session="other")
    scripted.done(other, *rows)
    assert scripted.order() == [other, *rows]
    assert scripted.row(rows[1])["attempts"] == 0, "it was not even tried"


@contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """The process can open nothing more."""
    limit = run(
        "prlimit", "--pid", str(pid), "--nofile", "--raw", "--noheadings", "--output=SOFT"
    ).stdout.strip()
    used = max(int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()) + 1
    run("prlimit", "--pid", str(pid), f"--nofile={used}:")
    try:
        yield
    finally:
        run("prlimit", "--pid", str(pid), f"--nofile={limit}:")


def test_a_turn_for_which_there_is_no_descriptor_stays_first(scripted: ScriptedHost) -> None:
    scripted.start("a")
    scripted.post("/v1/pause")
    rows = [scripted.send("@a") for _ in range(3)]
    with no_descriptors(scripted.guard.pid):
        scripted.post("/v1/resume")  # by the connection that is open
        time.sleep(1.5)
        assert scripted.order() == []
    rows.append(scripted.send("@a"))  # while the others wait for their pause
    scripted.done(*rows)
    assert scripted.order() == rows
    assert {row["attempts"] for row in scripted.done(*rows)} == {0}


def test_a_turn_whose_end_cannot_be_read_for_want_of_descriptors_stays_first(scripted: ScriptedHost) -> None:
    scripted.start("a")
    busy = scripted.send("@a", "wait_go")
    rows = [scripted.send("@a") for _ in range(3)]
    scripted.wait_started(busy)
    with no_descriptors(scripted.guard.pid):
        scripted.go(busy)
        time.sleep(2.5)
    scripted.done(*rows)
    assert scripted.order() == [busy, *rows]
    assert {row["attempts"] for row in scripted.done(*rows)} == {0}


def test_a_mind_that_is_missing_for_some_reloads(scripted: ScriptedHost) -> None:
    scripted.start("ab")
    rows = [scripted.send("@a", "sleep 0.02") for _ in range(40)]
    for _ in range(6):
        for minds in ("b", "ab"):
            scripted.guard.configure(scripted.config(minds))
            scripted.guard.reload()
    scripted.done(*rows)
    assert scripted.order() == rows


# -- what does not hold its session


def test_a_turn_that_crashed_lets_its_session_go_on(scripted: ScriptedHost) -> None:
    """Its message has reached the mind: one that crashes it ten times would hold the session for 20 minutes."""
    scripted.start("a")
    crashes = scripted.send("@a", "[ -e $folder/crashed ] || { >$folder/crashed; kill -SEGV $$; }")
    rows = [scripted.send("@a"), scripted.send("@a")]
    scripted.done(*rows)
    scripted.guard.stop()
    scripted.sql(
        "UPDATE deliveries SET not_before = not_before + 600000, due = due + 600000 WHERE id = ?", crashes
    )
    scripted.guard.restart()  # however slow: its pause is not over
    last = scripted.send("@a")
    scripted.done(last)
    assert scripted.row(crashes)["attempts"] == 1, "also after a restart"
    scripted.post(f"/v1/deliveries/{crashes}/cancel")
    scripted.post(f"/v1/deliveries/{crashes}/retry")
    scripted.done(crashes)
    assert scripted.order() == [crashes, *rows, last, crashes]


def test_what_is_due_later_holds_nobody_and_takes_its_place_once_it_is_due(scripted: ScriptedHost) -> None:
    scripted.start("a")
    later = scripted.send("@a", not_before=int(time.time() * 1000) + 1_500)
    early, busy = scripted.send("@a"), scripted.send("@a", "wait_go")
    last = scripted.send("@a")
    scripted.wait_started(busy)
    wait_for(lambda: scripted.row(later)["hold"] is not None)
    scripted.go(busy)
    scripted.done(later, early, busy, last)
    assert scripted.order() == [early, busy, later, last]
