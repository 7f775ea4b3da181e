"""A kernel with all controllers: labels follow what it applies, whoever changed it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from machine import Machine

DISK, COST = "179:0", "/sys/fs/cgroup/io.cost.qos"
SCHEDULER = "/sys/block/mmcblk0/queue/scheduler"
IO = {
    "io_weight": 50,
    "read_bandwidth": 8_000_000,
    "write_bandwidth": 4_000_000,
    "read_iops": 900,
    "write_iops": 800,
}
OTHERS = {"memory_high": 90_000_000, "memory_max": 100_000_000, "tasks_max": 50}
ALL = {**IO, **OTHERS}
CONFIG = "[turn]\n" + "".join(f"{name} = {value}\n" for name, value in ALL.items())
CONFIG += '[minds.ada]\nuser = "root"\ncommand = ["/bin/sleep", "1"]\n'
WRITE = "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=/card/x bs=4K count=1 conv=fsync; sleep 0.3; done"
CHANGES = ("inert", "partial", "enforced", "inert", "partial", "inert")  # of io_weight, each told of once
ENFORCEMENT = "MESSAGE_ID=6b0e4d2f0a5c4b7c9d1f3a8e52c70424"


@pytest.fixture(scope="module", autouse=True)
def _guard(machine: Machine) -> None:
    machine.start_guard(CONFIG)


def labels(machine: Machine) -> dict[str, str]:
    """How the limits of the next turn are labelled: after a reload, which forgets what was read back."""
    machine.systemctl("reload", "hostguard")
    machine.done(machine.send("@ada"))
    machine.wait_for(lambda: "unknown" not in _told(machine).values())
    return _told(machine)


def _told(machine: Machine) -> dict[str, str]:
    return {told["limit"]: told["label"] for told in machine.get("/v1/status")["enforcement"]}


def but(**others: str) -> dict[str, str]:
    return {**dict.fromkeys(ALL, "enforced"), **others}


def test_labels_follow_the_kernel(machine: Machine) -> None:
    machine.sh(f"echo mq-deadline >{SCHEDULER}")
    assert labels(machine) == but(io_weight="inert")

    machine.sh(f"echo bfq >{SCHEDULER}")  # its turns weigh among themselves, and all of them as everybody
    assert labels(machine) == but(io_weight="partial")
    machine.systemctl("set-property", "--runtime", "hostguard.slice", "IOWeight=40")
    assert labels(machine) == but()
    machine.systemctl("set-property", "--runtime", "hostguard.slice", "IOWeight=")
    machine.sh(f"echo mq-deadline >{SCHEDULER}")
    assert labels(machine) == but(io_weight="inert")

    machine.sh(f"echo '{DISK} enable=1' >{COST}")
    assert labels(machine) == but(io_weight="partial")
    machine.sh(f"echo '{DISK} enable=0' >{COST}")
    assert labels(machine) == but(io_weight="inert")

    said = machine.sh(f"journalctl -o json {ENFORCEMENT}").splitlines()
    changes = [(line["HOSTGUARD_LIMIT"], line["HOSTGUARD_LABEL"]) for line in map(json.loads, said)]
    assert changes == [("io_weight", label) for label in CHANGES]
    assert re.search(r"not enforced: [a-z_, ]*\bio_weight\b", machine.sh("hostguard status"))


def test_a_disk_that_systemd_does_not_find_is_noticed(machine: Machine) -> None:
    machine.sh(f"echo mq-deadline >{SCHEDULER}; mv /dev/mmcblk0 /dev/away")  # the guard knows it still
    try:
        machine.done(machine.send("@ada"))  # systemd starts the turn all the same
        assert labels_of_stale(machine) == but(**dict.fromkeys(IO, "inert"))
    finally:
        machine.sh("mv /dev/away /dev/mmcblk0")
    assert labels(machine) == but(io_weight="inert")


def labels_of_stale(machine: Machine) -> dict[str, str]:
    """As a turn is read back once a minute, wait for that: a reload would look at the disk again."""

    def seen() -> bool:
        machine.done(machine.send("@ada"))
        return _told(machine)["write_bandwidth"] == "inert"

    machine.wait_for(seen)
    return _told(machine)


def test_what_pressure_sets_on_the_slice_is_read_back(machine: Machine) -> None:
    pressure = '[pressure]\ntighten = "1M"\ncalm_window = 1\n'
    machine.configure(f'{pressure}[minds.ada]\nuser = "root"\ncommand = ["/bin/sh", "-c", "{WRITE}"]\n')
    machine.systemctl("reload", "hostguard")
    assert _told(machine) == {"tighten": "unknown"}
    row = machine.send("@ada")
    machine.wait_for(lambda: machine.get("/v1/status")["turns"] == 1)
    machine.stall(True)
    try:
        machine.wait_for(lambda: _told(machine) == {"tighten": "enforced"})
        assert "wbps=1000000" in machine.sh("cat /sys/fs/cgroup/hostguard.slice/io.max")
    finally:
        machine.stall(False)
    machine.done(row)
    machine.wait_for(lambda: "wbps" not in machine.sh("cat /sys/fs/cgroup/hostguard.slice/io.max"))
    machine.configure(CONFIG)


def examined(machine: Machine) -> dict[str, Any]:
    return {
        check["name"]: check
        for check in json.loads(machine.sh("hostguard doctor --json", check=False))["checks"]
    }


def test_what_the_doctor_says_to_type_mends(machine: Machine) -> None:
    machine.sh(f"echo mq-deadline >{SCHEDULER}")
    checks = examined(machine)
    assert checks["device"]["found"].endswith("on the partition mmcblk0p1, on the disk mmcblk0")
    mended = [
        name for name, check in checks.items() if check["mend"] and "reboot" not in " ".join(check["mend"])
    ]
    assert {"scheduler", "dirty_pages", "cap", "daemon"} <= {*mended}
    for name in mended:
        for line in checks[name]["mend"]:
            machine.sh(line)
    machine.wait_for(lambda: "[bfq]" in machine.sh(f"cat {SCHEDULER}"))
    machine.systemctl("set-property", "--runtime", "hostguard.slice", "IOWeight=40")
    assert labels(machine) == but()
    after = examined(machine)
    assert {name: after[name] for name in mended if after[name]["level"] != "ok"} == {}
