"""Limits bind on the card: each is measured at a turn, and read back from the kernel.

The state folder is on the partition 179:1; the kernel limits whole disks only, here 179:0.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from machine import Machine

BANDWIDTH = 1_000_000  # bytes/s
OTHER_BANDWIDTH = 400_000
IOPS = 40
NEAR = 0.15  # of what was asked for
DISK = "179:0"

SLOW_WRITER = "dd if=/dev/zero of=/card/$HOSTGUARD_MIND bs=64k count=80 oflag=direct"
# What the turn runs, and its limits.
MINDS = {
    "free": (SLOW_WRITER, ""),
    "free2": (SLOW_WRITER, ""),
    "writes": (SLOW_WRITER, f"write_bandwidth = {BANDWIDTH}\nio_weight = 50"),
    "long": (SLOW_WRITER.replace("count=80", "count=400"), f"write_bandwidth = {BANDWIDTH}"),
    "buffers": (
        "dd if=/dev/zero of=/card/$HOSTGUARD_MIND bs=64k count=80 conv=fsync",
        f"write_bandwidth = {BANDWIDTH}",
    ),
    "reads": ("dd if=/card/read of=/dev/null bs=64k iflag=direct", f"read_bandwidth = {BANDWIDTH}"),
    "writes_often": (
        "dd if=/dev/zero of=/card/$HOSTGUARD_MIND bs=4k count=200 oflag=direct",
        f"write_iops = {IOPS}",
    ),
    "reads_often": ("dd if=/card/read of=/dev/null bs=4k count=200 iflag=direct", f"read_iops = {IOPS}"),
}
CONFIG = "".join(
    f'[minds.{name}]\nuser = "root"\ncommand = ["/bin/bash", "-c", "{command} 2>/tmp/{name}"]\n'
    f"[minds.{name}.turn]\n{limits}\n"
    for name, (command, limits) in MINDS.items()
)


@pytest.fixture(scope="module", autouse=True)
def _guard(machine: Machine) -> None:
    machine.sh("dd if=/dev/urandom of=/card/read bs=64k count=80 2>&1; sync")
    machine.start_guard(CONFIG)


def bytes_s(machine: Machine, mind: str) -> float:
    """Bytes/s of a turn, by dd's own count."""
    machine.done(machine.send(f"@{mind}"))
    return told(machine, mind)


def told(machine: Machine, mind: str) -> float:
    found = re.search(r"([0-9]+) bytes .* copied, ([0-9.e+-]+) s", machine.sh(f"cat /tmp/{mind}"))
    assert found is not None
    return int(found[1]) / float(found[2])


def running(machine: Machine, mind: str) -> tuple[int, str]:
    """Start a turn: its row and its scope's cgroup."""
    row = machine.send(f"@{mind}")
    machine.wait_for(
        lambda: (
            machine.get(f"/v1/deliveries/{row}")["state"] == "delivering"
            and machine.get("/v1/turns")["turns"]
        )
    )
    return row, f"/sys/fs/cgroup/hostguard.slice/hostguard-{mind}.slice/hostguard-turn-{mind}-{row}.scope"


def near(value: float) -> Any:
    return pytest.approx(value, rel=NEAR)


def test_write_bandwidth(machine: Machine) -> None:
    free = bytes_s(machine, "free")
    assert free > 2 * BANDWIDTH, "the card itself is as slow as the limit"
    assert bytes_s(machine, "writes") == near(BANDWIDTH)


def test_buffered_writes_with_fsync(machine: Machine) -> None:
    assert bytes_s(machine, "buffers") == near(BANDWIDTH)


def test_read_bandwidth(machine: Machine) -> None:
    assert bytes_s(machine, "reads") == near(BANDWIDTH)


@pytest.mark.parametrize("mind", ["writes_often", "reads_often"])
def test_operations(machine: Machine, mind: str) -> None:
    assert bytes_s(machine, mind) / 4096 == near(IOPS)


def test_two_turns_share_the_limit_of_the_slice(machine: Machine) -> None:
    machine.systemctl(
        "set-property", "--runtime", "hostguard.slice", f"IOWriteBandwidthMax=/dev/mmcblk0 {BANDWIDTH}"
    )
    try:
        rows = machine.send("@free"), machine.send("@free2")
        machine.done(*rows)
    finally:
        machine.systemctl("set-property", "--runtime", "hostguard.slice", "IOWriteBandwidthMax=")
    rates = [told(machine, mind) for mind in ("free", "free2")]
    assert sum(rates) == near(BANDWIDTH)


def test_a_running_turn_is_given_another_limit(machine: Machine) -> None:
    row, cgroup = running(machine, "long")
    window = f"read_wbytes() {{ sed -n 's/^{DISK} .* wbytes=\\([0-9]*\\).*/\\1/p' {cgroup}/io.stat; }}\n"
    window += "sleep 1; read a _ </proc/uptime; x=$(read_wbytes); sleep 4; read b _ </proc/uptime; y=$(read_wbytes); "
    window += "echo $a $b $x $y"
    measured = []
    for limit in (None, OTHER_BANDWIDTH):
        if limit is not None:
            scope = cgroup.rpartition("/")[2]
            machine.systemctl("set-property", "--runtime", scope, f"IOWriteBandwidthMax=/dev/mmcblk0 {limit}")
        begin, end, before, after = map(float, machine.sh(window).split())
        measured.append((after - before) / (end - begin))
    machine.systemctl("stop", cgroup.rpartition("/")[2])
    machine.done(row)
    assert measured == [near(BANDWIDTH), near(OTHER_BANDWIDTH)]


def test_limits_are_read_back(machine: Machine) -> None:
    machine.sh("echo mq-deadline >/sys/block/mmcblk0/queue/scheduler")
    row, cgroup = running(machine, "writes")
    assert machine.sh(f"cat {cgroup}/io.max") == f"{DISK} rbps=max wbps={BANDWIDTH} riops=max wiops=max\n"
    machine.done(row)
    machine.sh("modprobe bfq; echo bfq >/sys/block/mmcblk0/queue/scheduler")
    row, cgroup = running(machine, "writes")
    assert machine.sh(f"cat {cgroup}/io.bfq.weight") == "default 50\n"
    assert machine.sh(f"cat {cgroup}/io.max") == f"{DISK} rbps=max wbps={BANDWIDTH} riops=max wiops=max\n"
    machine.done(row)
