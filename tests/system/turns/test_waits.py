"""Turns that wait for turns: a wait that would never end is refused at once, or once that becomes so."""

from __future__ import annotations

import time

import pytest
from guard import Guard, wait_for
from guarded import LONG_S
from resident_host import ResidentHost
from scripted_host import ScriptedHost

SHARES_GUARD = True
NEVER = "would never end"
SOON_S = 25.0  # far below the 50 s after which a client asks again


def waits(what: str) -> str:
    """The content of a message: its turn waits for `hostguard WHAT`, and writes down what that says."""
    said = "$folder/said-$HOSTGUARD_DELIVERY"
    return f"hostguard {what} >{said}.new 2>&1; echo exit $? >>{said}.new; mv {said}.new {said}"


def sends(to: str, *options: str) -> str:
    return waits(f"send {to} : --wait --timeout 10m {' '.join(options)}")


def said(scripted: ScriptedHost, row: int, seconds: float = SOON_S) -> str:
    """What the command that the row's turn waited for has said, with its status."""
    file = scripted.folder / f"said-{row}"
    wait_for(file.exists, seconds)
    return file.read_text()


def waiting(scripted: ScriptedHost, count: int) -> list[int]:
    """Wait until there are this many rows in all; the rows."""

    def rows() -> list[int]:
        return [row["id"] for row in scripted.rows()]

    wait_for(lambda: len(rows()) == count, LONG_S)
    time.sleep(1)  # for the sender to begin its wait
    return rows()


def all_done(scripted: ScriptedHost) -> None:
    """What was sent is delivered, whether its sender waited or not."""
    wait_for(lambda: not scripted.get("/v1/deliveries")["deliveries"], LONG_S)
    rows = scripted.rows()
    assert {row["state"] for row in rows} == {"done"}, rows


@pytest.mark.parametrize(
    ("to", "cap", "words"),
    [
        ("@a", 2, (NEVER, "It is accepted", "exit 1")),  # its own mind
        ("@b", 2, ("exit 0",)),
        ("@b", 1, (NEVER, "exit 1")),  # the cap is full of itself
    ],
)
def test_a_turn_waits_only_for_what_can_end(
    scripted: ScriptedHost, to: str, cap: int, words: tuple[str, ...]
) -> None:
    scripted.start("ab", global_concurrent_turns=cap)
    text = said(scripted, scripted.send("@a", sends(to, "--session other")))
    assert all(word in text for word in words), text
    all_done(scripted)


def test_for_its_own_session_while_another_of_its_mind_is_busy(scripted: ScriptedHost) -> None:
    scripted.start("a", mind_concurrent_turns=2)
    busy = scripted.send("@a", "wait_go", session="other")
    scripted.wait_started(busy)
    mine = scripted.send("@a", sends("@a"))
    assert f"{NEVER}: it waits for hostguard-turn-a-{mine}.scope," in said(scripted, mine)
    assert [turn["delivery"] for turn in scripted.turns()][:1] == [busy], "which was no reason"
    scripted.go(busy)
    all_done(scripted)


def test_for_what_is_due_later_behind_itself(scripted: ScriptedHost) -> None:
    scripted.start("a")
    assert NEVER in said(scripted, scripted.send("@a", sends("@a", "--at +15s")))
    all_done(scripted)


def test_once_a_cap_is_lowered(scripted: ScriptedHost) -> None:
    scripted.start("abc", global_concurrent_turns=2)
    busy = scripted.send("@b", "wait_go")
    scripted.wait_started(busy)
    mine = scripted.send("@a", sends("@c"))
    waiting(scripted, 3)
    assert not (scripted.folder / f"said-{mine}").exists(), "the turn of b ends some day"
    scripted.limit(0)
    time.sleep(1)
    assert not (scripted.folder / f"said-{mine}").exists(), "a cap of 0 is a pause"
    scripted.limit(1)
    assert NEVER in said(scripted, mine)
    scripted.go(busy)
    all_done(scripted)


