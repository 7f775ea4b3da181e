"""The guard loses what it depends on: the bus, systemd itself, the database, the card below it."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest
from bus_relay import Bus
from card import Card
from guard import UNIT, Guard, run, systemctl, wait_for
from scripted_host import ScriptedHost

from hostguard.core import paths


def test_the_bus_is_lost(scripted: ScriptedHost, bus: Bus) -> None:
    """Nothing is started unseen; what changed meanwhile is seen afterwards, and everything goes on."""
    scripted.start("abcd", global_concurrent_turns=3)
    ends, lives = scripted.send("@a", "wait_go; exit 3"), scripted.send("@b", "wait_go")
    scripted.wait_started(ends, lives)
    bus.cut()
    wait_for(lambda: scripted.get("/v1/status")["state"] == "no_systemd")
    held = [scripted.send("@c"), scripted.send("@c"), scripted.send("@a")]
    assert [scripted.row(row)["hold"]["reason"] for row in held] == ["no_systemd"] * 3
    wait_for(lambda: "no connection to systemd" in run("systemctl", "status", UNIT).stdout)
    scripted.go(ends)
    (ended,) = scripted.done(ends)
    assert ended["result"]["exit"] == 3
    with by_hand("hostguard-d.slice") as scope:
        assert len(scripted.order()) == 2
        bus.mend()
        scripted.done(*held)
        assert {turn["unit"] for turn in scripted.turns()} == {
            "by-hand.scope",
            f"hostguard-turn-b-{lives}.scope",
        }
        assert scope.stdin is not None
        scope.stdin.close()
        scripted.wait_turns(1)
    scripted.go(lives)
    scripted.done(lives)
    assert scripted.get("/v1/status")["state"] == "running"
    assert sorted(scripted.order()[2:]) == held
    scripted.prove(cap=3)


def by_hand(slice_: str) -> subprocess.Popen[bytes]:
    """A scope of somebody else's, by-hand.scope, until its stdin is closed."""
    command = [
        "systemd-run",
        "--scope",
        "--quiet",
        "--unit=by-hand",
        f"--slice={slice_}",
        "sh",
        "-c",
        "echo; cat",
    ]
    scope = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert scope.stdout is not None
    assert scope.stdout.readline() == b"\n"
    return scope


@pytest.mark.parametrize("moment", ["systemd has not heard of it", "its scope is up"])
def test_the_bus_is_lost_in_the_middle_of_a_start(scripted: ScriptedHost, bus: Bus, moment: str) -> None:
    """Whether or not the scope came up, the row runs once the bus is back: once, and in its place."""
    scripted.start("ab", global_concurrent_turns=1)
    if moment == "its scope is up":
        bus.hold_answers()
    else:
        bus.hold_asks()
    rows = [scripted.send("@a"), scripted.send("@a"), scripted.send("@b")]
    wait_for(lambda: len(scripted.guard.scopes()) == (moment == "its scope is up"))
    bus.cut()
    wait_for(lambda: scripted.get("/v1/status")["state"] == "no_systemd")
    assert scripted.order() == []
    bus.mend()
    assert [(row["attempts"], row["result"]["exit"]) for row in scripted.done(*rows)] == [(0, 0)] * 3
    assert scripted.order() == rows
    scripted.prove(cap=1)


def test_systemd_is_executed_anew(scripted: ScriptedHost) -> None:
    """As an upgrade of systemd does: live turns are kept, their ends are seen, others start."""
    scripted.start("ab", global_concurrent_turns=1)
    first, second = scripted.send("@a", "wait_go; exit 3"), scripted.send("@b", "wait_go")
    scripted.wait_started(first)
    systemctl("daemon-reexec")
    assert [turn["delivery"] for turn in scripted.turns()] == [first]
    scripted.go(first)
    scripted.wait_started(second)
    systemctl("stop", f"hostguard-turn-b-{second}.scope")
    ended = scripted.done(first, second)
    assert [row["result"]["outcome"] for row in ended] == ["exited", "stopped"]
    scripted.prove(cap=1)


def test_case_33_the_database_is_busy(scripted: ScriptedHost) -> None:
    """33, louislam/uptime-kuma#7289: somebody holds the file: callers wait, or get a clear 503; nothing is lost."""
    scripted.start("a")
    running = scripted.send("@a", "wait_go")
    scripted.wait_started(running)
    with ThreadPoolExecutor() as pool, closing(sqlite3.connect(paths.DATABASE, timeout=10)) as db:
        db.execute("BEGIN IMMEDIATE")
        refused = pool.submit(send, scripted.guard, "refused")
        time.sleep(0.5)  # it goes first: tried together, they would take longer
        scripted.go(running)
        assert (refused.result().status_code, refused.result().json()["code"]) == (503, "unavailable")
        assert int(refused.result().headers["Retry-After"]) > 0
        # Once for the refused one, and once for the end of the turn, which is kept for another try.
        wait_for(
            lambda: (
                sum("cannot write" in line["MESSAGE"] for line in scripted.guard.journal("PRIORITY=3")) >= 2
            )
        )
        waits = pool.submit(send, scripted.guard, "waits")
        time.sleep(0.5)
        assert not waits.done()
        db.execute("ROLLBACK")
        assert waits.result().status_code == 201
    row = waits.result().json()["deliveries"][0]["id"]
    scripted.done(running, row)
    assert scripted.order() == [running, row]
    assert len(scripted.get("/v1/deliveries?state=all")["deliveries"]) == 2


def send(guard: Guard, key: str, when: float = 0) -> httpx.Response:
    """Send a message; `when` is by the monotonic clock."""
    time.sleep(max(0.0, when - time.monotonic()))
    with guard.client() as client:
        return client.post("/v1/deliveries", json={"to": "@a", "content": "", "key": key})


def test_case_33_the_card_stalls(scripted: ScriptedHost, card: Card) -> None:
    """33, louislam/uptime-kuma#7289: the card stops for 20 s: callers wait or get a clear 503, status answers.

    Whoever starts a second daemon meanwhile is told that one runs.
    """
    state = card.mount / "state"
    state.mkdir()
    scripted.start("ab", state=state)
    running = scripted.send("@a", "wait_go")
    scripted.wait_started(running)
    with ThreadPoolExecutor() as pool, scripted.guard.client() as person:
        second = pool.submit(second_daemon)
        card.stop()
        stopped = time.monotonic()
        try:
            told = [pool.submit(send, scripted.guard, f"early {i}") for i in range(3)]
            waits = pool.submit(send, scripted.guard, "late", stopped + 17)
            scripted.go(running)
            slowest = 0.0
            while not all(answer.done() for answer in told):
                began = time.monotonic()
                assert person.get("/v1/status").status_code == 200
                slowest = max(slowest, time.monotonic() - began)
                assert began < stopped + 40
                time.sleep(0.1)
            assert not waits.done()
            assert second.done()
        finally:
            card.go()
        assert second.result() == (
            1, "hostguardd: another hostguardd runs on this host (it holds /run/hostguard/gate.lock)\n"
        )  # fmt: skip
        assert slowest < 2
        for answer in told:
            assert answer.result().status_code == 503
            assert int(answer.result().headers["Retry-After"]) > 0
        late = waits.result()
        assert late.status_code == 201
        rows = [send(scripted.guard, f"early {i}").json()["deliveries"][0]["id"] for i in range(3)]
    row = late.json()["deliveries"][0]["id"]
    scripted.done(running, row, *rows)
    assert sorted(scripted.order()) == sorted({running, row, *rows})
    scripted.prove(cap=1)


def second_daemon() -> tuple[int, str]:
    done = subprocess.run(["hostguardd"], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr
