"""What the kernel applies of the limits: the decision as a table, and the reading on small trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trees import build

from hostguard.core.model import Limits
from hostguard.linux.disk import Device, of_number
from hostguard.linux.limits import (
    Applied,
    Kernel,
    Label,
    Verdict,
    bfq_weight,
    judge,
    read_applied,
    read_kernel,
    worst,
)

CARD = Device("/dev/mmcblk0", "mmcblk0", "/x is on the disk mmcblk0")
ALL = frozenset({"cpu", "io", "memory", "pids"})
KERNEL = Kernel(CARD, "179:0", ALL, "mq-deadline")
BFQ = replace(KERNEL, scheduler="bfq")
APPLIED = Applied(ALL, {"rbps": 8_000, "wbps": 4_000}, 50, 40, {"memory_max": 1 << 20, "tasks_max": 9})
NO_DISK = Device(None, None, "/x is on overlay (overlay), which does not show its disk")
NO_MEMORY = ALL - {"memory"}

WRITE = Limits(write_bandwidth=4_000)
READ = Limits(read_bandwidth=8_000)
WEIGHT = Limits(io_weight=50)
MEMORY = Limits(memory_max=1 << 20)
TASKS = Limits(tasks_max=9)


@pytest.mark.parametrize(
    ("limits", "kernel", "applied", "label", "why"),
    [
        (WRITE, KERNEL, APPLIED, Label.ENFORCED, "io.max"),
        (WRITE, KERNEL, None, Label.UNKNOWN, "to be read back"),
        (READ, KERNEL, APPLIED, Label.ENFORCED, "io.max"),
        (Limits(write_iops=7), KERNEL, APPLIED, Label.INERT, "no wiops for mmcblk0"),
        (Limits(read_iops=7), KERNEL, APPLIED, Label.INERT, "no riops for mmcblk0"),
        (Limits(write_bandwidth=5_000), KERNEL, APPLIED, Label.PARTIAL, "io.max says 4000, not 5000"),
        (WRITE, KERNEL, replace(APPLIED, io_max={}), Label.INERT, "systemd did not set it"),
        (WRITE, replace(KERNEL, controllers=ALL - {"io"}), None, Label.INERT, "no io controller"),
        (WRITE, KERNEL, replace(APPLIED, controllers=ALL - {"io"}), Label.INERT, "not on for turns"),
        (WRITE, replace(KERNEL, disk=NO_DISK), None, Label.INERT, "does not show its disk"),
        (WRITE, replace(KERNEL, disk=replace(CARD, node=None)), None, Label.INERT, "no disk to limit"),
        (WRITE, replace(KERNEL, controllers=NO_MEMORY), APPLIED, Label.PARTIAL, "no memory controller"),
        (READ, replace(KERNEL, controllers=NO_MEMORY), APPLIED, Label.ENFORCED, "io.max"),
        (WRITE, replace(KERNEL, unattributed=("exfat on /mnt",)), APPLIED, Label.PARTIAL, "exfat on /mnt"),
        (READ, replace(KERNEL, unattributed=("exfat on /mnt",)), APPLIED, Label.ENFORCED, "io.max"),
        (WRITE, replace(KERNEL, disk=replace(CARD, encrypted=True)), APPLIED, Label.PARTIAL, "encrypted"),
        (
            WRITE,
            replace(KERNEL, bypassing=("zfs on /",)),
            APPLIED,
            Label.PARTIAL,
            "written to zfs on /: kernel threads",
        ),
        (
            READ,
            replace(KERNEL, bypassing=("bcachefs on /",)),
            APPLIED,
            Label.PARTIAL,
            "read from and written to bcachefs",
        ),
        (
            WEIGHT,
            replace(BFQ, bypassing=("zfs on /",)),
            replace(APPLIED, weight=50),
            Label.PARTIAL,
            "zfs on /",
        ),
        (
            WRITE,
            replace(KERNEL, bypassing=("zfs on /",)),
            replace(APPLIED, io_max={}),
            Label.INERT,
            "did not set it",
        ),
        (WEIGHT, KERNEL, APPLIED, Label.INERT, "has the scheduler mq-deadline"),
        (WEIGHT, replace(KERNEL, scheduler=None), APPLIED, Label.INERT, "scheduler unknown"),
        (WEIGHT, BFQ, APPLIED, Label.ENFORCED, "together weigh 40"),
        (WEIGHT, BFQ, None, Label.UNKNOWN, "to be read back"),
        (WEIGHT, BFQ, replace(APPLIED, slice_weight=100), Label.PARTIAL, "set-property hostguard.slice IOW"),
        (WEIGHT, BFQ, replace(APPLIED, slice_weight=None), Label.PARTIAL, "set-property hostguard.slice IOW"),
        (WEIGHT, BFQ, replace(APPLIED, weight=100), Label.INERT, "sees the weight 100, not 50"),
        (WEIGHT, BFQ, replace(APPLIED, weight=None), Label.INERT, "sees the weight None, not 50"),
        (WEIGHT, replace(KERNEL, iocost=True), APPLIED, Label.ENFORCED, "iocost applies"),
        (Limits(io_weight=10_000), BFQ, replace(APPLIED, weight=1_000), Label.ENFORCED, "BFQ"),
        (
            Limits(io_weight=10_000),
            replace(KERNEL, iocost=True),
            replace(APPLIED, weight=10_000),
            Label.ENFORCED,
            "iocost",
        ),
        (WEIGHT, replace(BFQ, controllers=ALL - {"io"}), None, Label.INERT, "no io controller"),
        (WEIGHT, replace(BFQ, disk=NO_DISK), None, Label.INERT, "does not show its disk"),
        (MEMORY, KERNEL, APPLIED, Label.ENFORCED, "in memory.max"),
        (MEMORY, KERNEL, None, Label.UNKNOWN, "to be read back"),
        (MEMORY, replace(KERNEL, controllers=NO_MEMORY), APPLIED, Label.INERT, "no memory controller"),
        (Limits(memory_max=(1 << 20) + 9), KERNEL, APPLIED, Label.ENFORCED, "in memory.max"),  # whole pages
        (Limits(memory_max=1 << 21), KERNEL, APPLIED, Label.PARTIAL, "memory.max says 1048576"),
        (Limits(memory_max=1 << 19), KERNEL, APPLIED, Label.PARTIAL, "memory.max says 1048576"),
        (Limits(memory_high=1 << 20), KERNEL, APPLIED, Label.INERT, "memory.high has no limit"),
        (TASKS, KERNEL, APPLIED, Label.ENFORCED, "in pids.max"),
        (Limits(tasks_max=10), KERNEL, APPLIED, Label.PARTIAL, "pids.max says 9, not 10"),
        (TASKS, replace(KERNEL, controllers=ALL - {"pids"}), APPLIED, Label.INERT, "no pids controller"),
    ],
)
def test_each_limit_is_labelled(
    limits: Limits, kernel: Kernel, applied: Applied | None, label: Label, why: str
) -> None:
    [verdict] = judge(limits, kernel, applied)
    assert (verdict.label, why in verdict.why) == (label, True), verdict
    assert getattr(limits, verdict.limit) is not None


def test_what_is_not_set_gets_no_verdict_and_max_turn_is_systemds() -> None:
    assert judge(Limits(max_turn=60), KERNEL, APPLIED) == ()


def test_of_several_turns_the_worst_verdict_counts() -> None:
    fine, unknown, half, nothing = (Verdict("io_weight", label, str(label)) for label in Label)
    other = Verdict("tasks_max", Label.ENFORCED, "")
    assert worst([half, other, fine, nothing, half]) == [nothing, other]
    assert worst([fine, half, fine]) == [half]
    assert worst([unknown, fine]) == [unknown]


@pytest.mark.parametrize(
    ("asked", "seen"), [(1, 1), (50, 50), (100, 100), (101, 100), (111, 101), (10_000, 1_000)]
)
def test_weights_as_systemd_gives_them_to_bfq(asked: int, seen: int) -> None:
    assert bfq_weight(asked) == seen


# -- reading

SCOPE = "sys/fs/cgroup/hostguard.slice/hostguard-ada.slice/hostguard-turn-ada-1.scope"
CARD_TREE = {
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
    "sys/devices/mmc/block/mmcblk0/dev": "179:0\n",
    "sys/devices/mmc/block/mmcblk0/queue/scheduler": "none [mq-deadline] bfq \n",
    "sys/devices/mmc/block/mmcblk0/mmcblk0p2/partition": "2\n",
    "sys/block/mmcblk0": Path("../devices/mmc/block/mmcblk0"),
    "sys/dev/block/179:0": Path("../../devices/mmc/block/mmcblk0"),
    "sys/dev/block/179:2": Path("../../devices/mmc/block/mmcblk0/mmcblk0p2"),
    "proc/self/mountinfo": (
        "25 1 179:2 / / rw,noatime shared:1 - ext4 /dev/mmcblk0p2 rw\n"
        "26 25 0:22 / /proc rw - proc proc rw\n"
        "27 25 179:2 / /boot/efi rw - vfat /dev/mmcblk0p2 rw\n"
        "28 25 179:2 / /media/a\\040b rw - exfat /dev/mmcblk0p2 rw\n"
        "29 25 179:2 / /media/ro ro - exfat /dev/mmcblk0p2 ro\n"
        "30 25 8:1 / /media/other rw - exfat /dev/sda1 rw\n"
        "31 25 179:2 / /hidden rw - vfat /dev/mmcblk0p2 rw\n"
        "32 25 179:2 / /hidden rw - ext4 /dev/mmcblk0p2 rw\n"
    ),
    f"{SCOPE}/cgroup.controllers": "io memory pids\n",
    f"{SCOPE}/cgroup.events": "populated 1\nfrozen 0\n",
    f"{SCOPE}/io.max": "8:0 rbps=1 wbps=1 riops=1 wiops=1\n179:0 rbps=max wbps=4000000 riops=max wiops=200\n",
    f"{SCOPE}/io.bfq.weight": "default 50\n",
    f"{SCOPE}/io.weight": "default 60\n8:0 7\n179:0 70\n",
    f"{SCOPE}/memory.high": "max\n",
    f"{SCOPE}/memory.max": "536870912\n",
    f"{SCOPE}/pids.max": "256\n",
    "sys/fs/cgroup/hostguard.slice/io.bfq.weight": "default 30\n",
}


def card(root: Path) -> Device:
    return of_number(179 << 8, "/x is on", root / "sys")


def test_a_card_is_read(tmp_path: Path) -> None:
    build(tmp_path, CARD_TREE)
    kernel = read_kernel(card(tmp_path), tmp_path)
    controllers = frozenset({"cpuset", "cpu", "io", "memory", "pids"})
    assert kernel == Kernel(
        card(tmp_path), "179:0", controllers, "mq-deadline", False, ("exfat on /media/a b",)
    )


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ("40 25 0:70 / /tank rw - zfs rpool/data rw\n41 25 0:71 / /old ro - zfs rpool/old ro\n", ("zfs on /tank",)),
        ("40 25 0:70 / / rw - bcachefs /dev/mmcblk0p2:/dev/sdb1 rw\n", ("bcachefs on /",)),
        ("40 25 0:70 / / rw - bcachefs /dev/sdb1 rw\n", ()),
        ("40 25 0:70 / / rw - bcachefs UUID=1 rw\n", ("bcachefs on /",)),  # which disk is not shown
    ],
)  # fmt: skip
def test_file_systems_that_pass_by_the_limits_of_a_disk_that_is_set_by_hand(
    tmp_path: Path, mounts: str, found: tuple[str, ...]
) -> None:
    disks: dict[str, str | Path] = {
        "sys/devices/ata/block/sdb/sdb1/partition": "1\n",
        "sys/class/block/sdb1": Path("../../devices/ata/block/sdb/sdb1"),
        "sys/class/block/mmcblk0p2": Path("../../devices/mmc/block/mmcblk0/mmcblk0p2"),
    }
    build(tmp_path, CARD_TREE | disks | {"proc/self/mountinfo": mounts})
    kernel = read_kernel(card(tmp_path), tmp_path)
    assert kernel.bypassing == found
    label = judge(WRITE, kernel, replace(APPLIED, io_max={"wbps": 4_000}))[0].label
    assert label == (Label.PARTIAL if found else Label.ENFORCED)


def test_what_a_turns_cgroup_says(tmp_path: Path) -> None:
    build(tmp_path, CARD_TREE)
    kernel = read_kernel(card(tmp_path), tmp_path)
    applied = read_applied(tmp_path / SCOPE, replace(kernel, scheduler="bfq"))
    limits = {"wbps": 4_000_000, "wiops": 200}
    values = {"memory_max": 1 << 29, "tasks_max": 256}
    assert applied == Applied(frozenset({"io", "memory", "pids"}), limits, 50, 30, values)
    iocost = read_applied(tmp_path / SCOPE, replace(kernel, iocost=True))
    assert iocost is not None
    assert (iocost.weight, iocost.slice_weight) == (70, None)  # the disk's own line beats the default


def test_a_turn_that_is_gone_says_nothing(tmp_path: Path) -> None:
    build(tmp_path, CARD_TREE)
    assert read_applied(tmp_path / f"{SCOPE}x", read_kernel(card(tmp_path), tmp_path)) is None


@pytest.mark.parametrize(
    ("qos", "on"),
    [
        ("179:0 enable=1 ctrl=auto rpct=0.00", True),
        ("179:0 enable=0 ctrl=auto", False),
        ("8:0 enable=1 ctrl=auto", False),
    ],
)
def test_iocost_is_on_for_this_disk_or_not(tmp_path: Path, qos: str, on: bool) -> None:
    build(tmp_path, CARD_TREE | {"sys/fs/cgroup/io.cost.qos": f"{qos}\n"})
    assert read_kernel(card(tmp_path), tmp_path).iocost is on


def test_on_a_hybrid_host_the_controllers_are_with_version_1(tmp_path: Path) -> None:
    build(tmp_path, CARD_TREE | {"sys/fs/cgroup/unified/cgroup.controllers": "\n"})
    assert read_kernel(card(tmp_path), tmp_path).controllers == frozenset()


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    assert isinstance(read_kernel(Device(None, None, "")), Kernel)
