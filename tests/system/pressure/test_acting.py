"""What the guard does beyond the cap while the card stalls; all of it is undone, whatever happens to the guard."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from card import Card
from guard import DISK, Guard, run, systemctl, wait_for
from guarded import LONG_S
from pressed_host import QUICK, PressedHost
from resident_host import ResidentHost

from hostguard.core.paths import FROZEN, TIGHTENED

# -- on_stall = "freeze"

FREEZE = QUICK + 'on_stall = "freeze"\nfreeze_max = "4s"\n'


def freezer_state(unit: str) -> str:
    return run("systemctl", "show", "--value", "--property=FreezerState", unit).stdout.strip()


def frozen(pressed: PressedHost) -> list[str]:
    return list(pressed.pressure()["frozen"])


def test_the_youngest_turns_are_frozen_while_it_stalls_and_go_on_oldest_first(pressed: PressedHost) -> None:
    units = pressed.stall(FREEZE)
    wait_for(lambda: len(frozen(pressed)) == 3, LONG_S)
    assert frozen(pressed) == units[:0:-1]  # all but the oldest: the floor
    wait_for(lambda: [freezer_state(unit) for unit in units] == ["running", *["frozen"] * 3], 2)
    began = time.monotonic()
    # Not for longer than freeze_max, though the card still does not go on; and then they rest.
    wait_for(lambda: frozen(pressed) == [], 6)
    assert time.monotonic() - began > 2
    assert [freezer_state(unit) for unit in units] == ["running"] * 4
    thawed = [event["unit"] for event in pressed.all_events() if event["type"] == "thawed"]
    # Asked for oldest first (test_freezing), but the kernel tells the ends of it in any order (kernfs_notify).
    assert sorted(thawed) == units[1:]
    assert pressed.level() == "stalled"
    time.sleep(2)
    assert frozen(pressed) == []


def test_once_the_card_is_calm_they_go_on_before_their_time(pressed: PressedHost) -> None:
    units = pressed.stall(FREEZE.replace("4s", "60s"))
    wait_for(lambda: len(frozen(pressed)) == 3, LONG_S)
    pressed.guard.cli("stop", units[2])  # a frozen one is stopped all the same, on systemd 257 too
    wait_for(lambda: len(pressed.turns()) == 3)
    pressed.card.go()
    wait_for(lambda: frozen(pressed) == [], 30)
    for name in (units[1], units[3]):
        assert freezer_state(name) == "running"
    assert [e["unit"] for e in pressed.all_events() if e["type"] == "thawed"] == [units[1], units[3]]


def test_a_guard_that_is_killed_leaves_none_frozen(pressed: PressedHost) -> None:
    """The next one thaws them, though the card still does not go on."""
    units = pressed.stall(FREEZE.replace("4s", "60s"), Path(tempfile.mkdtemp(dir=DISK)))
    wait_for(lambda: [freezer_state(name) for name in units[1:]] == ["frozen"] * 3, LONG_S)
    pressed.guard.kill()
    time.sleep(0.5)
    assert [freezer_state(name) for name in units[1:]] == ["frozen"] * 3
    pressed.guard.restart()
    wait_for(lambda: [freezer_state(name) for name in units[1:]] == ["running"] * 3, LONG_S)
    assert not FROZEN.exists()


@pytest.mark.parametrize("why", ["the queue is on the card", "the configuration is wrong"])
def test_nor_does_one_that_cannot_start(pressed: PressedHost, why: str) -> None:
    units = pressed.stall(FREEZE.replace("4s", "60s"))
    wait_for(lambda: [freezer_state(name) for name in units[1:]] == ["frozen"] * 3, LONG_S)
    if why == "the configuration is wrong":
        pressed.guard.configure("nonsense")
    pressed.guard.kill()
    run("systemctl", "restart", "--no-block", "hostguard.service")
    wait_for(lambda: [freezer_state(name) for name in units[1:]] == ["running"] * 3, LONG_S)
    if why == "the configuration is wrong":
        state = run("systemctl", "show", "--value", "--property=StatusText", "hostguard.service")
        assert state.stdout.startswith("on standby"), state
    # With the queue on the card it may start all the same, if what it reads is in memory still.


@pytest.mark.parametrize("what", ["stop", "pause", "reload"])
def test_whatever_ends_the_freezing_thaws(pressed: PressedHost, what: str) -> None:
    units = pressed.stall(FREEZE.replace("4s", "60s"))
    wait_for(lambda: [freezer_state(name) for name in units[1:]] == ["frozen"] * 3, LONG_S)
    if what == "stop":
        run("systemctl", "stop", "--no-block", "hostguard.service", "hostguard.socket")
    elif what == "pause":
        # It is not stored while the card is stopped, but holds at once.
        with pytest.raises(AssertionError, match="503"):
            pressed.post("/v1/pause")
    else:
        config = Path("/etc/hostguard/hostguard.toml")
        pressed.guard.configure(config.read_text().replace('on_stall = "freeze"', ""))
        pressed.guard.kill("HUP")
    wait_for(lambda: [freezer_state(name) for name in units[1:]] == ["running"] * 3, LONG_S)
    assert not FROZEN.exists()


def test_the_idle_clock_of_a_frozen_turn_stands_still(guard: Guard, card: Card) -> None:
    """The mind has done nothing since its message came; without the freeze its turn would end 4 s after that."""
    go = card.mount / "go"
    go.touch()
    write = f"while [ -e {go} ]; do dd if=/dev/zero of={card.mount}/file bs=4K count=1 conv=fsync status=none; done"
    config = f"""
