"""Pressure on the slow card: fewer turns while it stalls, a guard that answers meanwhile, and the way back up."""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from card import Card
from guard import DISK, Guard, drop_in, run, systemctl, wait_for
from guarded import LONG_S
from pressed_host import QUICK, PressedHost


class Watch:
    """Asks for the status all the time, on a connection of its own, and keeps what it was told."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.answers: list[tuple[float, float, Any]] = []  # time.monotonic(), seconds it took, status
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        with self._guard.client() as http:
            while not self._stop.is_set():
                began = time.monotonic()
                status = http.get("/v1/status").json()
                self.answers.append((began, time.monotonic() - began, status))
                time.sleep(0.1)

    @contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def slowest(self, share: float, since: float, until: float) -> float:
        """What the given share of the answers took at most, of those asked between the two moments."""
        took = sorted(seconds for at, seconds, _ in self.answers if since <= at <= until)
        return took[int(share * (len(took) - 1))]

    def first(self, true: Any, since: float) -> float:
        """Seconds from `since` to the first answer that is as wanted."""
        return next(at + took for at, took, status in self.answers if at >= since and true(status)) - since


def test_the_card_stops_for_a_minute_under_load(pressed: PressedHost) -> None:
    """Case 30 among it (raspberrypi/rpi-imager#1216), for a minute here."""
    with drop_in("WatchdogSec=4"):
        stop_for_a_minute(pressed)


def stop_for_a_minute(pressed: PressedHost) -> None:
    card = pressed.card
    card.set_rate(None)
    pressed.start()
    idle = pressed.send("@idle")
    wait_for(lambda: len(pressed.turns()) == 1)
    rows = pressed.load(24)
    watch = Watch(pressed.guard)
    daemon = pressed.guard.pid
    with watch.asking():
        pressed.done(*rows[:4])
        assert pressed.get("/v1/status")["pressure"]["level"] == "calm"
        stopped = time.monotonic()
        card.stop()
        wait_for(lambda: pressed.level() == "stalled", 5)
        seen = pressed.pressure()
        started = [event for event in pressed.all_events() if event["type"] == "started"]
        time.sleep(3)
        systemctl("stop", f"hostguard-turn-idle-{idle}.scope")
        wait_for(lambda: idle not in [turn["delivery"] for turn in pressed.turns()])
        time.sleep(max(0, stopped + 60 - time.monotonic()))
        assert [event for event in pressed.all_events() if event["type"] == "started"] == started
        assert pressed.level() == "stalled"
        went_on = time.monotonic()
        card.go()
        pressed.done(*rows)
        wait_for(lambda: [c["cap"] for c in pressed.pressure()["changes"]][-2:] == [2, 3], LONG_S)
    # 1.7 s and 22 ms on a machine that has nothing else to do; tests/bench measures.
    assert watch.first(lambda status: status["pressure"]["level"] == "stalled", stopped) < 4
    assert (seen["cap"], seen["admit"]) == (3, 1)
    assert watch.slowest(0.99, stopped, went_on) < 0.5
    assert pressed.guard.pid == daemon


def test_a_card_that_is_merely_slow_has_fewer_turns_and_does_not_flap(pressed: PressedHost) -> None:
    """Each write takes 0.5 to 4 s. Nothing is left behind once the card is as before."""
    pressed.card.set_rate(None)
    pressed.start("", writes=20)
    rows = pressed.load(12)
    wait_for(lambda: len(pressed.turns()) == 6)
    with slow_writes(pressed.card):
        wait_for(lambda: pressed.pressure()["cap"] == 1, 90)
        time.sleep(25)  # longer than calm_window
        caps = [change["cap"] for change in pressed.pressure()["changes"]]
    assert caps == sorted(caps, reverse=True), "it went down, and never up"
    assert caps[-1] == 1
    pressed.done(*rows)


@contextmanager
def slow_writes(card: Card) -> Iterator[None]:
    """As in the trace merely-slow (tests/rig/traces.py)."""
    dice, over = random.Random(1), threading.Event()

    def slow() -> None:
        while not over.wait(0.5):
            card.set_delay(write_ms=1000 * dice.uniform(0.5, 4))

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        card.set_delay(write_ms=4)


# -- cases of others, and what there is no pressure file for


def test_case_25_the_floor_makes_progress_while_another_program_writes(pressed: PressedHost) -> None:
    """25, digitaldrywood/detent#2148: strained for as long as it lasts, and one turn after the other is done."""
    settings = (
        QUICK.replace("2s", "1s") + 'strained_after = "1s"\nstrained_await = "50ms"\ncalm_await = "20ms"\n'
    )
    pressed.start(settings, writes=3)
    with outside_writers(pressed.card, 8):
        rows = pressed.load(12)
        wait_for(lambda: pressed.pressure()["cap"] == 1, LONG_S)
        more = pressed.load(3)
        pressed.done(*rows, *more)
        assert pressed.level() == "strained"
    wait_for(lambda: pressed.level() == "calm", LONG_S)


@contextmanager
def outside_writers(card: Card, count: int) -> Iterator[None]:
    """Programs that are no turns, and write to the card all the time."""
    go = card.mount / "go"
    go.touch()
    write = f"dd if=/dev/zero of={card.mount}/$0 bs=64K count=4 conv=fsync status=none"
    loop = ["/bin/sh", "-c", f"while [ -e {go} ]; do {write}; done"]
    writers = [subprocess.Popen([*loop, f"outside-{i}"]) for i in range(count)]
    try:
        yield
    finally:
        go.unlink()
        for writer in writers:
            writer.wait()


def test_case_26_a_cold_start_on_a_card_that_another_program_waits_for(pressed: PressedHost) -> None:
    """26, anthony-chaudhary/fak#2769: with no turn live, the floor starts. That it stalls, the kernel told."""
    pressed.start(database=Path(tempfile.mkdtemp(dir=DISK)))
    with outside_writers(pressed.card, 2):
        pressed.card.stop()
        try:
            # While no turn runs it does not look by itself. Woken for others' disks, it may rest for a minute.
            wait_for(lambda: pressed.level() == "stalled", 100)
            assert {sample["live"] for sample in pressed.pressure()["samples"]} == {0}
            floor, beyond = pressed.send("@idle"), pressed.send("@a")
            wait_for(lambda: [turn["state"] for turn in pressed.turns()] == ["running"])
            assert pressed.turns()[0]["delivery"] == floor
            assert pressed.row(beyond)["hold"]["reason"] == "pressure"
        finally:
            pressed.card.go()
    pressed.done(beyond)


def test_case_28_a_guard_that_was_stopped_decides_nothing_from_stale_samples(pressed: PressedHost) -> None:
    """28, openclaw/openclaw#107415: what happened meanwhile is not taken for what happens."""
    pressed.card.set_rate(None)
    pressed.start(writes=400)
    pressed.load(6)
    wait_for(lambda: len(pressed.turns()) == 6 and pressed.level() == "calm")
    time.sleep(2)
    before = pressed.pressure()
    pressed.guard.kill("STOP")
    pressed.card.stop()
    time.sleep(6)
    pressed.card.go()
    time.sleep(0.5)
    pressed.guard.kill("CONT")
    wait_for(lambda: pressed.pressure()["samples"][-1]["at"] - before["samples"][-1]["at"] > 8)
    now = pressed.pressure()
    ats = [sample["at"] for sample in now["samples"]]
    assert max(later - at for at, later in pairwise(ats)) > 6  # it saw nothing of it
    assert (now["level"], now["changes"]) == ("calm", [])


def test_a_guard_that_is_restarted_in_a_stall_knows_of_it(pressed: PressedHost) -> None:
    """It has seen nothing yet, and the configured cap has room for two more."""
    pressed.stall(QUICK, Path(tempfile.mkdtemp(dir=DISK)))
    wait_for(lambda: pressed.level() == "stalled", LONG_S)
    held, cap = pressed.send("@b"), pressed.pressure()["cap"]
    pressed.guard.kill()
    pressed.guard.restart()
    assert (pressed.level(), pressed.pressure()["cap"]) == ("stalled", cap)
    time.sleep(1)
    assert pressed.row(held)["hold"]["reason"] == "pressure"
    pressed.post(f"/v1/deliveries/{held}/cancel")


def test_without_psi_the_disk_alone_decides(pressed: PressedHost) -> None:
    """As on Raspberry Pi OS; and no trigger is granted, so that it looks by itself."""
    empty = Path("/run/no-pressure")
    empty.mkdir(exist_ok=True)
    with drop_in(f"BindReadOnlyPaths={empty}:/proc/pressure"):  # it has a /proc of its own
        units = pressed.stall(QUICK, Path(tempfile.mkdtemp(dir=DISK)))
        wait_for(lambda: pressed.level() == "stalled", 3)
        told = pressed.pressure()
        held = pressed.send("@b")
        why = pressed.get(f"/v1/deliveries/{held}/why")
        wait_for(lambda: "; stalled, 1 may run" in status_line(), 2)
        pressed.post(f"/v1/deliveries/{held}/cancel")
    assert told["psi"].startswith("this kernel shows no PSI")
    assert (told["samples"][-1]["host"], told["cap"]) == (None, 2)
    assert why["reason"] == "pressure"
    assert re.search(r"the disk is stalled \([0-9]+ requests? in flight, ", why["text"])
    behind = re.search(", and fewer turns may run, behind turn ([^;]+);", why["text"])
    assert behind is not None
    assert units[0].endswith(f"-{behind[1]}.scope")
    lines = pressed.guard.journal("SYSLOG_IDENTIFIER=hostguardd")
    assert "PSI trigger: the kernel grants no PSI trigger: No such file or directory" in [
        line["MESSAGE"] for line in lines
    ]


def status_line() -> str:
    return run("systemctl", "show", "--value", "--property=StatusText", "hostguard.service").stdout


def test_idle_and_calm_it_neither_looks_nor_writes(pressed: PressedHost) -> None:
    """The kernel may wake it, if others on this machine wait for their disk: but not for long."""
    pressed.start(writes=1, database=Path(tempfile.mkdtemp(dir=DISK)))
    pressed.done(pressed.send("@a"))
    pid = pressed.guard.pid

    def quiet() -> bool:
        before = activity(pid)
        time.sleep(8)
        return activity(pid) == before

    wait_for(quiet, 120)


def activity(pid: int) -> tuple[int, int]:
    """How often any of its threads went to sleep, and bytes that it wrote."""
    switches = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        switches += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    written = Path(f"/proc/{pid}/io").read_text().partition("wchar:")[2].split()[0]
    return switches, int(written)
