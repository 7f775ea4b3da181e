"""Resident minds that are restarted between turns, or asked to end a turn: over HTTP, with real services."""

from __future__ import annotations

import httpx
from guard import run, wait_for
from guarded import LONG_S
from minds import OneMind
from resident_host import ResidentHost

SHARES_GUARD = True


def main_pid(mind: OneMind) -> int:
    return int(run("systemctl", "show", "--value", "--property=MainPID", mind.unit).stdout)


def ask(
    host: ResidentHost, mind: OneMind, body: object, path: str = "/api/minds/m/restart"
) -> httpx.Response:
    """Ask the guard for a restart, as the mind does."""
    url = f"http://127.0.0.1:{host.minds.events_port}{path}"
    headers = {"Authorization": f"Bearer {mind.token}"}
    return httpx.post(url, json=body, headers=headers, timeout=10, trust_env=False)


def test_a_mind_is_restarted_between_two_turns(host: ResidentHost) -> None:
    mind = host.one(work=0.1)
    before = main_pid(mind)
    first = host.send("m", "a !work=2")
    host.in_turn(first)
    for path in ("/api/minds/m/restart", "/api/v1/minds/m/restart"):  # it asks until it happens
        answer = ask(host, mind, {"context": {"type": "reload"}}, path)
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "deferred": True})
    second = host.send("m", "b", session="other")
    assert host.get(f"/v1/deliveries/{second}/why")["reason"] == "mind_restarting"
    assert main_pid(mind) == before, "not in a turn"
    host.done(first, second)
    assert host.ended(first)[0] == "done"
    assert host.row(second)["attempts"] == 0
    pids = [line["pid"] for line in mind.log("message")]
    assert pids[0] == before
    assert pids[1] == main_pid(mind) != before
    assert [row["kind"] for row in host.rows()] == ["message", "message"], "it is told nothing"


def test_a_restart_survives_the_guard_and_hands_its_context_on(host: ResidentHost) -> None:
    mind = host.one(work=0.1)
    before = main_pid(mind)
    first = host.send("m", "a !work=2")
    host.in_turn(first)
    assert ask(host, mind, {"context": {"type": "upgraded", "summary": "a new one"}}).status_code == 200
    host.kill()
    host.done(first)
    wait_for(lambda: len(mind.taken()) == 2, LONG_S)
    told = mind.taken()[1]
    assert told["content"] == "[hostguard] You were restarted (upgraded).\nChanges: a new one"
    assert (told["channel"], told["sender"], told["session"]) == ("@volute", "volute", "main")
    assert told["pid"] == main_pid(mind) != before
    host.done(*(row["id"] for row in host.rows()))


def test_a_turn_is_ended_by_a_message_first_and_by_force_only_then(host: ResidentHost) -> None:
    mind = host.one()
    row = host.send("m", "a !work=60")
    turn = host.in_turn(row)
    wait_for(lambda: mind.log("begin"))
    done = host.guard.cli("stop", turn["id"], "--interrupt")
    assert "m is asked to end turn" in done.stderr
    assert "State: ended" in done.stdout
    assert "the mind reported that it is done" in done.stdout
    assert host.ended(row)[0] == "done"
    asked = mind.taken()[1]
    assert asked["content"].startswith("[hostguard] You are asked to stop")
    assert (asked["interrupt"], asked["turn"]) == (True, turn["id"])

    deaf = host.send("m", "b !work=60 silent quit")
    turn = host.in_turn(deaf)
    mind.control(refuse=9)  # it takes no message any more
    done = host.guard.cli("stop", turn["id"], "--interrupt", "--force-after", "1s")
    assert f"stopping {turn['id']}" in done.stdout
    host.done(deaf)
    assert host.ended(deaf)[0] == "stopped"
    mind.control(refuse=0)
    wait_for(lambda: not host.rows("queued,delivering"), LONG_S)
    assert host.rows()[-1]["state"] == "expired", "nobody is asked to end a turn that is over"


def test_stop_by_force_says_what_it_may_cost(host: ResidentHost) -> None:
    mind = host.one("silent")
    row = host.send("m", "a !work=60")
    turn = host.in_turn(row)
    wait_for(lambda: mind.log("begin"))
    done = host.guard.cli("stop", turn["id"])
    assert "the mind may lose the conversation of this session" in done.stderr
    host.done(row)
    assert "the mind may have lost the conversation" in host.ended(row)[1]