[minds.writer]
command = ["/bin/sh", "-c", "{write}"]
user = "root"
[device]
path = "{card.mount}"
"""
    with ResidentHost(guard) as host:
        host.minds.add("m", "silent", config="idle_end = 4")
        host.start(config + FREEZE.replace("4s", "6s"))
        host.in_turn(host.send("@writer"))
        row = host.send("@m", "x")
        host.in_turn(row)
        card.stop()
        host.done(row)
        (thawed,) = host.events("thawed")
        assert thawed["mind"] == "m"
        assert thawed["frozen_ms"] > 5000
        assert host.ended(row)[0] == "idle"
        assert host.row(row)["result"]["run_ms"] > thawed["frozen_ms"] + 3500
        card.go()
        go.unlink()


# -- tighten

TIGHTEN = QUICK + 'tighten = "1M"\n'


def slice_limit() -> str:
    shown = run("systemctl", "show", "--value", "--property=IOWriteBandwidthMax", "hostguard.slice")
    return shown.stdout.strip()


def test_the_slice_is_tightened_while_it_is_not_calm(pressed: PressedHost) -> None:
    pressed.stall(TIGHTEN)
    wait_for(lambda: slice_limit() == f"{pressed.card.device} 1000000", LONG_S)
    assert pressed.pressure()["tightened"]
    pressed.card.go()
    wait_for(lambda: pressed.level() == "calm", 30)
    wait_for(lambda: slice_limit() == "", LONG_S)
    assert not pressed.pressure()["tightened"]
    assert not TIGHTENED.exists()


def test_what_an_operator_set_on_the_slice_stays(pressed: PressedHost) -> None:
    own = f"{pressed.card.device} 5000000"
    systemctl("set-property", "--runtime", "hostguard.slice", f"IOWriteBandwidthMax={own}")
    pressed.stall(TIGHTEN)
    wait_for(lambda: pressed.level() == "stalled", LONG_S)
    time.sleep(1.5)
    assert (slice_limit(), pressed.pressure()["tightened"]) == (own, False)
    # Taken away by its owner, it is tightened; and set anew meanwhile, it is left as it is.
    systemctl("set-property", "--runtime", "hostguard.slice", "IOWriteBandwidthMax=")
    pressed.card.go()
    wait_for(lambda: pressed.level() == "calm", 30)
    # The turn may have written all that it writes by now.
    outside = ["dd", "if=/dev/zero", f"of={pressed.card.mount}/outside", "bs=32K", "count=500", "oflag=dsync"]
    writer = subprocess.Popen(outside, stderr=subprocess.DEVNULL)
    try:
        pressed.card.stop()
        wait_for(lambda: slice_limit() == f"{pressed.card.device} 1000000", 10)
        systemctl("set-property", "--runtime", "hostguard.slice", f"IOWriteBandwidthMax={own}")
    finally:
        pressed.card.go()
        writer.wait(60)
    wait_for(lambda: pressed.level() == "calm", 30)
    wait_for(lambda: not pressed.pressure()["tightened"], LONG_S)
    assert slice_limit() == own
    systemctl("set-property", "--runtime", "hostguard.slice", "IOWriteBandwidthMax=")


def test_a_guard_that_is_killed_leaves_the_slice_as_it_was(pressed: PressedHost) -> None:
    pressed.stall(TIGHTEN)
    wait_for(lambda: slice_limit() != "", LONG_S)
    pressed.guard.kill()
    pressed.card.go()
    pressed.guard.restart()
    wait_for(lambda: slice_limit() == "", LONG_S)
