"""Power cuts at random moments under load: what was acknowledged is there, and what was done stays done.

Again and again the machine is killed and started from the same card. Between the cuts the card is looked at as a cut at
that moment would leave it, too. HOSTGUARD_TESTS_SEED=N takes the same moments again.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from card_image import Stored, stored
from machine import Machine
from searches import sized

CUTS = sized(10)
LOOKS = 2  # between two cuts
RECORDS = (8, 50)  # between a start and a cut: from the first messages on, up to some ten turns
SEED = int(os.environ.get("HOSTGUARD_TESTS_SEED") or random.SystemRandom().randrange(1_000_000))
EARLY = 0.2  # of the cuts come while the guard starts
PAUSE_S = 0.3  # at most, after the record that is waited for
CAP = 2
EVERY = ("ada", "bob", "eve")
HELD = "zoe"  # is paused all the time
CLIENTS = {"a": "@ada", "b": "@bob", "e": "@eve", "all": "#all", "held": f"@{HELD}"}

SAY = "$HOSTGUARD_DELIVERY $HOSTGUARD_ATTEMPT >/run/turns"
TURN = f"""
echo begin {SAY}
dd if=/dev/zero of=/card/$HOSTGUARD_MIND bs=16k count=8 conv=fsync 2>/dev/null
echo end {SAY}"""
CONFIG = f"[limits]\nglobal_concurrent_turns = {CAP}\n" + "".join(
    f'[minds.{mind}]\nuser = "root"\ncommand = ["/bin/bash", "-c", """{TURN}"""]\n' for mind in (*EVERY, HELD)
)
CONFIG += f'[channels."#all"]\nminds = {list(EVERY)}\n'


class Told:
    """What the clients and the turns recorded of one life of the machine: from its start to its cut."""

    def __init__(self, lines: list[str]) -> None:
        self.sent: dict[str, list[int]] = {}
        self.done: set[int] = set()
        self.begun: list[tuple[int, int]] = []  # (row, attempt), in order
        self.most = 0  # turns that ran at once
        running: set[int] = set()
        for line in lines:
            what, *rest = line.split()
            if what == "sent":
                self.sent[rest[0]] = [int(id_) for id_ in rest[1:]]
            elif what == "done":
                self.done.add(int(rest[0]))
            elif what == "begin":
                self.begun.append((int(rest[0]), int(rest[1])))
                running.add(int(rest[0]))
                self.most = max(self.most, len(running))
            elif what == "end":
                running.discard(int(rest[0]))
            else:
                raise AssertionError(line)


class Cutter:
    """The machine under load, and all that is known of it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.random = random.Random(SEED)
        self.image = folder / "card"
        self.lives: list[Told] = []
        self.mark = 0  # records of earlier lives
        self.rows: dict[int, Stored] = {}  # as last seen on the card
        self.counted = 0  # turns of this life that had begun then
        self.looks = 0
        self.since = time.monotonic()
        self.held = True
        self.startup = 10.0  # s from the start to the first record; measured

    def start(self, limit: int = 1000) -> None:
        """Start the guard and the clients. What was not acknowledged is sent again, with the same key."""
        self.machine.configure(CONFIG)
        sent = Counter(key.partition("-")[0] for life in self.lives for key in life.sent)
        clients = " ".join(f"'{name}:{to}:{sent[name]}'" for name, to in CLIENTS.items())
        self.began = time.monotonic()
        self.machine.sh("mkfifo /run/turns; systemctl start --no-block hostguard")
        self.machine.start(f"exec python3 -S -E /src/tests/vm/powercut_load.py {limit} {clients}")

    def told(self) -> Told:
        """Of this life."""
        return Told(self.machine.records()[self.mark :])

    def wait_for_records(self, number: int) -> None:
        self.machine.wait_for(lambda: len(self.machine.records()) - self.mark >= number)

    def live(self) -> None:
        """Let it run up to a random moment, and look at the card now and then."""
        if self.random.random() < EARLY:
            time.sleep(self.random.random() * self.startup)
            return
        self.wait_for_records(1)
        self.startup = time.monotonic() - self.began
        until = self.random.randint(*RECORDS)
        for number in sorted(self.random.randint(1, until) for _ in range(LOOKS)):
            self.wait_for_records(number)
            time.sleep(self.random.random() * PAUSE_S)
            self.look()
        self.wait_for_records(until)
        time.sleep(self.random.random() * PAUSE_S)

    def cut(self) -> None:
        self.machine.power_cut()
        self.look()
        self.lives.append(self.told())
        self.mark, self.counted = len(self.machine.records()), 0
        self.machine.boot()
        assert "EXT4-fs error" not in self.machine.console()

    def summary(self) -> str:
        begun = Counter(id_ for life in self.lives for id_, _ in life.begun)
        again = sum(begun.values()) - len(begun)
        passed = time.monotonic() - self.since
        return (
            f"{passed:.0f} s: {len(self.lives)} cuts, {self.looks} looks at the card, {len(self.rows)} rows,"
            f" {len(begun)} ran, {again} times one ran again"
        )

    def look(self) -> None:
        """Check the card against the records. While the machine runs, as if it were cut now."""
        with self.machine.copied_card(self.image):
            told = self.told()
        before, self.rows, self.looks = self.rows, stored(self.image), self.looks + 1
        lives = [*self.lives, told]
        nothing_is_lost(self.rows, lives)
        nothing_is_done_twice(before, self.rows, told.begun[self.counted :], lives)
        order_and_cap_hold(self.rows, told)
        if self.held:
            assert {(row.state, row.attempts) for row in self.rows.values() if row.mind == HELD} <= {
                ("queued", 0)
            }
        self.counted = len(told.begun)


