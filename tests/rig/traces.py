"""Records the traces in tests/unit/traces on the slow card: real counters, for the rule to be held against.

python3 -m tests.rig.traces FOLDER [SCENE...], in the guest; each scene takes one to two minutes.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hostguard import __version__
from hostguard.core.settings import Settings
from hostguard.linux.disk import Device
from hostguard.pressure.rule import TICK, State, step
from hostguard.pressure.sampler import Sampler
from hostguard.pressure.trace import Head, head_line, sample_line
from tests.rig.card import Card

# Writes and flushes without end: a file of its own, bytes a write, seconds of pause after each.
WRITER = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
block, pause = os.urandom(int(sys.argv[2])), float(sys.argv[3])
while True:
    os.pwrite(fd, block, 0)
    os.fsync(fd)
    time.sleep(pause)
"""


@contextmanager
def writers(card: Card, count: int, size: int, pause: float) -> Iterator[None]:
    """So many processes that write to the card. They are gone once it completes what they wait for."""
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(card.mount / str(n)), str(size), str(pause)])
        for n in range(count)
    ]
    try:
        yield
    finally:
        card.go()
        card.set_delay(write_ms=0)
        card.set_rate(None)
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def at(seconds: float, *actions: Callable[[], None]) -> None:
    """Do that later."""

    def later() -> None:
        time.sleep(seconds)
        for action in actions:
            action()

    threading.Thread(target=later, daemon=True).start()


def stop_60_s(card: Card) -> float:
    at(10, card.stop)
    at(70, card.go)
    return 105


def merely_slow(card: Card) -> float:
    """Each write takes 0.5 to 4 s from the tenth second on."""
    dice = random.Random(1)

    def slow() -> None:
        for _ in range(125):
            card.set_delay(write_ms=1000 * dice.uniform(0.5, 4))
            time.sleep(0.5)

    at(10, slow)
    return 75


def spikes(card: Card) -> float:
    """One of 0.8 s at 10 s, and one of 4 s at 20 s."""
    for begin, end in ((10, 10.8), (20, 24)):
        at(begin, card.stop)
        at(end, card.go)
    return 55


def normal(card: Card) -> float:
    return 40


def too_many(card: Card) -> float:
    return 60


# How it goes, and the writers: count, bytes a write, pause in seconds.
SCENES: dict[str, tuple[Callable[[Card], float], tuple[int, int, float]]] = {
    "stop-60s": (stop_60_s, (4, 16_384, 0.1)),
    "merely-slow": (merely_slow, (4, 16_384, 0.1)),
    "spikes": (spikes, (2, 16_384, 0.2)),
    "normal": (normal, (2, 65_536, 0.1)),
    "24-writers": (too_many, (24, 524_288, 0.0)),
}


def record(scene: str) -> bytes:
    """The trace of a scene."""
    play, (count, size, pause) = SCENES[scene]
    settings, state, lines = Settings(), State(), []
    with Card() as card:
        name = Path(card.device).name
        sampler = Sampler(Device(card.device, name, "the card"))
        lines.append(head_line(Head(__version__, "card", os.uname().release, settings)))
        with writers(card, count, size, pause):
            end = time.monotonic() + play(card)
            while time.monotonic() < end:
                sample = sampler.sample(count, count)
                state = step(state, sample, settings)
                lines.append(sample_line(sample))
                time.sleep(min(state.wait, TICK))
    return b"".join(lines)


def main() -> None:
    """Record the scenes that are named, or all."""
    folder = Path(sys.argv[1])
    for scene in sys.argv[2:] or SCENES:
        (folder / f"{scene}.jsonl").write_bytes(record(scene))
        print(scene, flush=True)


if __name__ == "__main__":
    main()
