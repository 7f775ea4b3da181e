"""This machine is as slow as a small Pi: what hostguard costs there. The figures are printed."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from machine import Machine

STATUS_MAX = 4.0  # times a Python that does nothing
TURNS = 8
CONFIG = """
[limits]
global_concurrent_turns = 1
[minds.ada]
user = "root"
command = ["/bin/bash", "-c", "begin=$EPOCHREALTIME; sleep 0.5; echo $begin $EPOCHREALTIME >>/tmp/turns"]
"""


@pytest.fixture(scope="module", autouse=True)
def _guard(machine: Machine) -> None:
    machine.start_guard(CONFIG)


def test_a_look_at_the_status(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    # By turns, so that a busy host slows both; of what is left, the least is what they take.
    python, status = [], []
    for _ in range(5):
        python.append(seconds(machine, "python3 -c pass"))
        status.append(seconds(machine, "hostguard status"))
    with capsys.disabled():
        print(f"\nhostguard status: {min(status):.2f} s, python3 -c pass: {min(python):.2f} s")
    assert min(status) < STATUS_MAX * min(python)


def test_the_hand_off(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.done(*[machine.send("@ada", session=f"s{number}") for number in range(TURNS)])
    spans = sorted(tuple(map(float, line.split())) for line in machine.sh("cat /tmp/turns").splitlines())
    assert len(spans) == TURNS
    gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    assert min(gaps) >= 0, "two turns at once"
    with capsys.disabled():
        print(
            f"\nhand-off: median {statistics.median(gaps) * 1000:.0f} ms, longest {max(gaps) * 1000:.0f} ms"
        )
    assert statistics.median(gaps) < 5


def test_the_daemon(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    start = min(seconds(machine, "systemctl restart hostguard") for _ in range(2))
    python = min(seconds(machine, "python3 -c pass") for _ in range(3))
    pid = machine.sh("systemctl show -P MainPID hostguard").strip()
    resident = int(machine.sh(f"awk '/^VmRSS/ {{ print $2 }}' /proc/{pid}/status"))
    with capsys.disabled():
        print(
            f"\nhostguardd: ready after {start:.1f} s ({start / python:.0f} x python3), {resident >> 10} MiB resident"
        )
    assert resident < 64 << 10, "what the unit asks to be protected: MemoryMin"


def seconds(machine: Machine, command: str) -> float:
    """How long a command takes in the guest."""
    return float(machine.sh(f"TIMEFORMAT=%R; time {command} >/dev/null"))
