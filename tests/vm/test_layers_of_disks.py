"""The real device mapper and zram: the guard in its sandbox finds the disk beneath, and says what does not last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from machine import Machine

IMAGE = "/src/tests/rig/btrfs.img.xz"
UNPACK = "python3 -c 'import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())'"
MAPPER = "python3 /src/tests/vm/mapper.py"
KEY = "0123456789abcdef" * 4
SECTORS = 16 << 11  # of the image
CONFIG = '[turn]\nwrite_bandwidth = "4M"\nread_bandwidth = "4M"\n[minds.ada]\ncommand = ["/bin/true"]\nuser = "root"\n'


@pytest.fixture(scope="module", autouse=True)
def _guard(machine: Machine) -> None:
    machine.start_guard(CONFIG)


@contextmanager
def state_on(machine: Machine, place: str) -> Iterator[dict[str, Any]]:
    """The guard's status, with its state on the file system that is mounted at `place`."""
    machine.sh(f"systemctl stop hostguard hostguard.socket; mkdir -p {place}/state")
    machine.sh(f"mount --bind {place}/state /var/lib/hostguard; systemctl start hostguard", seconds=120)
    try:
        yield machine.get("/v1/status")
    finally:
        machine.sh(f"systemctl stop hostguard hostguard.socket; umount /var/lib/hostguard; umount {place}")
        machine.systemctl("start", "hostguard")


def problems(status: dict[str, Any]) -> set[str]:
    return {problem["code"] for problem in status["problems"]}


def device_check(machine: Machine) -> dict[str, Any]:
    checks = json.loads(machine.sh("hostguard doctor --json", check=False))["checks"]
    return next(check for check in checks if check["name"] == "device")


@pytest.mark.parametrize(
    ("name", "uuid", "target", "kind"),
    [
        ("luks-1", "CRYPT-LUKS2-ab-luks-1", f"crypt aes-xts-plain64 {KEY} 0 {{}} 0", "encrypted luks-1"),
        ("vg-root", "LVM-cd", "linear {} 0", "LVM vg-root"),
    ],
)
def test_btrfs_on_the_device_mapper(machine: Machine, name: str, uuid: str, target: str, kind: str) -> None:
    """refind-btrfs#2: the mount's source is /dev/mapper/NAME, which the guard's own /dev does not have."""
    machine.sh("modprobe -a loop btrfs dm_mod dm_crypt; mkdir -p /run/btrfs")
    machine.sh(f"truncate -s 16M /card/{name}")
    loop = machine.sh(f"losetup --find --show /card/{name}").strip()
    machine.sh(f"{MAPPER} {name} {uuid} {SECTORS} {target.format(loop)}")
    machine.sh(f"set -o pipefail; {UNPACK} {IMAGE} | dd of=/dev/mapper/{name} bs=1M conv=fsync status=none")
    machine.sh(f"mount -t btrfs /dev/mapper/{name} /run/btrfs")
    assert f"btrfs /dev/mapper/{name} " in machine.sh("cat /proc/self/mountinfo")
    with state_on(machine, "/run/btrfs") as status:
        device = status["device"]
        assert (device["node"], device["encrypted"]) == (loop, "CRYPT" in uuid), device
        assert "btrfs, on dm-" in device["reason"]
        assert f"({kind}), on the disk " in device["reason"]
        assert not problems(status) & {"no_disk", "not_durable"}
        found = device_check(machine)
        assert (found["level"], found["found"]) == ("ok", device["reason"])


def test_a_queue_on_zram(machine: Machine) -> None:
    machine.sh("modprobe zram; echo 64M >/sys/block/zram0/disksize; mkdir -p /run/zram")
    machine.sh("mke2fs -q -t ext4 /dev/zram0; mount /dev/zram0 /run/zram", seconds=120)
    with state_on(machine, "/run/zram") as status:
        texts = {problem["code"]: problem["text"] for problem in status["problems"]}
        assert "zram0, which is memory, not a disk" in texts["no_disk"]
        assert texts["not_durable"].endswith("is in memory (ext4 on /var/lib/hostguard, on zram0)")
        lines = machine.sh("hostguard status").splitlines()
        assert [line[:10] for line in lines[:2]] == ["!  disk   ", "!  queue  "]
        assert device_check(machine)["level"] == "problem"
