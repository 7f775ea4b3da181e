"""The first phase: all turns at once as plain processes, as on a host without hostguard."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace

from hostguard.cli.demo.bystander import Bystander
from hostguard.cli.demo.host import Host
from hostguard.cli.demo.plan import WAKES, command
from hostguard.cli.demo.results import Phase, Turn
from hostguard.cli.demo.signals import Signals
from hostguard.cli.demo.view import View
from hostguard.cli.errors import CliError

NAME = "unguarded"
LOOK_S = 0.02
STUCK_S = 300.0  # longer than a card stalls


def run(host: Host, view: View, signals: Signals) -> Phase:
    """Run the phase. Raises CliError, OSError."""
    bystander = Bystander(host.folder / "bystander")
    children: list[subprocess.Popen[bytes]] = []
    turns: list[Turn] = []
    try:
        view.phase(NAME, f"{len(WAKES)} turns start in the same second")
        start = time.time()
        with signals.held():
            for wake in WAKES:
                file = host.folder / f"{wake.mind}-{wake.cause}"
                children.append(
                    subprocess.Popen(
                        command(file, host.size), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL, start_new_session=True,
                    )
                )  # fmt: skip
                now = time.time() - start
                turns.append(Turn(wake.mind, wake.cause, now, started=now))
        bystander.begin()
        for turn in turns:
            view.line(turn.started or 0.0, "start", turn.name)
        while any(turn.ended is None for turn in turns):
            now = time.time() - start
            if now > STUCK_S:
                raise CliError(f"{host.folder}: not all turns ended in {STUCK_S:g} s: use a smaller --size")
            for i, (turn, child) in enumerate(zip(turns, children, strict=True)):
                if turn.ended is None and (status := child.poll()) is not None:
                    turns[i] = replace(turn, ended=now, exit=status, outcome=f"exit status {status}")
                    view.line(now, "end", f"{turn.name}: exit status {status}")
            view.frame(turns, now, bystander.delay(start + now))
            time.sleep(LOOK_S)
        phase = Phase(NAME, tuple(turns), bystander.end(start))
        view.over(phase)
        return phase
    finally:
        with signals.held():
            for child in children:
                child.kill()
            for child in children:
                child.wait()
            bystander.kill()
