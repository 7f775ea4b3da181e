"""A kernel without the memory controller, as the firmware of a Raspberry Pi starts it."""

from __future__ import annotations

import pytest
from machine import Machine

APPEND = "cgroup_disable=memory"
CONFIG = """
[turn]
io_weight = 50
write_bandwidth = 1000000
read_iops = 40
memory_max = "100M"
tasks_max = 50
[minds.ada]
user = "root"
command = ["/bin/dd", "if=/dev/zero", "of=/card/ada", "bs=64k", "count=64", "oflag=direct"]
"""


@pytest.fixture(scope="module", autouse=True)
def _guard(machine: Machine) -> None:
    machine.start_guard(CONFIG)


def test_the_guard_runs_on_and_says_what_is_inert(machine: Machine) -> None:
    (row,) = machine.done(machine.send("@ada"))
    assert row["result"]["outcome"] == "exited"
    assert row["result"]["run_ms"] > 3500, "a direct write of 4 MB at 1 MB/s"
    machine.wait_for(lambda: "unknown" not in labels(machine).values())
    assert labels(machine) == {
        "io_weight": "inert",  # the card's scheduler does not weigh
        "write_bandwidth": "partial",  # direct writes only
        "read_iops": "enforced",
        "memory_max": "inert",
        "tasks_max": "enforced",
    }


def test_people_are_told(machine: Machine) -> None:
    shown = machine.sh("hostguard status")
    assert "memory_max" in shown
    assert "write_bandwidth" in shown
    assert "tasks_max" not in shown
    assert "memory_max is inert: cgroup version 2 has no memory controller here" in machine.sh(
        "journalctl -u hostguard"
    )


def labels(machine: Machine) -> dict[str, str]:
    return {told["limit"]: told["label"] for told in machine.get("/v1/status")["enforcement"]}
