"""A kernel of its own: somebody sets the clock by hours while a turn runs and messages wait."""

from __future__ import annotations

import pytest
from machine import Machine

HOUR = 3600
LONG_MS = 600_000  # no span here is as long, even on this slow machine; the clock is set by more
CONFIG = """
[limits]
global_concurrent_turns = 1
[minds.ada]
user = "root"
command = ["/bin/sh", "-c", "sleep 4; cat; echo $HOSTGUARD_HELD_MS"]
"""


@pytest.fixture(scope="module", autouse=True)
def _guard(machine: Machine) -> None:
    machine.start_guard(CONFIG)


def set_by(machine: Machine, hours: int) -> None:
    machine.sh(f"date -s @$(($(date +%s) + {hours * HOUR}))")


@pytest.mark.parametrize("hours", [6, -6])
def test_no_span_follows_the_clock(machine: Machine, hours: int) -> None:
    first = machine.send("@ada")
    machine.wait_for(lambda: machine.get(f"/v1/deliveries/{first}")["state"] == "in_turn")
    second = machine.send("@ada")
    set_by(machine, hours)
    status = machine.get("/v1/status")
    [mind] = status["minds"]
    [turn] = status["live"]
    why = machine.get(f"/v1/deliveries/{second}/why")
    shown = [turn["ran_ms"], mind["sessions"][0]["ran_ms"], mind["oldest_wait_ms"], why["waited_ms"]]
    assert all(0 <= ms < LONG_MS for ms in shown), shown
    rows = machine.done(first, second)
    for row in rows:
        assert 4_000 <= row["result"]["run_ms"] < LONG_MS
    assert 0 < rows[1]["result"]["held_ms"] < LONG_MS
    assert "h" not in machine.sh(f"hostguard queue {first} | sed -n 's/^Ran for: //p'")
    assert "held this message for" not in machine.sh("journalctl -o cat _COMM=cat")
    report = machine.get("/v1/report?since_s=3600")
    assert all(one["held_p95_ms"] < LONG_MS and one["run_ms"] < LONG_MS for one in report["minds"])
    set_by(machine, -hours)


def test_what_was_asked_for_by_date_follows_the_clock(machine: Machine) -> None:
    now = int(machine.sh("date +%s")) * 1000
    row = machine.send("@ada", not_before=now + HOUR * 1000)
    set_by(machine, 2)
    [done] = machine.done(row)
    assert done["result"]["held_ms"] < LONG_MS, "it waited since it came due"
    set_by(machine, -2)
