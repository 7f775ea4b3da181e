"""Whole hosts for tests of the doctor, as trees of the files that it reads.

Contents are those of real hosts: raspberrypi/linux#6980 (kernel command line, 6.12), RPi-Distro/pi-gen (fstab,
cmdline.txt), the journald drop-in and zram of Raspberry Pi OS trixie, and kernels' files as on 6.1 and 6.12.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trees import build

from hostguard.cli.doctor.checks import Check, Host, Level
from hostguard.core.model import Config, Limits, Mind
from hostguard.linux.disk import Device, of_number
from hostguard.linux.limits import read_kernel

Files = Mapping[str, str | Path]

RUNNING = {"state": "running", "version": "1", "cap": 2, "problems": [], "enforcement": []}
ROOM = (8 << 30, 28 << 30)
WANTED = {"etc/systemd/system/multi-user.target.wants/hostguard.service": "[Unit]\n"}
CGROUP2 = (
    "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
)
PSI = {"proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 total=1\n"}
VM = {
    "proc/sys/vm/dirty_bytes": "0\n",
    "proc/sys/vm/dirty_ratio": "20\n",
    "proc/sys/kernel/hung_task_panic": "0\n",
}


def disk(
    name: str, major: int, *parts: str, bus: str = "pci0000:00", schedulers: str
) -> dict[str, str | Path]:
    """A whole disk and its partitions, as in sysfs."""
    home = f"sys/devices/{bus}/block/{name}"
    tree: dict[str, str | Path] = {
        f"{home}/dev": f"{major}:0\n",
        f"{home}/queue/scheduler": f"{schedulers}\n",
        f"{home}/queue/rotational": "0\n",
        f"sys/block/{name}": Path(f"../../{home}"),
        f"sys/dev/block/{major}:0": Path(f"../../../{home}"),
    }
    for minor, part in enumerate(parts, 1):
        tree |= {
            f"{home}/{part}/partition": f"{minor}\n",
            f"{home}/{part}/dev": f"{major}:{minor}\n",
            f"sys/dev/block/{major}:{minor}": Path(f"../../../{home}/{part}"),
            f"sys/class/block/{part}": Path(f"../../../{home}/{part}"),
        }
    return tree


def memory(mib: int) -> Files:
    return {"proc/meminfo": f"MemTotal:       {mib * 1024} kB\nMemFree: 1 kB\n"}


MMC = disk(
    "mmcblk0",
    179,
    "mmcblk0p1",
    "mmcblk0p2",
    bus="platform/emmc2bus/fe340000.mmc",
    schedulers="none [mq-deadline]",
)
MMC_MOUNTS = (
    "25 1 179:2 / / rw,noatime shared:1 - ext4 /dev/mmcblk0p2 rw\n"
    "40 25 179:1 / /boot/firmware rw,relatime shared:3 - vfat /dev/mmcblk0p1 rw,fmask=0022\n"
)

DEBIAN_CARD: Files = {
    **WANTED, **PSI, **VM, **memory(3800),
    **disk("mmcblk0", 179, "mmcblk0p1", "mmcblk0p2", schedulers="none [mq-deadline]"),
    "proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("rw,noatime", "rw,relatime"),
    "proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.1.0-25-arm64 root=UUID=1 ro quiet\n",
    "proc/sys/kernel/osrelease": "6.1.0-25-arm64\n",
    "lib/modules/6.1.0-25-arm64/kernel/block/bfq.ko": "",
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/dev/mmcblk0p1 partition\t999420\t2048\t-2\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
    "etc/default/grub": 'GRUB_CMDLINE_LINUX=""\n',
    "var/log/journal/0123/system.journal": "",
    "etc/systemd/journald.conf": "[Journal]\n#Storage=auto\n",
}  # fmt: skip
FIRMWARE = "coherent_pool=1M 8250.nr_uarts=1 cgroup_disable=memory numa_policy=interleave numa=fake=8"
PI_CMDLINE = (
    "console=serial0,115200 console=tty1 root=PARTUUID=4d8097e2-02 rootfstype=ext4 fsck.repair=yes rootwait"
)
PI: Files = {
    **WANTED, **VM, **memory(8000), **MMC,
    "proc/self/mountinfo": CGROUP2 + MMC_MOUNTS,
    "proc/cmdline": f"{FIRMWARE}  {PI_CMDLINE}\n",
    "boot/firmware/cmdline.txt": f"{PI_CMDLINE}\n",
    "proc/sys/kernel/osrelease": "6.12.34+rpt-rpi-2712\n",
    "lib/modules/6.12.34+rpt-rpi-2712/kernel/block/kyber-iosched.ko.xz": "",
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition\t2097136\t0\t100\n",
    "sys/class/block/zram0/dev": "254:0\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io pids\n",
    "usr/lib/systemd/journald.conf.d/40-rpi-volatile-storage.conf": "[Journal]\nStorage=volatile\n",
    "var/log/journal/left-over": "",
}  # fmt: skip
PI_MENDED: Files = {
    **PI, **PSI,
    "proc/cmdline": f"{FIRMWARE}  {PI_CMDLINE} cgroup_enable=memory psi=1\n",
    "boot/firmware/cmdline.txt": f"{PI_CMDLINE} cgroup_enable=memory psi=1\n",
    "proc/sys/vm/dirty_bytes": "33554432\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
}  # fmt: skip
VIRTUAL: Files = {
    **WANTED, **PSI, **VM, **memory(16_000),
    **disk("vda", 254, "vda1", bus="pci0000:00/virtio2", schedulers="[none] mq-deadline"),
    "sys/block/vda/queue/rotational": "1\n",
    "proc/self/mountinfo": CGROUP2 + "25 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw,discard,errors=remount-ro\n",
    "proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz root=/dev/vda1 ro\n",
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
}  # fmt: skip
ENCRYPTED: Files = {
    **WANTED, **PSI, **VM, **memory(16_000),
    **disk("nvme0n1", 259, "nvme0n1p1", "nvme0n1p3", bus="pci0000:00/nvme/nvme0", schedulers="[none] mq-deadline"),
    "sys/devices/virtual/block/dm-0/dm/uuid": "CRYPT-LUKS2-0123-nvme0n1p3_crypt",
    "sys/devices/virtual/block/dm-0/dm/name": "nvme0n1p3_crypt\n",
    "sys/devices/virtual/block/dm-0/slaves/nvme0n1p3": Path("../../../../pci0000:00/nvme/nvme0/block/nvme0n1/nvme0n1p3"),
    "sys/devices/virtual/block/dm-1/dm/uuid": "LVM-4567",
    "sys/devices/virtual/block/dm-1/dm/name": "vg-root\n",
    "sys/devices/virtual/block/dm-1/slaves/dm-0": Path("../../dm-0"),
    "sys/dev/block/253:1": Path("../../devices/virtual/block/dm-1"),
    "proc/self/mountinfo": CGROUP2 + "25 1 253:1 / / rw,relatime - ext4 /dev/mapper/vg-root rw\n",
    "proc/cmdline": "root=/dev/mapper/vg-root ro\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
}  # fmt: skip
BTRFS: Files = {
    **WANTED, **PSI, **VM, **memory(8000),
    **disk("sda", 8, "sda1", schedulers="none [mq-deadline]"),
    **disk("sdb", 9, "sdb1", schedulers="none [mq-deadline]"),
    "sys/fs/btrfs/0c2f/devices/sda1": Path("../../../../devices/pci0000:00/block/sda/sda1"),
    "sys/fs/btrfs/0c2f/devices/sdb1": Path("../../../../devices/pci0000:00/block/sdb/sdb1"),
    "proc/self/mountinfo": CGROUP2 + "25 1 0:22 /@ / rw,relatime - btrfs /dev/sda1 rw,subvol=/@\n",
    "proc/cmdline": "root=/dev/sda1\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
}  # fmt: skip
CONTAINER: Files = {  # systemd-nspawn on the card's host, its own cgroup namespace
    **WANTED, **PSI, **VM, **memory(8000), **MMC,
    "run/.containerenv": "",
    "proc/self/mountinfo": CGROUP2 + "25 1 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u\n",
    "proc/cmdline": f"{FIRMWARE} {PI_CMDLINE}\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu pids\n",
}  # fmt: skip

OVERLAY = Device(
    None, None, "/var/lib/hostguard is on overlay (overlay), which does not show its disk; set path"
)
EVERYTHING = Config(
    global_concurrent_turns=2,
    turn=Limits(io_weight=50, write_bandwidth=4_000_000, memory_max=1 << 29, tasks_max=64),
)


def host(
    root: Path, files: Files, number: tuple[int, int] = (179, 2), device: Device | None = None, **fields: Any
) -> Host:
    """A Host with a mind, whose files are `files`, and whose queue is on the device with this number."""
    build(root, files)
    found = device or of_number(os.makedev(*number), "/var/lib/hostguard is on", root / "sys")
    given = {"config": Config(global_concurrent_turns=2), "systemd": 257, "daemon": RUNNING, "free": ROOM}
    given |= fields
    if given["daemon"] is not None:
        given["daemon"] = {"device": {"path": "auto", **asdict(found)}, **given["daemon"]}
    config = given.pop("config")
    config = replace(config, minds=config.minds or {"ada": Mind("ada", limits=config.turn)})
    return Host(root, found, read_kernel(found, root), config, **given)


def levels(checks: list[Check]) -> dict[str, Level]:
    """Checks that are not ok."""
    return {check.name: check.level for check in checks if check.level is not Level.OK}


def one(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)