def test_behind_a_pause(scripted: ScriptedHost) -> None:
    """The end of a pause would not help: so it is refused during the pause already. Otherwise it waits."""
    scripted.start("abc", global_concurrent_turns=2)
    scripted.post("/v1/pause", mind="b")
    patient = scripted.send("@c", sends("@b"))
    waiting(scripted, 2)
    assert not (scripted.folder / f"said-{patient}").exists()
    hopeless = scripted.send("@a", sends("@b"))
    assert NEVER in said(scripted, hopeless), "both slots are of turns that wait"
    assert not (scripted.folder / f"said-{patient}").exists(), "one refusal is enough"
    scripted.post("/v1/resume", mind="b")
    assert said(scripted, patient).endswith("exit 0\n")
    all_done(scripted)


def test_once_another_turn_begins_to_wait(scripted: ScriptedHost) -> None:
    scripted.start("ab")
    busy = scripted.send("@b", f"wait_go; {sends('@a', '--session other')}")
    scripted.wait_started(busy)
    first = scripted.send("@a", sends("@b", "--session other"))
    waiting(scripted, 3)
    assert not (scripted.folder / f"said-{first}").exists()
    scripted.go(busy)
    assert NEVER in said(scripted, busy), "it closes the circle"
    assert said(scripted, first).endswith("exit 0\n"), "and the other goes on"
    all_done(scripted)


# -- hostguard run


def test_a_run_in_a_turn_is_refused_at_once(scripted: ScriptedHost) -> None:
    scripted.start("ab", global_concurrent_turns=1)
    mine = scripted.send("@a", waits("run --mind b -- touch $folder/ran"))
    text = said(scripted, mine)
    assert "the command was not run: it would never start: it waits for" in text
    assert "accepted" not in text
    assert text.endswith("exit 1\n")
    scripted.done(mine)
    [row] = scripted.rows("cancelled")
    assert row["result"]["reason"] in text
    assert not (scripted.folder / "ran").exists()


def test_a_run_in_a_turn_is_refused_once_a_cap_is_lowered(scripted: ScriptedHost) -> None:
    scripted.start("abc", global_concurrent_turns=2)
    busy = scripted.send("@c", "wait_go")
    scripted.wait_started(busy)
    mine = scripted.send("@a", waits("run --mind b -- touch $folder/ran"))
    waiting(scripted, 3)
    assert not (scripted.folder / f"said-{mine}").exists()
    scripted.limit(1)
    assert "it would never start" in said(scripted, mine)
    scripted.go(busy)
    scripted.done(mine, busy)
    assert not (scripted.folder / "ran").exists()


def test_a_run_in_a_turn_of_its_own_mind_needs_room_and_a_session_of_its_own(scripted: ScriptedHost) -> None:
    scripted.start("a", mind_concurrent_turns=2)
    mine = scripted.send("@a", waits("run --mind a --session other -- echo it ran"))
    assert said(scripted, mine) == "it ran\nexit 0\n"
    mine = scripted.send("@a", waits("run --mind a -- echo it ran"))
    assert "it would never start" in said(scripted, mine)


# -- resident minds


def test_a_session_that_waits_for_its_own_next_message(host: ResidentHost) -> None:
    """The message goes into the turn that waits: only afterwards does it wait for itself."""
    host.one(work=0.1)
    row = host.send("m", "!exec=send_@m_x_--wait_--session_main work=3")
    host.in_turn(row)
    assert NEVER in ran(host)
    wait_for(lambda: not host.turns(), LONG_S)


def test_a_session_that_waits_for_another_of_its_mind(host: ResidentHost) -> None:
    mind = host.one(work=0.1)
    host.done(host.send("m", "!exec=send_@m_x_--wait_--session_other"))
    assert NEVER in ran(host)
    wait_for(lambda: mind.contents("other") == ["x"], LONG_S)


def ran(host: ResidentHost) -> str:
    """What the command said that the mind's session ran."""
    mind = host.minds["m"]
    wait_for(lambda: mind.log("ran"), SOON_S)
    text: str = mind.log("ran")[0]["text"]
    return text


def test_without_the_daemon_a_run_in_a_turn_of_its_mind_is_refused(guard: Guard) -> None:
    guard.start('[minds.a]\ncommand = ["/bin/true"]\nuser = "root"\n')
    guard.stop()
    inner = "hostguard run --mind a -- echo it ran"
    done = guard.cli("run", "--mind", "a", "--", "sh", "-c", inner, check=False)
    assert done.returncode == 1, done
    assert "would wait for itself: run the command as it is" in done.stderr
