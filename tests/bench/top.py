"""The cost of `hostguard top` on an 80x24 terminal, compared with procps' top at the same interval.

Four turns write a little twice a second, and twelve minds wait. For each program: its CPU time in % of one core
after its start, and the bytes per second that it sends to the terminal. Also the CPU time of the daemon, with
`hostguard top` and without.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.bench import common
from tests.rig.card import Card
from tests.rig.screen import OnScreen

ROUNDS = 3
LOOK_S = 10.0  # how long each is measured
BEGIN_S = 3.0  # for imports and the first screens
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """The CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def main() -> None:
    hostguard = Path("/usr/bin/hostguard")
    writes = (
        "while dd if=/dev/zero of={}/$HOSTGUARD_TURN bs=4K count=1 conv=fsync status=none; do sleep 0.5; done"
    )
    with Card(write_delay_ms=4) as card:
        minds = [common.mind(f"m{n:02}", "/bin/sh", "-c", writes.format(card.mount)) for n in range(16)]
        limits = f'[limits]\nglobal_concurrent_turns = 4\n[device]\npath = "{card.device}"\n'
        with common.Daemon(
            limits + "".join(minds), Path(tempfile.mkdtemp(dir=common.DISK), "state")
        ) as daemon:
            hostguard.write_text("#!/usr/bin/python3\nfrom hostguard.cli import main\nmain()\n")
            hostguard.chmod(0o755)
            caller = common.RunClient()
            for n in range(16):
                caller.ask("POST", "/v1/deliveries", {"to": f"@m{n:02}", "content": "go"})
            caller.socket.close()
            sent: dict[str, list[float]] = {"hostguard top": [], "top -d 1 (peer)": []}
            asked: list[float] = []

            def look(name: str, *command: str) -> float:
                with OnScreen(*command, TERM="vt100") as screen:
                    screen.watch(BEGIN_S)
                    pid, before, its = screen.pid(), cpu_s(screen.pid()), cpu_s(daemon.pid)
                    began = time.monotonic()
                    count = screen.watch(LOOK_S)
                    spent, span = cpu_s(pid) - before, time.monotonic() - began
                    if name == "hostguard top":
                        asked.append(100 * (cpu_s(daemon.pid) - its) / span)
                    sent[name].append(count / span)
                    screen.press("q")
                    screen.ended()
                return 100 * spent / span

            def alone() -> float:
                before, began = cpu_s(daemon.pid), time.monotonic()
                time.sleep(LOOK_S)
                return 100 * (cpu_s(daemon.pid) - before) / (time.monotonic() - began)

            cpu = common.rounds(
                ROUNDS,
                {
                    "hostguard top": lambda: look("hostguard top", "hostguard", "top"),
                    "top -d 1 (peer)": lambda: look("top -d 1 (peer)", "top", "-d", "1"),
                    "hostguardd, without": alone,
                },
            )
            cpu["hostguardd, with hostguard top"] = asked
            common.show("% of a core", cpu, "top -d 1 (peer)", aim="hostguard top below 2 %")
            common.show(
                "bytes/s to the terminal", sent, "top -d 1 (peer)", aim="below 480: 9600 bit/s, half used"
            )
            for unit in common.run(
                "systemctl", "list-units", "--plain", "--no-legend", "hostguard-turn-*"
            ).splitlines():
                common.run("systemctl", "stop", unit.split()[0])


if __name__ == "__main__":
    main()
