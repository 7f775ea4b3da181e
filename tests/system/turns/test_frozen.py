"""Turns that somebody froze with systemctl: they look frozen everywhere, and are not idle."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest
from guard import Guard, systemctl, wait_for
from guarded import LONG_S, GuardedHost
from resident_host import ResidentHost

CONFIG = '[minds.ada]\ncommand = ["/bin/sleep", "300"]\nuser = "root"\n'


def state(host: GuardedHost) -> Any:
    [turn] = host.turns()
    return turn["frozen"], turn["state"]


def top(host: GuardedHost) -> str:
    return subprocess.run(
        ["hostguard", "top", "--once"], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("unit", ["hostguard-turn-ada-1.scope", "hostguard-ada.slice", "hostguard.slice"])
def test_a_frozen_turn_looks_frozen(guard: Guard, unit: str) -> None:
    guard.start(CONFIG)
    host = GuardedHost(guard)
    try:
        host.send("@ada")
        wait_for(lambda: host.row(1)["state"] == "in_turn" and state(host) == (False, "running"))
        behind = host.send("@ada")
        systemctl("freeze", unit)
        wait_for(lambda: state(host) == (True, "running"))
        line = f"!  frozen   ada: systemctl thaw {unit}"
        assert line in guard.cli("status").stdout
        assert " frozen " in guard.cli("turns").stdout
        assert "State: frozen" in guard.cli("turns", "1").stdout
        shown = top(host)
        assert line in shown
        assert any(words.split()[:4] == ["1", "ada", "main", "frozen"] for words in shown.splitlines()), shown
        why = guard.cli("why", str(behind)).stdout
        assert f"behind turn 1, which is frozen (systemctl thaw {unit})" in why
        guard.restart()
        assert state(host) == (True, "running"), "the next guard sees it, too"
        guard.stop()
        without = guard.cli("status", check=False).stdout
        assert " frozen " in without
        guard.restart()
        systemctl("thaw", unit)
        wait_for(lambda: state(host) == (False, "running"))
        assert "frozen" not in guard.cli("status").stdout
        guard.cli("cancel", str(behind))
        guard.cli("stop", "1")
        wait_for(lambda: not guard.scopes())
    finally:
        subprocess.run(["systemctl", "thaw", unit], capture_output=True, timeout=60, check=False)
        guard.cli("cancel", "2", check=False)
        guard.end_turns()
        host.api.close()


def test_a_frozen_turn_is_not_idle(host: ResidentHost) -> None:
    """Frozen for longer than idle_end, and thawed: its turn goes on to its own end."""
    mind = host.one(work=4.0, config="idle_end = 3\n")
    row = host.send("m", "work")
    unit = host.in_turn(row)["unit"]
    wait_for(lambda: mind.taken(), LONG_S)
    systemctl("freeze", unit)
    end = time.monotonic() + 9
    while time.monotonic() < end:
        assert host.row(row)["state"] == "in_turn"
        time.sleep(0.2)
    systemctl("thaw", unit)
    [done] = host.done(row)
    assert done["result"]["outcome"] == "done"
