"""The incident on a card: twelve minds that write at once, and a card that stops.

The first test's table is in the README; tests/run --vm -- tests/vm/test_card_incident.py prints it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from machine import LONG_S, Machine

MINDS = [f"m{number}" for number in range(12)]
CAP = 2
MB = 16  # that each mind writes to the page cache, and then fsyncs
TURN = f"dd if=/dev/zero of=/card/$HOSTGUARD_MIND bs=64k count={MB * 16} conv=fsync"
# memory_high bounds what a turn may leave dirty: a commit of the journal, for which all wait, writes that, too.
CONFIG = (
    f"[limits]\nglobal_concurrent_turns = {CAP}\n"
    '[turn]\nwrite_bandwidth = "4M"\nmemory_high = "8M"\n'
    f'[channels."#all"]\nminds = {json.dumps(MINDS)}\n[channels."#some"]\nminds = {json.dumps(MINDS[1:4])}\n'
) + "".join(
    f'[minds.{mind}]\nuser = "root"\ncommand = ["/bin/bash", "-c", "{TURN} 2>/dev/null"]\n' for mind in MINDS
)
HUNG_S = 10
STALL_S = 30
DUE_S = 12  # when the card has stopped for some seconds


@dataclass(frozen=True)
class Felt:
    """What others felt while turns ran; `hung` are the kernel's reports of hung tasks."""

    seconds: float
    fsync: list[float]
    login: list[float]
    hung: list[str]

    def row(self, name: str) -> str:
        cells = (
            name, f"{self.seconds:.0f} s", str(len(self.hung)),
            *(f"{median(took):.2f} s | {p99(took):.2f} s" for took in (self.fsync, self.login)),
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


@pytest.fixture(scope="module", autouse=True)
def _kernel(machine: Machine) -> None:
    machine.sh(
        f"sysctl -q kernel.hung_task_timeout_secs={HUNG_S} kernel.hung_task_check_interval_secs=2 "
        "kernel.hung_task_warnings=-1"
    )


def felt_while(machine: Machine, run: Callable[[], object]) -> Felt:
    machine.sh("rm -f /run/felt-enough /card/m*; sync; dmesg --clear")
    watching = machine.start("python3 /src/tests/vm/felt.py /card/felt 2>/run/felt-ready")
    machine.sh("until grep -q ready /run/felt-ready; do sleep 0.1; done")
    began = time.monotonic()
    run()
    took = time.monotonic() - began
    machine.sh("touch /run/felt-enough")
    felt = json.loads(watching.wait(LONG_S))
    return Felt(took, felt["fsync"], felt["login"], hung(machine))


def hung(machine: Machine) -> list[str]:
    return [line for line in machine.kernel_log().splitlines() if "blocked for more than" in line]


def test_twelve_minds_in_one_second(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    at_once = " ".join(f"HOSTGUARD_MIND={mind} bash -c '{TURN} 2>/dev/null' &" for mind in MINDS)
    unguarded = felt_while(machine, lambda: machine.sh(f"{at_once} wait", seconds=600))
    machine.start_guard(CONFIG)
    guarded = felt_while(machine, lambda: machine.done(*fan_out(machine, "#all")))
    with capsys.disabled():
        print(f"\n{len(MINDS)} minds, {MB} MiB each")
        print("| | all done after | tasks reported hung | fsync p50 | p99 | login p50 | p99 |")
        print(f"{unguarded.row('unguarded')}\n{guarded.row(f'cap {CAP} and limits')}")
    assert guarded.hung == []
    # A fifth to a fourteenth on Debian 12, a tenth to a third on 13, where neither half the bandwidth nor half of
    # memory_high brought less; one run of a busy machine says no more than this. Unguarded it is the longest of some
    # 25 fsyncs, 5 to 49 s: as much as one commit of the journal happened to take along.
    assert p99(guarded.fsync) <= p99(unguarded.fsync) / 2
    assert p99(guarded.login) <= p99(unguarded.login) / 2


def test_a_card_that_stops(machine: Machine) -> None:
    machine.sh("dmesg --clear")
    machine.configure(CONFIG)
    machine.systemctl("restart", "hostguard")  # it forgets what pressure did so far
    # Accepted while the card works, due while it does not: there is room for one of them.
    rows = fan_out(machine, "#some", not_before=int(time.time() * 1000) + DUE_S * 1000)
    rows.append(machine.send(f"@{MINDS[0]}"))
    machine.wait_for(lambda: machine.get("/v1/turns")["turns"])
    time.sleep(1)
    machine.stall(True)
    began = time.time()
    answers, levels = [], set()
    try:
        while time.time() < began + STALL_S:
            asked = time.monotonic()
            status = machine.get("/v1/status")
            answers.append(time.monotonic() - asked)
            levels.add(status["pressure"]["level"])
            time.sleep(0.5)
        log = machine.kernel_log()
    finally:
        machine.stall(False)
    ended = time.time()
    done = machine.done(*rows)
    assert max(answers) < 5, "it answers while the card does not"
    assert "stalled" in levels
    started = sorted(row["started_at"] / 1000 for row in done)
    assert started[0] < began
    assert started[1] > ended, "nothing starts on a card that stops"
    assert [row["result"]["outcome"] for row in done] == ["exited"] * len(rows)
    # As on the spec's host: tasks wait for the journal, or for whoever holds the card.
    assert "blocked for more than" in log
    assert "jbd2" in log or "mmc" in log
    machine.wait_for(lambda: machine.get("/v1/status")["pressure"]["level"] == "calm")


def fan_out(machine: Machine, channel: str, **fields: int) -> list[int]:
    """A message to a channel; its rows."""
    status, body = machine.ask("POST", "/v1/deliveries", {"to": channel, "content": "wake up", **fields})
    assert status < 300, body
    return [row["id"] for row in body["deliveries"]]
