"""Random histories of a host: kills, reboots in order and without power, a bad configuration, flipped bits, pauses.

The steps that need a boot of the host; those of one boot, with the turns of the clock, are in
tests/system/whole/test_anything.py. What holds after all of them: each message that was accepted ran to its end, or
`status` names the file that its damaged row was moved into; nothing ran twice but in the documented window; a
session's rows ran in order.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from searches import sized

from tests.bench.promises import MINDS, Bench, Sender, figures
from tests.rig.switched import Switched

STEPS = 8
BROKEN = ('[minds.m0]\ncommand = "no list"\n', "[limits\n", "[limits]\nglobal_concurrent_turns = -1\n")


class History(Bench):
    """A host under load, and what was done to it."""

    def __init__(self, host: Switched, rng: random.Random) -> None:
        super().__init__(host)
        self.rng = rng
        self.done: list[str] = []
        self.bits = 0

    def step(self) -> None:
        """Do one thing at random."""
        steps: list[Callable[[], None]] = [
            self.kill, self.reboot, self.cut, self.break_configuration, self.flip, self.pause,
        ]  # fmt: skip
        do = self.rng.choice(steps)
        self.done.append(do.__name__)
        do()

    def break_configuration(self) -> None:
        """A restart with a bad file: the guard stays up, says why, starts nothing, and goes on once it is mended."""
        file = self.host.etc / "hostguard.toml"
        good = file.read_text()
        file.write_text(good + self.rng.choice(BROKEN))
        self.host.sh("systemctl restart hostguard")
        assert "hostguard.toml" in self.host.ask("hostguard status").stderr
        begun = len(self._starts())
        time.sleep(0.5)
        assert len(self._starts()) == begun
        file.write_text(good)
        self.host.wait_for(self._runs)

    def flip(self) -> None:
        """Flip a bit of the queue or its WAL while the guard is down."""
        self.host.sh("systemctl kill --signal=KILL hostguard; systemctl stop hostguard.socket hostguard")
        files = [
            file for file in self.host.state.glob("queue.db*") if file.name in ("queue.db", "queue.db-wal")
        ]
        file = self.rng.choice([file for file in files if file.stat().st_size])
        raw = bytearray(file.read_bytes())
        raw[self.rng.randrange(len(raw))] ^= 1 << self.rng.randrange(8)
        file.write_bytes(raw)
        self.bits += 1
        self.host.sh("systemctl start hostguard.socket hostguard")
        # The flip may have undone what the WAL had last: a resume.
        self.host.wait_for(lambda: self.host.ask("hostguard resume").returncode == 0)
        self.host.wait_for(self._runs)

    def pause(self) -> None:
        """Start nothing for a moment."""
        self.host.sh("hostguard pause")
        time.sleep(self.rng.uniform(0, 0.5))
        self.host.sh("hostguard resume")

    def _starts(self) -> list[list[str]]:
        return [line for line in self.host.logged() if line[0] == "start"]

    def _runs(self) -> bool:
        try:
            return bool(self.host.call("GET", "/v1/status")["state"] == "running")
        except (httpx.TransportError, AssertionError):
            return False

    def told(self) -> list[str]:
        """The codes of what `status` reports."""
        return [problem["code"] for problem in self.host.call("GET", "/v1/status")["problems"]]

    def aside(self) -> set[int]:
        """The ids of deliveries that were set aside as damaged, row by row."""
        rows: list[Any] = []
        for file in self.host.state.glob("queue.db.damaged-*.rows"):
            rows += map(json.loads, file.read_text().splitlines())
        return {row["row"] for row in rows if row["table"] == "deliveries"}

    def whole_file_aside(self) -> bool:
        """True if more than single rows was set aside: the file, or what the WAL had last."""
        found = [file.name for file in self.host.state.glob("queue.db.damaged-*")]
        return any(name.endswith(("Z", ".unreplayed")) for name in found)


def test_whatever_becomes_of_the_host(tree: Path, tmp_path: Path) -> None:
    for number in range(sized(1)):
        seed = random.SystemRandom().randrange(1 << 30)
        folder = tmp_path / str(number)
        folder.mkdir()
        with Switched(tree, folder) as host:
            history = History(host, random.Random(seed))
            try:
                run(history)
            except BaseException:
                print(f"seed {seed}, the steps were:", *history.done, sep="\n")
                raise


def run(history: History) -> None:
    host = history.host
    history.start()
    senders = [Sender(host, name, name) for name in MINDS]
    for sender in senders:
        sender.start()
    for _ in range(STEPS):
        time.sleep(history.rng.uniform(0.05, 1))
        history.step()
    for sender in senders:
        sender.stopped.set()
    for sender in senders:
        sender.join()
    host.wait_for(history.drained, 600)
    rows = {row for sender in senders for row in sender.rows}
    log = host.logged()
    found = figures("", 0, sorted(rows), log, history.downs)
    ended = {int(line[1]) for line in log if line[0] == "end"}
    lost = rows - ended - history.aside()
    if history.whole_file_aside() or history.aside():
        assert history.bits
        assert "queue_damaged" in history.told()
    if not history.whole_file_aside():  # else ids begin anew, and what may be lost is told
        assert not lost
        assert not found.doubled
        check_order(senders, log, history.aside())
    assert rows


def check_order(senders: list[Sender], log: list[list[str]], aside: set[int]) -> None:
    """The rows of a mind's session first started in the order in which they were accepted."""
    first: dict[int, int] = {}
    for place, line in enumerate(log):
        if line[0] == "start" and len(line) == 4:
            first.setdefault(int(line[1]), place)
    for sender in senders:
        places = [first[row] for row in dict.fromkeys(sender.rows) if row in first and row not in aside]
        assert all(one < other for one, other in itertools.pairwise(places)), sender.rows
