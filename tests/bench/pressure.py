"""What a cap, and the cap that the guard finds by itself, do for a host whose card is slow, or stops.

The incident of facts.md: 24 turns at once, each writes 3 MB and flushes after every 512 KiB, to a card of 4 MB/s
and 4 ms per write; a bystander writes 4 KiB and flushes it four times a second. Unguarded they are plain
processes. `cap 2` has it configured. `no cap` is a guard that knows nothing of the card: the same burst again and
again, with what it has learnt from those before. No turn that runs is stopped for pressure, so the first burst
is as without a guard.

Then the card stops under two turns that write, until the guard has halved the cap; every time a guard that has
just been started.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hostguard.cli.demo.results import Felt, felt
from hostguard.cli.demo.watch import Bystander
from tests.bench import common
from tests.rig.card import Card

TURNS = 24
BYTES = 3 << 20
BLOCK = 512 << 10
BURSTS = 4  # of the guard that has no cap
ROUNDS = 2
STOPS = 20
CALM_WINDOW_S = 5
LONG_S = 300.0


def write(file: str, block: int, count: int) -> list[str]:
    """Each block is on the device before the next."""
    return [
        "/bin/dd",
        "if=/dev/zero",
        f"of={file}",
        f"bs={block}",
        f"count={count}",
        "oflag=dsync",
        "status=none",
    ]


class Burst:
    """What a burst was like: seconds until all turns were done, what the bystander felt, bytes to the card."""

    def __init__(self, card: Card, turns: Callable[[], None]) -> None:
        common.sync(card.mount)
        before, began = common.card_bytes(card), time.time()
        bystander = Bystander(card.mount / "bystander")
        try:
            bystander.begin()
            turns()
            self.makespan = time.time() - began
            writes = bystander.end(began)
        finally:
            bystander.kill()
        self.felt: Felt = felt(one.took for one in writes if one.at <= self.makespan)
        common.sync(card.mount)
        self.written = common.card_bytes(card) - before

    @property
    def figures(self) -> tuple[float, ...]:
        return self.felt.p50, self.felt.p99, self.felt.max, self.makespan, self.written / 1e6


def unguarded(card: Card) -> None:
    """All turns as plain processes."""
    children = [subprocess.Popen(write(f"{card.mount}/{i}", BLOCK, BYTES // BLOCK)) for i in range(TURNS)]
    for child in children:
        assert child.wait() == 0


@contextmanager
def guard(card: Card, limits: str) -> Iterator[Callable[[], None]]:
    """A guard with its state on the card; calling what is yielded sends it the turns, and waits for them."""
    command = " ".join(write(f"{card.mount}/$HOSTGUARD_DELIVERY", BLOCK, BYTES // BLOCK))
    config = f"{limits}\n{common.mind('bench', '/bin/sh', '-c', command)}concurrent_turns = {TURNS}\n"
    message = common.request("POST", "/v1/deliveries", {"to": "@bench", "content": "", "session": "$new"})
    with common.Daemon(config, card.mount / "state"):
        caller = common.RunClient()

        def turns() -> None:
            assert (
                common.call_at_once([common.RunClient() for _ in range(TURNS)], message, lambda n: n < TURNS)
                == TURNS
            )
            while (status := caller.ask("GET", "/v1/status"))["turns"] or status["queued"]:
                time.sleep(0.05)
            for file in card.mount.glob("[0-9]*"):
                file.unlink()

        yield turns


def bursts() -> None:
    """Measure them all."""
    found: dict[str, list[Burst]] = {"unguarded": [], "cap 2": []}
    for number in range(BURSTS):
        found[f"no cap, burst {number + 1}"] = []
    for _ in range(ROUNDS):
        with Card() as card:
            found["unguarded"].append(Burst(card, lambda: unguarded(card)))
        with Card() as card, guard(card, "[limits]\nglobal_concurrent_turns = 2") as turns:
            found["cap 2"].append(Burst(card, turns))
        with Card() as card, guard(card, "") as turns:
            for number in range(BURSTS):
                found[f"no cap, burst {number + 1}"].append(Burst(card, turns))
    titles = (
        "bystander p50, s",
        "bystander p99, s",
        "bystander max, s",
        "all turns done after, s",
        "written, MB",
    )
    aims = ("", "0.1x", "", "1.0x", "")
    for column, (title, aim) in enumerate(zip(titles, aims, strict=True)):
        figures = {name: [burst.figures[column] for burst in found[name]] for name in found}
        common.show(title, figures, "unguarded", aim=aim and f"at most {aim} of unguarded")


def stops() -> None:
    """Measure how soon the guard reacts when the card stops, and when it goes on."""
    script = f"while :; do {' '.join(write('$0', 64 << 10, 1))} conv=notrunc; done"
    cut, back = [], []
    with Card() as card:
        minds = "".join(common.mind(name, "/bin/sh", "-c", script, f"{card.mount}/{name}") for name in "ab")
        config = (
            f'[limits]\nglobal_concurrent_turns = 2\n[pressure]\ncalm_window = "{CALM_WINDOW_S}s"\n{minds}'
        )
        with common.Daemon(config, card.mount / "state"):
            for name in "ab":
                common.RunClient().ask("POST", "/v1/deliveries", {"to": f"@{name}", "content": ""})
            for _ in range(STOPS):
                common.run("systemctl", "restart", "hostguard")
                time.sleep(3)
                stopped = time.time()
                card.stop()
                try:
                    cut.append(change(lambda caps: caps[-1] == 1) - stopped)
                finally:
                    card.go()
                going = time.time()
                back.append(change(lambda caps: 1 in caps and caps[-1] is None) - going)
    common.show("the card stops, s", {"to the halved cap": cut}, aim="at most 2")
    common.show("it goes on, s", {"to the whole cap": back}, aim=f"5, and calm_window, here {CALM_WINDOW_S}")
    print(f"{STOPS} stops; the median, lowest and highest of them")


def change(is_it: Callable[[list[int | None]], bool]) -> float:
    """When the guard made the change that `is_it` finds in its caps so far; in s since the epoch. Waits for it."""
    caller, end = common.RunClient(), time.monotonic() + LONG_S
    while time.monotonic() < end:
        changes = caller.ask("GET", "/v1/pressure")["changes"]
        if changes and is_it([one["cap"] for one in changes]):
            return float(changes[-1]["at"]) / 1000
        time.sleep(0.02)
    raise RuntimeError("the cap did not change")


if __name__ == "__main__":
    bursts()
    stops()
