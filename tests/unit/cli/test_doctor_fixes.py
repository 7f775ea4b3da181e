"""What the doctor says to type works: run on a tree of each kind of host, and read back.

/etc and /boot of the tree are mounted over those of the machine, in a mount namespace. The commands that act on the
host itself (reboot, update-grub, systemctl, ...) are recorded.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from doctor_hosts import CGROUP2, DEBIAN_CARD, MMC_MOUNTS, PI, PI_CMDLINE, PSI, Files, host, levels, one
from trees import build

from hostguard.cli import doctor
from hostguard.cli.doctor.checks import OUTSIDE, Check, Level
from hostguard.config.load import load
from hostguard.linux.disk import Device, choose

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="root is needed for a mount namespace")

ACTS = ("reboot", "update-grub", "proxmox-boot-tool", "kernel-install", "systemctl", "apt-get", "swapoff")


def typed(root: Path, check: Check) -> list[str]:
    """Run the commands of a finding in the tree; the acts on the host, in order."""
    acts = root / "acts"
    programs = root / "programs"
    programs.mkdir(exist_ok=True)
    for name in ACTS:
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{acts}\n')
        (programs / name).chmod(0o755)
    binds = [
        f"mount --bind {shlex.quote(str(root / top))} /{top}"
        for top in ("etc", "boot")
        if (root / top).is_dir()
    ]
    script = "\n".join(["set -e", *binds, *check.mend])
    path = f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"
    subprocess.run(["unshare", "--mount", "sh", "-c", script], check=True, env={"PATH": path})
    return [line.strip() for line in acts.read_text().splitlines()] if acts.exists() else []


def grub(root: Path) -> str:
    """The options that grub-mkconfig(8) takes: it sources the file, then the drop-ins."""
    script = "set -e; . etc/default/grub; for x in etc/default/grub.d/*.cfg; do [ ! -e $x ] || . ./$x; done"
    script += '; echo "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"'
    return subprocess.run(
        ["sh", "-c", script.replace(". etc", ". ./etc")], cwd=root, check=True, capture_output=True, text=True
    ).stdout


NO_PSI = {name: text for name, text in DEBIAN_CARD.items() if name not in PSI}
BY_GRUB = "update-grub\nreboot"
PROXMOX: Files = {
    **{name: text for name, text in NO_PSI.items() if name != "etc/default/grub"},
    "proc/cmdline": "initrd=\\EFI\\proxmox\\6.8.12-pve\\initrd.img root=ZFS=rpool/ROOT/pve-1 boot=zfs\n",
    "etc/kernel/cmdline": "root=ZFS=rpool/ROOT/pve-1 boot=zfs\n",
    "usr/sbin/proxmox-boot-tool": "",
}
GRUBS = {
    "double quotes": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="a=1"\n',
    "single quotes": "GRUB_CMDLINE_LINUX_DEFAULT='quiet'\nGRUB_CMDLINE_LINUX='a=1'\n",
    "no quotes": "GRUB_CMDLINE_LINUX_DEFAULT=quiet\nGRUB_CMDLINE_LINUX=a=1\n",
    "missing": "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n",
    "a comment": '#GRUB_CMDLINE_LINUX="psi=1"\nGRUB_CMDLINE_LINUX_DEFAULT=quiet\n',
}


@pytest.mark.parametrize("text", GRUBS.values(), ids=GRUBS.keys())
def test_an_option_for_grub(tmp_path: Path, text: str) -> None:
    ill = host(tmp_path, {**NO_PSI, "etc/default/grub": text})
    before = grub(tmp_path).split()
    assert typed(tmp_path, one(doctor.examine(ill), "psi")) == BY_GRUB.split("\n")
    assert sorted(grub(tmp_path).split()) == sorted([*before, "psi=1"])
    assert (
        one(doctor.examine(ill), "psi")
        .mend[0]
        .startswith("update-grub; reboot    # psi=1 is in /etc/default/grub")
    )


def test_a_second_option_for_grub_keeps_the_first(tmp_path: Path) -> None:
    hybrid = {**NO_PSI, **held("memory", "/sys/fs/cgroup/memory")}
    checks = doctor.examine(host(tmp_path, hybrid))
    typed(tmp_path, one(checks, "psi"))
    typed(tmp_path, one(checks, "memory_controller"))
    assert {"psi=1", "cgroup_no_v1=all"} <= {*grub(tmp_path).split()}


@pytest.mark.parametrize("proxmox", [True, False])
def test_an_option_for_systemd_boot(tmp_path: Path, proxmox: bool) -> None:
    files = {name: text for name, text in PROXMOX.items() if proxmox or name != "usr/sbin/proxmox-boot-tool"}
    ill = host(tmp_path, files)
    version = os.uname().release
    applied = (
        "proxmox-boot-tool refresh" if proxmox else f"kernel-install add {version} /boot/vmlinuz-{version}"
    )
    assert typed(tmp_path, one(doctor.examine(ill), "psi")) == [applied, "reboot"]
    assert (tmp_path / "etc/kernel/cmdline").read_text() == "root=ZFS=rpool/ROOT/pve-1 boot=zfs psi=1\n"


def test_proxmox_with_grub_boots_what_grub_has(tmp_path: Path) -> None:
    files = {
        **PROXMOX,
        "proc/cmdline": DEBIAN_CARD["proc/cmdline"],
        "etc/default/grub": "GRUB_CMDLINE_LINUX=\n",
    }
    typed(tmp_path, one(doctor.examine(host(tmp_path, files)), "psi"))
    assert "psi=1" in grub(tmp_path)
    assert "psi=1" not in (tmp_path / "etc/kernel/cmdline").read_text()


def test_an_option_for_the_firmware(tmp_path: Path) -> None:
    ill = host(tmp_path, PI)
    checks = doctor.examine(ill)
    assert typed(tmp_path, one(checks, "psi")) == ["reboot"]
    typed(tmp_path, one(checks, "memory_controller"))
    assert (
        tmp_path / "boot/firmware/cmdline.txt"
    ).read_text() == f"{PI_CMDLINE} psi=1 cgroup_enable=memory\n"


def held(controller: str, place: str) -> Files:
    """A host where cgroup version 1 holds a controller, as /proc/cgroups and mountinfo of Linux 6.1 show it."""
    names = [("cpu", 0), ("blkio", 0), ("memory", 0), ("pids", 0)]
    rows = [f"{name}\t{4 if name == controller else number}\t54\t1" for name, number in names]
    return {
        "proc/cgroups": "\n".join(["#subsys_name\thierarchy\tnum_cgroups\tenabled", *rows]) + "\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu io pids\n"
        if controller == "memory"
        else "cpu memory pids\n",
        "proc/self/mountinfo": CGROUP2
        + MMC_MOUNTS
        + f"33 25 0:31 / {place} rw - cgroup cgroup rw,{controller}\n",
    }


@pytest.mark.parametrize(
    ("controller", "check"), [("memory", "memory_controller"), ("blkio", "io_controller")]
)
def test_a_controller_that_version_1_holds(tmp_path: Path, controller: str, check: str) -> None:
    ill = host(tmp_path, {**DEBIAN_CARD, **held(controller, "/mnt/v1")})
    found = one(doctor.examine(ill), check)
    assert found.found.startswith("cgroup version 1 holds it (mounted at /mnt/v1)")
    assert typed(tmp_path, found) == BY_GRUB.split("\n")
    assert "cgroup_no_v1=all" in grub(tmp_path).split()


@pytest.mark.parametrize("quote", ["'", '"'])
def test_options_that_select_version_1_are_removed(tmp_path: Path, quote: str) -> None:
    option = "systemd.unified_cgroup_hierarchy=0"
    files = {
        **DEBIAN_CARD,
        **held("memory", "/sys/fs/cgroup/memory"),
        "proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz root=UUID=1 {option} ro\n",
        "etc/default/grub": "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n",
        "etc/default/grub.d/old.cfg": f"GRUB_CMDLINE_LINUX={quote}{option} a=1{quote}\n",
    }
    ill = host(tmp_path, files)
    assert typed(tmp_path, one(doctor.examine(ill), "memory_controller")) == BY_GRUB.split("\n")
    assert grub(tmp_path).split() == ["a=1", "quiet"]


@pytest.mark.parametrize(
    "mark", [{"run/systemd/container": "lxc\n"}, {"run/.containerenv": ""}, {"/.dockerenv".lstrip("/"): ""}]
)
def test_in_a_container_the_host_is_where_to_type(tmp_path: Path, mark: Files) -> None:
    ill = host(tmp_path, {**NO_PSI, **held("memory", "/sys/fs/cgroup/memory"), **mark})
    checks = doctor.examine(ill)
    for name in ("psi", "memory_controller", "dirty_pages", "swap"):
        assert one(checks, name).mend == (OUTSIDE,)
    assert "systemd-journald" in " ".join(one(checks, "journal").mend)  # the container has its own


def test_a_root_on_nfs(tmp_path: Path) -> None:
    build(tmp_path, {"etc/hostguard/hostguard.toml": ""})
    files = {
        **DEBIAN_CARD,
        "proc/self/mountinfo": CGROUP2 + "25 1 0:20 / / rw,noatime - nfs4 10.0.0.1:/srv/pi rw,vers=4.2\n",
    }
    unknown = Device(
        None, None, "/var/lib/hostguard is on nfs4 (10.0.0.1:/srv/pi), which does not show its disk"
    )
    found = one(doctor.examine(host(tmp_path, files, device=unknown)), "device")
    assert "is on another machine (nfs4, 10.0.0.1:/srv/pi)" in found.found
    assert typed(tmp_path, found) == ["systemctl reload hostguard"]
    config = load([tmp_path / "etc/hostguard/hostguard.toml.d/90-device.toml"])
    assert config.device_path == "none"
    well = host(tmp_path, {}, device=choose("none", tmp_path), config=config)
    assert one(doctor.examine(well), "device").level is Level.OK


def test_no_free_inode_on_a_real_file_system(tmp_path: Path) -> None:
    files = {**DEBIAN_CARD, "proc/self/mountinfo": CGROUP2 + MMC_MOUNTS}
    full = host(tmp_path, files, inodes=(0, 1000))
    found = one(doctor.examine(full), "space")
    assert found.level is Level.PROBLEM
    assert "no free inode: the file system has 1000 files" in found.found
    many = tmp_path / "many"
    many.mkdir()
    command = found.mend[-1].replace("-xS /", f"-xS {many}")
    script = f"mount -t tmpfs -o nr_inodes=30 tmpfs {many}; mkdir {many}/few {many}/full; i=0;"
    script += (
        f"while touch {many}/full/$i 2>/dev/null; do i=$((i + 1)); done; stat -f -c %d {many}; {command}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], check=True, capture_output=True, text=True
    )
    free, *rest = done.stdout.splitlines()
    assert free == "0"
    assert rest[-1].endswith("/full")


def swapped(text: str) -> Files:
    return {"proc/swaps": f"Filename\tType\tSize\tUsed\tPriority\n{text}\n"}


ZRAM: Files = {**swapped("/dev/zram0 partition\t2097136\t2048\t100"), "sys/class/block/zram0/dev": "251:0\n"}
LOOP: Files = {"sys/class/block/loop0/dev": "7:0\n", "sys/class/block/loop0/loop/backing_file": "/var/swap\n"}


@pytest.mark.parametrize(
    ("back", "more"),
    [("/dev/loop0", LOOP), ("/dev/mmcblk0p1", {})],
)
def test_zram_that_writes_back_to_the_card(tmp_path: Path, back: str, more: Files) -> None:
    files = {
        **DEBIAN_CARD,
        **ZRAM,
        **more,
        "sys/class/block/zram0/backing_dev": f"{back}\n",
        "etc/rpi/swap.conf": "[Main]\n",
    }
    found = one(doctor.examine(host(tmp_path, files)), "swap")
    assert found.found == f"swap in memory is written back to mmcblk0 (/dev/zram0, to {back})"
    assert typed(tmp_path, found) == ["reboot"]
    assert (tmp_path / "etc/rpi/swap.conf.d/90-hostguard.conf").read_text() == "[Main]\nMechanism=zram\n"


@pytest.mark.parametrize("file", ["zram-generator.conf", "zram-generator.conf.d/swap.conf"])
def test_zram_generator_without_its_writeback_device(tmp_path: Path, file: str) -> None:
    config = "[zram0]\nzram-size = ram / 2\nwriteback-device = /dev/mmcblk0p1\n"
    files = {
        **DEBIAN_CARD,
        **ZRAM,
        "sys/class/block/zram0/backing_dev": "/dev/mmcblk0p1\n",
        f"etc/systemd/{file}": config,
    }
    assert typed(tmp_path, one(doctor.examine(host(tmp_path, files)), "swap")) == ["reboot"]
    assert (tmp_path / "etc/systemd" / file).read_text() == "[zram0]\nzram-size = ram / 2\n"


def test_zram_that_keeps_all_in_memory_is_fine(tmp_path: Path) -> None:
    files = {**DEBIAN_CARD, **ZRAM, "sys/class/block/zram0/backing_dev": "none\n"}
    assert one(doctor.examine(host(tmp_path, files)), "swap").level is Level.OK


def test_zram_set_up_by_hand(tmp_path: Path) -> None:
    files = {**DEBIAN_CARD, **ZRAM, "sys/class/block/zram0/backing_dev": "/dev/mmcblk0p1\n"}
    assert one(doctor.examine(host(tmp_path, files)), "swap").mend == (
        "# set /dev/zram0 up without the backing device /dev/mmcblk0p1, then reboot",
    )


@pytest.mark.parametrize(
    "mount",
    [
        "60 25 0:61 / /var/log rw,nosuid - tmpfs log2ram rw,size=131072k",
        "60 25 251:1 / /var/log rw,noatime - ext4 /dev/zram1 rw",  # with ZL2R=true
    ],
)
def test_a_journal_under_log2ram_is_in_memory(tmp_path: Path, mount: str) -> None:
    files = {
        **DEBIAN_CARD,
        "proc/self/mountinfo": CGROUP2 + MMC_MOUNTS + f"{mount}\n",
        "etc/log2ram.conf": "SIZE=128M\n",
    }
    found = one(doctor.examine(host(tmp_path, files)), "journal")
    assert (found.level, found.found) == (
        Level.OK,
        "in memory, on /var/log; log2ram copies it to the disk once a day",
    )


def test_a_journal_on_the_card_is_moved_to_memory(tmp_path: Path) -> None:
    ill = host(tmp_path, DEBIAN_CARD)
    assert typed(tmp_path, one(doctor.examine(ill), "journal")) == ["systemctl restart systemd-journald"]
    assert "journal" not in levels(doctor.examine(ill))
