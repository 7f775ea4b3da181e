"""What the doctor says of whole hosts, as trees of the files that it reads.

Contents are those of real hosts: raspberrypi/linux#6980 (kernel command line, 6.12), RPi-Distro/pi-gen (fstab,
cmdline.txt), the journald drop-in and zram of Raspberry Pi OS trixie, and kernels' files as on 6.1 and 6.12.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from trees import build

from hostguard import doctor
from hostguard.checks import Check, Host, Level
from hostguard.cli.doctor import command, report
from hostguard.device import Device, of_btrfs, of_number
from hostguard.enforce import read_kernel
from hostguard.model import Config, Limits, Mind

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
    None, None, "/var/lib/hostguard is on overlay (overlay), which does not tell its disk; set path"
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
    config = given.pop("config")
    config = replace(config, minds=config.minds or {"ada": Mind("ada", limits=config.turn)})
    return Host(root, found, read_kernel(found, root), config, **given)


def levels(checks: list[Check]) -> dict[str, Level]:
    """Checks that are not ok."""
    return {check.name: check.level for check in checks if check.level is not Level.OK}


def one(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


# -- whole hosts


def test_a_host_without_a_mind_is_told_what_to_do_next(tmp_path: Path) -> None:
    first = replace(host(tmp_path, PI_MENDED), config=Config(global_concurrent_turns=2))
    checks = doctor.examine(first)
    assert levels(checks) == {"minds": Level.WARNING}
    assert [line.split(" ", 1)[0] for line in one(checks, "minds").mend] == ["hostguard"] * 3
    # What is in a configuration that cannot be read is not known.
    assert levels(doctor.examine(replace(first, faults=("x",)))) == {"config": Level.PROBLEM}


def test_debian_12_on_a_card(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, DEBIAN_CARD))
    assert levels(checks) == dict.fromkeys(("dirty_pages", "swap", "journal"), Level.WARNING)
    assert "lets 796 MB of writes wait in memory: 79 s for a card" in one(checks, "dirty_pages").found
    assert one(checks, "swap").mend[0].startswith("swapoff /dev/mmcblk0p1")
    assert "2 MiB used" in one(checks, "swap").found
    assert "/etc/systemd/journald.conf.d/90-hostguard.conf" in one(checks, "journal").mend[0]
    assert (
        one(checks, "device").found == "/var/lib/hostguard is on the partition mmcblk0p2, on the disk mmcblk0"
    )


def test_debian_12_on_a_card_with_every_limit(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, DEBIAN_CARD, config=EVERYTHING, daemon=None))
    assert one(checks, "scheduler").level is Level.PROBLEM
    assert 'KERNEL=="mmcblk0", ATTR{queue/scheduler}="bfq"' in one(checks, "scheduler").mend[0]
    assert one(checks, "limits").found.startswith("io_weight without effect (mmcblk0 has the scheduler mq-d")


def test_raspberry_pi_os_as_it_comes(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, PI, config=Config(), daemon=RUNNING | {"cap": None}))
    names = ("memory_controller", "psi", "cap", "dirty_pages")
    assert levels(checks) == dict.fromkeys(names, Level.WARNING)
    append = "sed -i '1s/$/ {}/' /boot/firmware/cmdline.txt"
    assert one(checks, "memory_controller").mend[0].startswith(append.format("cgroup_enable=memory"))
    assert one(checks, "psi").mend == (append.format("psi=1") + "    # it stays one line", "reboot")
    assert one(checks, "journal").found == "in memory"
    assert one(checks, "swap").found == "none on mmcblk0"


def test_raspberry_pi_os_with_every_limit(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, PI, config=EVERYTHING, daemon=None))
    problems = {name for name, level in levels(checks).items() if level is Level.PROBLEM}
    assert problems == {"daemon", "limits", "memory_controller", "scheduler"}
    found = one(checks, "limits").found
    assert "io_weight without effect (mmcblk0 has the" in found
    assert "write_bandwidth in part (" in found
    assert "memory_max without effect (" in found
    assert "tasks_max" not in found
    assert (
        one(checks, "scheduler").mend[0]
        == "# this kernel has no BFQ: use write_bandwidth instead of io_weight"
    )
    assert one(checks, "memory_controller").found.endswith("switches it off: memory_max cannot act")


def test_raspberry_pi_os_mended_is_well_and_fits_on_a_screen(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, PI_MENDED))
    assert levels(checks) == {}
    lines = list(report(checks, 80))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80 + len("\x1b[32m\x1b[0m")
    assert all(check.name in " ".join(lines) for check in checks)


def test_an_option_that_was_added_waits_for_a_reboot(tmp_path: Path) -> None:
    files = {**PI, "boot/firmware/cmdline.txt": f"{PI_CMDLINE} psi=1 cgroup_enable=memory\n"}
    checks = doctor.examine(host(tmp_path, files))
    for name in ("psi", "memory_controller"):
        assert one(checks, name).mend == ("reboot    # it is in /boot/firmware/cmdline.txt already",)


def test_a_kernel_without_psi_is_not_to_be_given_the_option_again(tmp_path: Path) -> None:
    files = {**PI, "proc/cmdline": f"{PI_CMDLINE} psi=1\n"}
    assert one(doctor.examine(host(tmp_path, files)), "psi").mend == ("# it takes a kernel with CONFIG_PSI",)


@pytest.mark.parametrize(
    ("grub", "mend"),
    [
        ('GRUB_CMDLINE_LINUX=""\n', "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&psi=1 /' /etc/default/grub"),
        ('GRUB_CMDLINE_LINUX="psi=1"\n', "update-grub; reboot    # it is in /etc/default/grub already"),
    ],
)
def test_an_option_goes_where_the_host_boots_from(tmp_path: Path, grub: str, mend: str) -> None:
    files = {name: text for name, text in DEBIAN_CARD.items() if name not in PSI}
    checks = doctor.examine(host(tmp_path, {**files, "etc/default/grub": grub}))
    assert one(checks, "psi").mend[0] == mend


def test_a_virtual_machine(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, VIRTUAL, (254, 1), config=Config()))
    assert levels(checks) == {}  # its disk is taken for fast: no cap, pages and discard are its own affair


def test_swap_on_a_fast_disk_is_no_matter(tmp_path: Path) -> None:
    swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/vda1 partition\t999420\t2048\t-2\n"
    swap = one(doctor.examine(host(tmp_path, {**VIRTUAL, "proc/swaps": swaps}, (254, 1))), "swap")
    assert (swap.level, swap.found) == (Level.OK, "swap is on vda (/dev/vda1, 2 MiB used)")


def test_lvm_on_luks(tmp_path: Path) -> None:
    config = Config(turn=Limits(write_bandwidth=4_000_000, read_bandwidth=8_000_000))
    checks = doctor.examine(host(tmp_path, ENCRYPTED, (253, 1), config=config, daemon=None))
    assert levels(checks) == {"daemon": Level.PROBLEM, "limits": Level.WARNING}
    assert "write_bandwidth in part (nvme0n1 is encrypted" in one(checks, "limits").found
    assert "dm-1 (LVM vg-root), on dm-0 (encrypted nvme0n1p3_crypt), on the" in one(checks, "device").found


def test_btrfs_on_two_disks(tmp_path: Path) -> None:
    build(tmp_path, BTRFS)
    device = of_btrfs("/dev/sda1", "/var/lib/hostguard is on", tmp_path / "sys")
    config = Config(turn=Limits(write_bandwidth=4_000_000, io_weight=50))
    checks = doctor.examine(host(tmp_path, {}, device=device, config=config, daemon=None))
    assert levels(checks) == dict.fromkeys(("daemon", "device", "limits"), Level.PROBLEM)
    assert "on several disks (sda, sdb); set path under [device]" in one(checks, "device").found


def test_a_users_own_manager_has_fewer_controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostguard.paths.USER", True)
    monkeypatch.setattr("os.getuid", lambda: 1001)
    manager = "sys/fs/cgroup/user.slice/user-1001.slice/user@1001.service"
    files = {**PI_MENDED, f"{manager}/cgroup.controllers": "cpu memory pids\n"}
    config = Config(turn=Limits(write_bandwidth=1, memory_max=1 << 20))
    checks = doctor.examine(host(tmp_path, files, config=config, daemon=None, user=True))
    assert one(checks, "io_controller").level is Level.PROBLEM
    assert (
        "the user manager has no io controller: write_bandwidth cannot act"
        in one(checks, "io_controller").found
    )
    assert "Delegate=cpu io memory pids" in one(checks, "io_controller").mend[0]
    assert one(checks, "memory_controller").level is Level.OK
    assert one(checks, "daemon").mend[0] == "systemctl --user enable --now hostguard"
    assert "write_bandwidth without effect (the user manager has no io" in one(checks, "limits").found


def test_a_container_with_systemd(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, CONTAINER, device=OVERLAY, config=EVERYTHING, daemon=None))
    problems = {name for name, level in levels(checks).items() if level is Level.PROBLEM}
    assert problems == {"daemon", "device", "limits", "io_controller", "memory_controller"}
    for name in ("io_controller", "memory_controller"):
        assert one(checks, name).mend == ("# run the guard on the host, not in a container",)


def test_a_container_without_systemd_hears_only_that(tmp_path: Path) -> None:
    [check] = doctor.examine(host(tmp_path, CONTAINER, device=OVERLAY, systemd=None))
    assert (check.name, check.level) == ("systemd", Level.PROBLEM)


# -- single checks, on a host that is well otherwise


@pytest.mark.parametrize(
    ("files", "fields", "name", "level", "words"),
    [
        ({}, {"systemd": 247}, "systemd", Level.WARNING, "247"),
        ({}, {"faults": ("a.toml: cannot be read: Permission denied",)}, "config", Level.WARNING, "you may not read it: a.toml"),
        ({}, {"faults": ("a.toml: limits.x: unknown key", "b")}, "config", Level.PROBLEM, "unknown key (and 1 more)"),
        ({}, {"daemon": None}, "daemon", Level.PROBLEM, "it does not run"),
        ({}, {"daemon": None, "daemon_fault": "you may not", "denied": True}, "daemon", Level.WARNING, "you may not"),
        ({}, {"daemon": None, "daemon_fault": "does not answer"}, "daemon", Level.PROBLEM, "does not answer"),
        ({}, {"daemon": RUNNING | {"state": "no_systemd"}}, "daemon", Level.PROBLEM, "cannot reach systemd"),
        (
            {},
            {"daemon": RUNNING | {"problems": [{"code": "c", "text": "queue.db was damaged"}]}},
            "daemon",
            Level.PROBLEM,
            "queue.db was damaged",
        ),
        (
            {},
            {"daemon": RUNNING | {"enforcement": [{"limit": "io_weight", "label": "inert", "why": "so"}]}},
            "limits",
            Level.PROBLEM,
            "io_weight without effect (so)",
        ),
        (
            {},
            {"daemon": RUNNING | {"enforcement": [{"limit": "io_weight", "label": "partial", "why": "so"}]}},
            "limits",
            Level.WARNING,
            "io_weight in part (so)",
        ),
        ({"sys/fs/cgroup/hostguard.slice/hostguard.service/cgroup.procs": "1\n"}, {}, "place", Level.PROBLEM, "is in"),
        ({"proc/self/mountinfo": MMC_MOUNTS}, {}, "cgroup", Level.PROBLEM, "version 2 is not there"),
        (
            {
                "proc/self/mountinfo": "31 25 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                "32 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" + MMC_MOUNTS,
                "proc/cmdline": "quiet systemd.unified_cgroup_hierarchy=0\n",
            },
            {},
            "cgroup",
            Level.PROBLEM,
            "only beside version 1",
        ),
        ({"proc/self/mountinfo": CGROUP2.replace("rw", "ro") + MMC_MOUNTS}, {}, "cgroup", Level.PROBLEM, "read-only"),
        ({"proc/sys/kernel/hung_task_panic": "1\n"}, {}, "hung_task", Level.WARNING, "waits 120 s"),
        ({"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("rw", "ro")}, {}, "file_system", Level.PROBLEM, "/ is read-only"),
        (
            {"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("rw,noatime", "rw,sync,noatime")},
            {},
            "file_system",
            Level.WARNING,
            "/ is mounted with sync",
        ),
        (
            {"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("mmcblk0p2 rw", "mmcblk0p2 rw,discard")},
            {},
            "file_system",
            Level.WARNING,
            "/ is mounted with discard",
        ),
        (
            {"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS + "60 25 0:61 / /var rw - tmpfs tmpfs rw\n"},
            {},
            "file_system",
            Level.WARNING,
            "in memory (tmpfs on /var)",
        ),
        ({}, {"free": (100 << 20, 1 << 34)}, "space", Level.WARNING, "100 of 16384 MiB"),
        ({}, {"free": (10 << 20, 1 << 34)}, "space", Level.PROBLEM, "10 of 16384 MiB"),
        (
            {"proc/swaps": "Filename Type Size Used Priority\n/var/swap file 102396 1024 -2\n", "etc/dphys-swapfile": ""},
            {},
            "swap",
            Level.WARNING,
            "/var/swap, 1 MiB used",
        ),
        ({"etc/systemd/journald.conf.d/50-keep.conf": "[Journal]\nStorage=persistent\n"}, {}, "journal", Level.WARNING, "mmcblk0"),
        (
            {"sys/fs/cgroup/cgroup.controllers": "cpu io pids\n", "boot/firmware/cmdline.txt": Path("none")},
            {},
            "memory_controller",
            Level.WARNING,
            "cgroup_disable=memory switches it off",
        ),
    ],
)  # fmt: skip
def test_one_thing_wrong(
    tmp_path: Path, files: Files, fields: Mapping[str, Any], name: str, level: Level, words: str
) -> None:
    checks = doctor.examine(host(tmp_path, {**PI_MENDED, **files}, **fields))
    assert levels(checks) == {name: level}
    assert checks[0].name == name
    assert words in checks[0].found
    assert checks[0].mend


@pytest.mark.parametrize(
    ("files", "fields", "name"),
    [
        ({}, {"config": Config(device_path="none")}, "device"),
        ({"etc/systemd/journald.conf.d/30-keep.conf": "[Journal]\nStorage=persistent\n"}, {}, "journal"),  # 40- wins
        ({"etc/systemd/journald.conf": "[Journal]\nStorage=persistent\n"}, {}, "journal"),  # a drop-in wins
        ({"proc/sys/vm/dirty_bytes": "0\n", "proc/sys/vm/dirty_ratio": "1\n"}, {}, "dirty_pages"),
        ({"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS + "9 25 179:2 / /m ro - ext4 /dev/mmcblk0p2 ro,sync\n"}, {}, "file_system"),
        ({}, {"free": (0, 0)}, "space"),
        ({}, {"config": Config()}, "cap"),  # the daemon's own cap, set with hostguard limit, counts
        ({"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("rw", "ro") + MMC_MOUNTS}, {}, "file_system"),  # hidden
    ],
)  # fmt: skip
def test_what_is_no_matter(tmp_path: Path, files: Files, fields: Mapping[str, Any], name: str) -> None:
    assert one(doctor.examine(host(tmp_path, {**PI_MENDED, **files}, **fields)), name).level is Level.OK


def test_a_guard_that_does_not_start_at_boot(tmp_path: Path) -> None:
    files = {name: text for name, text in PI_MENDED.items() if name not in WANTED}
    assert levels(doctor.examine(host(tmp_path, files))) == {"daemon": Level.WARNING}


def test_weights_act_with_bfq(tmp_path: Path) -> None:
    files = {
        **PI_MENDED,
        "sys/devices/platform/emmc2bus/fe340000.mmc/block/mmcblk0/queue/scheduler": "none [bfq]\n",
    }
    checks = doctor.examine(host(tmp_path, files, config=EVERYTHING))
    assert levels(checks) == {}
    assert one(checks, "scheduler").found == "bfq, weighed by BFQ"


def test_limits_that_were_not_read_back_are_not_called_enforced(tmp_path: Path) -> None:
    config = Config(global_concurrent_turns=2, turn=Limits(write_bandwidth=1, tasks_max=9))
    checks = doctor.examine(host(tmp_path, PI_MENDED, config=config, daemon=None))
    assert one(checks, "limits").found == "write_bandwidth, tasks_max, not read back yet"


@pytest.mark.parametrize(
    ("bus", "rotational", "slow"),
    [("usb1/1-1", "0", True), ("ata1", "1", True), ("ata1", "0", False)],
)
def test_which_sd_disks_are_easily_kept_busy(tmp_path: Path, bus: str, rotational: str, slow: bool) -> None:
    files = {**VIRTUAL, **disk("sda", 8, "sda1", bus=f"pci0000:00/{bus}", schedulers="[mq-deadline]")}
    files[f"sys/devices/pci0000:00/{bus}/block/sda/queue/rotational"] = f"{rotational}\n"
    assert host(tmp_path, files, (8, 1)).slow is slow


# -- processes


def process(pid: int, cgroup: str, uid: int = 0, environ: str = "") -> dict[str, str | Path]:
    return {
        f"proc/{pid}/cgroup": f"0::{cgroup}\n",
        f"proc/{pid}/status": f"Name:\tp{pid}\nUmask:\t0022\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n",
        f"proc/{pid}/environ": environ,
    }


IN_TURN = "/hostguard.slice/hostguard-ada.slice/hostguard-turn-ada-1.scope"
TURN = "HOME=/\0HOSTGUARD_TURN=17\0"


@pytest.mark.parametrize(
    ("tree", "stray", "why"),
    [
        (process(7, IN_TURN, 1001, TURN), False, "a turn"),
        (process(7, "/system.slice/cron.service", 0, TURN), True, "a turn's process that got away"),
        (process(7, "/system.slice/hostguard.service", 0, TURN), False, "the guard's own"),
        (process(7, "/system.slice/docker.service", 1001), True, "a mind's user in a service"),
        (process(7, "/system.slice/bob.service", 1002), False, "a resident mind's server"),
        (process(7, "/system.slice/bob.service/below", 1002), False, "below a resident mind's server"),
        (process(7, "/user.slice/user-1001.slice/session-3.scope", 1001), False, "somebody who logged in"),
        (
            process(7, "/user.slice/user-1001.slice/user@1001.service/app.slice/run-r1.scope", 1001),
            True,
            "systemd-run",
        ),
        (process(7, "/system.slice/cron.service", 1003), False, "not a mind"),
        (process(7, "/", 1001), False, "a thread of the kernel"),
    ],
)
def test_processes_of_minds_outside_the_slice(tmp_path: Path, tree: Files, stray: bool, why: str) -> None:
    minds = {
        "ada": Mind("ada", command=("/bin/true",), user="ada", uid=1001),
        "bob": Mind("bob", url="http://127.0.0.1:1", unit="bob.service", user="bob", uid=1002),
        "r": Mind("r", command=("/bin/true",), user="root", uid=0),
    }
    config = Config(global_concurrent_turns=2, minds=minds)
    checks = doctor.examine(host(tmp_path, {**PI_MENDED, **tree}, config=config))
    assert levels(checks) == ({"strays": Level.WARNING} if stray else {}), why
    assert ("7 p7 in " in one(checks, "strays").found) is stray


def test_of_many_strays_some_are_named(tmp_path: Path) -> None:
    files = dict(PI_MENDED)
    for pid in (12, 9, 10, 11, 13):
        files |= process(pid, "/system.slice/cron.service", 0, TURN)
    found = one(doctor.examine(host(tmp_path, files)), "strays").found
    assert found.endswith(": 9 p9 in cron.service, 10 p10 in cron.service, 11 p11 in cron.service and 2 more")


# -- the command


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    ill = host(tmp_path, PI, config=EVERYTHING)
    monkeypatch.setattr(doctor, "this_host", lambda: ill)
    return ill


def test_the_screen_has_problems_first_then_warnings_then_what_is_well(shown: Host) -> None:
    result = CliRunner().invoke(command, standalone_mode=False)
    assert result.return_value == 1
    words = [line.split()[0] for line in result.output.splitlines() if not line.startswith(" ")]
    assert words == ["problem"] * 2 + ["warning"] * 2 + ["ok"]
    assert "\n         > sed -i '1s/$/ psi=1/' /boot/firmware/cmdline.txt    #" in result.output


def test_warnings_alone_are_no_failure(shown: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "this_host", lambda: replace(shown, config=Config()))
    assert CliRunner().invoke(command, standalone_mode=False).return_value == 0


def test_json_has_every_check(shown: Host) -> None:
    result = CliRunner().invoke(command, ["--json"], standalone_mode=False)
    told = json.loads(result.output)
    assert (result.return_value, told["ok"]) == (1, False)
    assert len(told["checks"]) == len(doctor.CHECKS)
    assert {*told["checks"][0]} == {"name", "level", "found", "why", "mend"}


def test_this_machine_can_be_examined() -> None:
    assert doctor.examine(doctor.this_host())
