"""Turns and waits while the guard is away, or its clock is set: each has its own time, and the true reason."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from guard import DISK, wait_for
from guarded import LONG_S
from scripted_host import ScriptedHost
from turned import Clock

from hostguard.core.clock import TICK_BITS

AWAY_S = 8.0


@pytest.fixture
def clock() -> Iterator[Clock]:
    with Clock(DISK / "clock") as clock:
        yield clock


def test_a_turn_does_not_last_as_long_as_the_guard_was_away(scripted: ScriptedHost) -> None:
    """A turn of a second read 8.3 s: it counted until the next guard saw that it was over."""
    scripted.start("ab")
    ended, killed = scripted.send("@a", "sleep 2"), scripted.send("@b", "sleep 2; kill -KILL $PPID")
    wait_for(lambda: {ended, killed} <= set(scripted.order()), LONG_S)
    waiting = scripted.send("@a")
    scripted.kill_for_good()
    begun = time.time()
    time.sleep(AWAY_S)
    scripted.guard.restart()
    [row, next_] = scripted.done(ended, waiting)
    assert 2_000 <= row["result"]["run_ms"] < 2_000 + 1_000 * AWAY_S / 2
    assert row["ended_at"] / 1000 < begun + AWAY_S / 2, "not when it was noticed"
    assert next_["result"]["held_ms"] > 1_000 * AWAY_S
    assert next_["result"]["held_for"] == "session_busy", "not the guard's restart"
    wait_for(lambda: scripted.row(killed)["attempts"] == 1, LONG_S)
    assert scripted.row(killed)["result"]["run_ms"] is None, "its record does not say when it was killed"


def test_one_figure_says_everywhere_how_long_a_row_waits(scripted: ScriptedHost) -> None:
    scripted.start("a")
    first = scripted.send("@a", "wait_go")
    scripted.wait_started(first)
    row, sent = scripted.send("@a"), time.monotonic()
    time.sleep(3)
    scripted.kill()
    scripted.limit(0)  # the reason changes, and the hold that the guard notes begins anew
    begun = time.monotonic() - sent
    [mind] = scripted.get("/v1/minds")["minds"]
    [shown] = scripted.get("/v1/status")["minds"]
    waits = [
        scripted.get(f"/v1/deliveries/{row}/why")["waited_ms"], scripted.row(row)["hold"]["waited_ms"],
        scripted.row(row)["age_ms"], mind["oldest_wait_ms"], mind["hold"]["waited_ms"], shown["hold"]["waited_ms"],
        next(one["hold"]["waited_ms"] for one in scripted.get("/v1/report")["status"]["minds"]),
    ]  # fmt: skip
    most = (time.monotonic() - sent) * 1000
    assert all(begun * 1000 - 1000 <= ms <= most + 1000 for ms in waits), (begun, waits, most)
    scripted.limit("default")
    scripted.go(first)
    [done] = scripted.done(row)
    assert done["result"]["held_ms"] >= max(waits)
    assert done["result"]["held_for"] == "session_busy"


@pytest.mark.parametrize("hours", [6, -6])
def test_a_clock_that_is_set_during_a_turn_adds_nothing(
    clock: Clock, scripted: ScriptedHost, hours: int
) -> None:
    scripted.start("a")
    first = scripted.send("@a", "wait_go")
    scripted.wait_started(first)
    row = scripted.send("@a")
    crash = scripted.send("@a", "kill -SEGV $$", session="other")
    clock.set(hours * 3600)
    scripted.kill()  # the next guard has the row's stamps, and the new clock
    assert scripted.turns()[0]["ran_ms"] < LONG_S * 1000
    scripted.go(first)
    for done in scripted.done(first, row):
        assert done["result"]["run_ms"] < LONG_S * 1000
        assert done["result"]["held_ms"] < LONG_S * 1000
    wait_for(lambda: scripted.row(crash)["attempts"] == 2, LONG_S)
    assert "5m" not in scripted.guard.cli("queue", str(first)).stdout


def test_of_an_earlier_boot_only_the_dates_are_known(clock: Clock, scripted: ScriptedHost) -> None:
    scripted.start("a")
    scripted.post("/v1/pause")
    row = scripted.send("@a")
    scripted.kill_for_good()
    scripted.sql(
        "UPDATE deliveries SET accepted = accepted + ?", 1 << TICK_BITS
    )  # the next boot's id differs
    scripted.guard.restart()
    why = scripted.get(f"/v1/deliveries/{row}/why")
    assert (why["measured"], 0 < why["waited_ms"] < LONG_S * 1000) == (False, True)
    assert "by the clock" in why["text"]
    clock.set(-6 * 3600)
    assert scripted.get(f"/v1/deliveries/{row}/why")["waited_ms"] == 0, "never negative"
    scripted.post("/v1/resume")
    [done] = scripted.done(row)
    assert (done["result"]["held_ms"], done["result"]["held_for"]) == (0, "paused")