def nothing_is_lost(rows: dict[int, Stored], lives: list[Told]) -> None:
    for life in lives:
        for key, ids in life.sent.items():
            lost = [id_ for id_ in ids if id_ not in rows or rows[id_].key != key]
            assert not lost, f"acknowledged, and not on the card: {key}"
    minds: dict[str | None, list[str]] = defaultdict(list)
    for row in rows.values():
        minds[row.key].append(row.mind)
    for name, found in minds.items():
        assert name is not None
        # A message to many is there for all of them or none, and however often it was sent, once.
        assert sorted(found) == sorted(EVERY) if name.startswith("all-") else len(found) == 1, (name, found)


def nothing_is_done_twice(
    before: dict[int, Stored], rows: dict[int, Stored], begun: list[tuple[int, int]], lives: list[Told]
) -> None:
    """`before`: the rows as they were when the turns in `begun` had not begun."""
    done = {id_ for id_, row in rows.items() if row.state == "done"}
    assert set().union(*(life.done for life in lives)) <= done, "reported done, and not stored"
    was_done = {id_ for id_, row in before.items() if row.state == "done"}
    assert was_done <= done
    assert was_done & {id_ for id_, _ in begun} == set(), "done, and run again"
    assert done <= {id_ for life in lives for id_, _ in life.begun}, "done, and never run"


def order_and_cap_hold(rows: dict[int, Stored], told: Told) -> None:
    assert told.most <= CAP
    assert len(set(told.begun)) == len(told.begun), "one attempt, and two turns"
    for mind in (*EVERY, HELD):  # what failed with an earlier life has lost its place
        order = [id_ for id_, attempt in told.begun if attempt == 1 and rows[id_].mind == mind]
        assert order == sorted(order)


@pytest.fixture(scope="module")
def cutter(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    made = Cutter(machine, tmp_path_factory.mktemp("card"))
    machine.start_guard(CONFIG)
    assert machine.ask("POST", "/v1/pause", {"mind": HELD})[0] == 200
    made.start()
    return made


def test_cuts(cutter: Cutter) -> None:
    print(f"HOSTGUARD_TESTS_SEED={SEED}")
    for left in reversed(range(CUTS)):
        cutter.live()
        cutter.cut()
        print(cutter.summary())
        cutter.start(1000 if left else 1)

    # In the end all is done, also what was held all the time, in its order.
    machine = cutter.machine
    machine.systemctl("start", "hostguard")
    machine.wait_for(lambda: len(cutter.told().sent) == len(CLIENTS))
    cutter.held = False
    assert machine.ask("POST", "/v1/resume", {"mind": HELD})[0] == 200
    machine.wait_for(lambda: machine.get("/v1/deliveries")["deliveries"] == [], 300)
    cutter.look()
    assert {row.state for row in cutter.rows.values()} == {"done"}
    assert {row.mind for row in cutter.rows.values()} == {*EVERY, HELD}
    print(cutter.summary())
