"""The guard on the slow card, with turns that write to it, and the pressure that the guard sees."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from card import Card
from guard import Guard, wait_for
from guarded import GuardedHost

# Small writes, each flushed: with six turns at once a request takes some 80 ms, and the card is calm.
TURN = """#!/bin/sh
i=0
while [ $i -lt @WRITES@ ]; do
    dd if=/dev/zero of=@FOLDER@/$HOSTGUARD_TURN bs=32K count=1 seek=$i conv=fsync,notrunc status=none
    i=$((i + 1))
done
"""
QUICK = """
[pressure]
hold_off = "2s"
calm_window = "3s"
"""


class PressedHost(GuardedHost):
    """A guard that watches the card, with minds a to l whose turns write to it."""

    def __init__(self, guard: Guard, card: Card) -> None:
        super().__init__(guard)
        self.card = card
        self.written = card.mount / "written"

    def start(self, rest: str = QUICK, writes: int = 60, database: Path | None = None) -> None:
        """Start the guard with a cap of 6. A turn writes `writes` times 32 KiB.

        `database` is the folder that it is in, by default one on the card.
        """
        self.written.mkdir()
        turn = Path("/run/turn")
        turn.write_text(TURN.replace("@WRITES@", str(writes)).replace("@FOLDER@", str(self.written)))
        turn.chmod(0o755)
        tables = [f'[minds.{mind}]\ncommand = ["{turn}"]\nuser = "root"' for mind in "abcdefghijkl"]
        tables.append('[minds.idle]\ncommand = ["/bin/sleep", "1000"]\nuser = "root"')
        caps = f'[limits]\nglobal_concurrent_turns = 6\n[device]\npath = "{self.card.mount}"'
        state = database or self.card.mount / "state"
        state.mkdir(exist_ok=True)
        self.guard.start("\n".join([caps, *tables, rest, ""]), state)

    def load(self, rows: int) -> list[int]:
        """This many messages, a mind after the other."""
        return [self.send(f"@{'abcdefghijkl'[i % 12]}") for i in range(rows)]

    def pressure(self) -> Any:
        return self.get("/v1/pressure")

    def level(self) -> str:
        return str(self.pressure()["level"])

    def stall(self, settings: str, database: Path | None = None) -> list[str]:
        """Start a turn that writes and three that sleep, and stop the card. Their units, oldest first."""
        self.card.set_rate(None)
        minds = ("x", "y", "z")
        tables = [f'[minds.{mind}]\ncommand = ["/bin/sleep", "1000"]\nuser = "root"' for mind in minds]
        self.start("\n".join([*tables, settings]), 300, database)
        self.send("@a")
        wait_for(lambda: len(self.turns()) == 1)
        for mind in minds:
            self.send(f"@{mind}")
        wait_for(lambda: [turn["state"] for turn in self.turns()] == ["running"] * 4)
        time.sleep(1.5)
        self.card.stop()
        return [turn["unit"] for turn in self.turns()]
