"""A kernel without the io controller: no limit on the card acts, and the guard says so and works."""

from __future__ import annotations

import pytest
from machine import Machine

APPEND = "cgroup_disable=io"
LIMITS = {
    "io_weight": 50, "read_bandwidth": 1000000, "write_bandwidth": 1000000, "read_iops": 40, "write_iops": 40,
}  # fmt: skip
CONFIG = "[limits]\nglobal_concurrent_turns = 1\n[turn]\ntasks_max = 50\n"
CONFIG += "".join(f"{name} = {value}\n" for name, value in LIMITS.items())
CONFIG += "".join(
    f'[minds.{name}]\nuser = "root"\ncommand = ["/bin/dd", "if=/dev/zero", "of=/card/{name}", "bs=64k", "count=64",'
    ' "oflag=direct"]\n'
    for name in ("ada", "bob")
)


@pytest.fixture(scope="module", autouse=True)
def _guard(machine: Machine) -> None:
    machine.start_guard(CONFIG)


def test_the_guard_runs_on_and_says_what_is_inert(machine: Machine) -> None:
    rows = machine.done(machine.send("@ada"), machine.send("@bob"))
    assert [row["result"]["outcome"] for row in rows] == ["exited", "exited"]
    assert rows[0]["ended_at"] <= rows[1]["started_at"], "the cap needs no controller"
    machine.wait_for(lambda: "unknown" not in labels(machine).values())
    assert labels(machine) == {**dict.fromkeys(LIMITS, "inert"), "tasks_max": "enforced"}


def test_people_are_told(machine: Machine) -> None:
    shown = machine.sh("hostguard status")
    for name in LIMITS:
        assert name in shown
        said = f"{name} is inert: cgroup version 2 has no io controller here"
        assert said in machine.sh("journalctl -u hostguard")


def labels(machine: Machine) -> dict[str, str]:
    return {told["limit"]: told["label"] for told in machine.get("/v1/status")["enforcement"]}
