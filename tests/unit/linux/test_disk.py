"""From a path to its whole disk, on small sysfs trees shaped like real ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hostguard.linux import disk as device
from hostguard.linux.disk import Device
from hostguard.linux.mounts import Mount, parse_mounts, read_mounts

NODE = os.makedev(8, 250)  # sd's major: only ever looked up in a tree of a test


class Sysfs:
    """Builds a sysfs tree. The layout was read off kernel 6.18: dev/block/MAJ:MIN links into devices/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("dev/block", "devices", "fs/btrfs"):
            (root / folder).mkdir(parents=True)

    def disk(self, name: str, number: int, *slaves: Path, uuid: str = "", label: str = "") -> Path:
        entry = self.root / "devices/some/bus/block" / name
        (entry / "slaves").mkdir(parents=True)
        for slave in slaves:
            (entry / "slaves" / slave.name).symlink_to(slave)
        if uuid:
            (entry / "dm").mkdir()
            (entry / "dm/uuid").write_text(uuid)
            (entry / "dm/name").write_text(label + "\n")
        return self._number(entry, number)

    def partition(self, disk: Path, name: str, number: int) -> Path:
        (disk / name).mkdir()
        (disk / name / "partition").write_text("1\n")
        return self._number(disk / name, number)

    def btrfs(self, *members: Path, id_: str = "0c2f") -> None:
        folder = self.root / f"fs/btrfs/{id_}/devices"
        folder.mkdir(parents=True)
        for member in members:
            (folder / member.name).symlink_to(member)

    def _number(self, entry: Path, number: int) -> Path:
        link = self.root / "dev/block" / f"{os.major(number)}:{os.minor(number)}"
        link.symlink_to(os.path.relpath(entry, link.parent))
        return entry


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


def minor(number: int) -> int:
    return os.makedev(8, number)


def found(sysfs: Sysfs, number: int = NODE, named: bool = False) -> Device:
    return device.of_number(number, "/x is on", sysfs.root, named=named)


def on_btrfs(sysfs: Sysfs, source: str) -> Device:
    """The disk of a btrfs that cannot be asked, as the place is on no btrfs."""
    return device.of_btrfs(Path("/proc"), source, "/x is on", sysfs.root)


def test_a_whole_disk_is_itself(sysfs: Sysfs) -> None:
    sysfs.disk("sda", NODE)
    assert found(sysfs) == Device("/dev/sda", "sda", "/x is on the disk sda")


@pytest.mark.parametrize(
    ("disk", "part"),
    [
        ("mmcblk0", "mmcblk0p2"),
        ("nvme0n1", "nvme0n1p1"),
        ("sda", "sda3"),
        ("vda", "vda1"),
        ("nbd3", "nbd3p1"),
    ],
)
def test_a_partition_is_its_disk(sysfs: Sysfs, disk: str, part: str) -> None:
    sysfs.partition(sysfs.disk(disk, minor(0)), part, NODE)
    reason = f"/x is on the partition {part}, on the disk {disk}"
    assert found(sysfs) == Device(f"/dev/{disk}", disk, reason)


def test_a_loop_device_is_a_disk_of_its_own_and_says_where_its_data_is(sysfs: Sysfs) -> None:
    loop = sysfs.disk("loop0", minor(0))
    (loop / "loop").mkdir()
    (loop / "loop/backing_file").write_text("/on/another/disk\n")
    sysfs.partition(loop, "loop0p1", NODE)
    reason = "/x is on the partition loop0p1, on the disk loop0, which is in the file /on/another/disk"
    assert found(sysfs) == Device("/dev/loop0", "loop0", reason)


def test_all_layers_are_looked_through_and_each_is_named(sysfs: Sysfs) -> None:
    part = sysfs.partition(sysfs.disk("sda", minor(0)), "sda3", minor(3))
    crypt = sysfs.disk("dm-0", minor(4), part, uuid="CRYPT-LUKS2-ab", label="sda3_crypt")
    sysfs.disk("dm-1", NODE, crypt, uuid="LVM-cd", label="vg-root")
    steps = "dm-1 (LVM vg-root), on dm-0 (encrypted sda3_crypt), on the partition sda3, on the disk sda"
    assert found(sysfs) == Device("/dev/sda", "sda", f"/x is on {steps}", encrypted=True)


def test_plain_lvm_is_not_called_encrypted(sysfs: Sysfs) -> None:
    part = sysfs.partition(sysfs.disk("sda", minor(0)), "sda3", minor(3))
    sysfs.disk("dm-0", NODE, part, uuid="LVM-cd", label="vg-CRYPT")
    assert not found(sysfs).encrypted


def test_layers_of_different_depth_that_meet_on_one_disk(sysfs: Sysfs) -> None:
    sda = sysfs.disk("sda", minor(0))
    two, three = (sysfs.partition(sda, f"sda{i}", minor(i)) for i in (2, 3))
    crypt = sysfs.disk("dm-0", minor(5), three, uuid="CRYPT-LUKS2-ab", label="c")
    sysfs.disk("dm-1", NODE, two, crypt, uuid="LVM-cd", label="vg-home")
    assert (found(sysfs).name, found(sysfs).encrypted) == ("sda", True)


def test_an_array_with_one_disk_left_is_that_disk(sysfs: Sysfs) -> None:
    md = sysfs.disk("md0", NODE, sysfs.partition(sysfs.disk("sda", minor(0)), "sda1", minor(1)))
    (md / "md").mkdir()
    assert found(sysfs).reason == "/x is on md0 (RAID), on the partition sda1, on the disk sda"


def test_two_partitions_of_one_disk_are_one_disk(sysfs: Sysfs) -> None:
    sda = sysfs.disk("sda", minor(0))
    parts = [sysfs.partition(sda, f"sda{i}", minor(i)) for i in (2, 3)]
    sysfs.disk("dm-0", NODE, *parts)
    assert found(sysfs).name == "sda"


@pytest.mark.parametrize("name", ["md0", "dm-0"])
def test_several_disks_are_none_unless_named(sysfs: Sysfs, name: str) -> None:
    disks = [
        sysfs.partition(sysfs.disk(f"sd{x}", minor(16 * i)), f"sd{x}1", minor(16 * i + 1))
        for i, x in enumerate("ab")
    ]
    sysfs.disk(name, NODE, *disks)
    none = found(sysfs)
    assert (none.node, none.name) == (None, None)
    assert "on the partition sda1, the partition sdb1, on several disks (sda, sdb); set path" in none.reason
    assert found(sysfs, named=True).node == f"/dev/{name}"


@pytest.mark.parametrize("name", ["zram0", "ram1"])
def test_memory_is_no_disk_unless_named(sysfs: Sysfs, name: str) -> None:
    sysfs.disk(name, NODE)
    none = found(sysfs)
    assert none.node is None
    assert "memory" in none.reason
    assert "set path under [device]" in none.reason
    assert found(sysfs, named=True).node == f"/dev/{name}"


def test_a_slash_in_a_name_is_written_otherwise_in_sysfs(sysfs: Sysfs) -> None:
    sysfs.disk("cciss!c0d0", NODE)
    assert found(sysfs).node == "/dev/cciss/c0d0"


def test_a_number_that_sysfs_does_not_know(sysfs: Sysfs) -> None:
    none = found(sysfs)
    assert none.node is None
    assert "8:250" in none.reason


def test_btrfs_on_one_device(sysfs: Sysfs) -> None:
    sysfs.btrfs(sysfs.partition(sysfs.disk("sda", minor(0)), "sda2", minor(2)))
    reason = "/x is on btrfs, on the partition sda2, on the disk sda"
    assert on_btrfs(sysfs, "/dev/sda2") == Device("/dev/sda", "sda", reason)


def test_btrfs_on_two_partitions_of_one_disk(sysfs: Sysfs) -> None:
    sda = sysfs.disk("sda", minor(0))
    sysfs.btrfs(*(sysfs.partition(sda, f"sda{i}", minor(i)) for i in (2, 3)))
    assert on_btrfs(sysfs, "/dev/sda3").name == "sda"


def test_btrfs_on_two_devices(sysfs: Sysfs) -> None:
    sysfs.btrfs(*(sysfs.disk(name, minor(i)) for i, name in enumerate(("sda", "sdb"))))
    none = on_btrfs(sysfs, "/dev/sdb")
    assert none.node is None
    assert "btrfs, on several disks (sda, sdb); set path" in none.reason


def test_btrfs_on_what_udev_links_to_from_dev_mapper(sysfs: Sysfs) -> None:
    part = sysfs.partition(sysfs.disk("sda", minor(0)), "sda3", minor(3))
    crypt = sysfs.disk("dm-0", minor(4), part, uuid="CRYPT-LUKS2-ab", label="luks-1")
    (sysfs.root / "block").mkdir()
    (sysfs.root / "block/dm-0").symlink_to(crypt)
    sysfs.btrfs(crypt)
    sysfs.btrfs(sysfs.disk("sdb", minor(16)), id_="77aa")
    layers = "btrfs, on dm-0 (encrypted luks-1), on the partition sda3, on the disk sda"
    expected = Device("/dev/sda", "sda", f"/x is on {layers}", encrypted=True)
    assert on_btrfs(sysfs, "/dev/mapper/luks-1") == expected


def test_btrfs_from_a_source_that_is_no_node_is_the_only_one_there_is(sysfs: Sysfs) -> None:
    sysfs.btrfs(sysfs.disk("sda", minor(0)))
    assert on_btrfs(sysfs, "/dev/root").node == "/dev/sda"
    sysfs.btrfs(sysfs.disk("sdb", minor(16)), id_="77aa")
    assert on_btrfs(sysfs, "/dev/root").node is None


MOUNTINFO = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
227 27 0:40 / /a\040b rw shared:7 master:1 - overlay over\040lay rw,lowerdir=/l - x
"""


@pytest.mark.parametrize(
    ("line", "expected", "why"),
    [
        (0, Mount("22", "0:21", "/proc", "proc", "proc", frozenset({"rw", "relatime"})), "no optional field"),
        (
            1,
            Mount("27", "254:0", "/", "ext4", "/dev/vda", frozenset({"rw", "relatime", "discard"})),
            "one optional field",
        ),
        (
            2,
            Mount("227", "0:40", "/a b", "overlay", "over lay", frozenset({"rw", "lowerdir=/l - x"})),
            "two optional fields, spaces, and another dash",
        ),
    ],
)
def test_mountinfo(line: int, expected: Mount, why: str) -> None:
    assert parse_mounts(MOUNTINFO)[line] == expected, why


# -- on the machine itself


def test_a_path_that_is_not_there_yet_is_on_its_parents_disk(tmp_path: Path) -> None:
    here, later = device.resolve(tmp_path), device.resolve(tmp_path / "not" / "yet")
    assert (later.node, later.name) == (here.node, here.name)


def test_a_file_system_in_memory_has_no_disk() -> None:
    none = device.resolve(Path("/proc/self"))
    assert none.node is None
    assert "/proc/self is on proc (" in none.reason


def test_a_path_that_cannot_be_followed_is_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in device.resolve(tmp_path / "loop" / "x").reason


def test_this_machines_disks_are_found_as_the_kernel_lists_them(tmp_path: Path) -> None:
    here = device.resolve(tmp_path)
    if here.name is None:
        assert here.reason.startswith(f"{tmp_path} is on ")
    else:
        assert (Path("/sys/block") / here.name).exists()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    try:
        os.mknod(tmp_path / "node", stat.S_IFBLK | 0o600, NODE)
    except PermissionError:
        pytest.skip("may not make device nodes here")
    return tmp_path / "node"


def test_none_switches_the_device_off(tmp_path: Path) -> None:
    off = device.choose("none", tmp_path)
    assert (off.node, "switched off" in off.reason) == (None, True)


def test_auto_is_the_disk_under_the_state_folder(tmp_path: Path) -> None:
    assert device.choose("auto", tmp_path / "state").name == device.resolve(tmp_path).name


def test_a_named_node_is_its_disk(sysfs: Sysfs, node: Path, tmp_path: Path) -> None:
    sysfs.partition(sysfs.disk("null", minor(0)), "null1", NODE)  # a name that is in every /dev
    chosen = device.choose(str(node), tmp_path, sysfs.root)
    reason = f"{node} is the partition null1, on the disk null"
    assert chosen == Device("/dev/null", "null", reason)


def test_a_named_array_is_taken_as_it_is(sysfs: Sysfs, node: Path, tmp_path: Path) -> None:
    sysfs.disk("md0", NODE, sysfs.disk("sda", minor(0)), sysfs.disk("sdb", minor(16)))
    assert device.choose(str(node), tmp_path, sysfs.root).name == "md0"


def test_a_disk_without_a_node_here_gets_no_limits(sysfs: Sysfs, node: Path, tmp_path: Path) -> None:
    sysfs.disk("nosuchdisk", NODE)
    chosen = device.choose(str(node), tmp_path, sysfs.root)
    assert (chosen.node, chosen.name) == (None, "nosuchdisk")
    assert "there is no /dev/nosuchdisk here" in chosen.reason


def test_a_named_path_that_is_not_there_is_not_its_parents_disk(tmp_path: Path) -> None:
    chosen = device.choose(str(tmp_path / "mmcblk9"), tmp_path)
    assert (chosen.node, chosen.name) == (None, None)
    assert f"there is no {tmp_path / 'mmcblk9'}" in chosen.reason


MOUNTS = r"""36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/ro\134ot rw,errors=continue
40 35 0:44 / /proc ro,nosuid shared:13 shared:14 - proc proc rw
41 35 0:45 / /bare rw - tmpfs  rw
"""


def test_fields_escapes_and_options_of_both():
    first, second, third = parse_mounts(MOUNTS)
    assert first == Mount(
        "36", "98:0", "/mnt 2", "ext3", "/dev/ro\\ot", frozenset(("rw", "noatime", "errors=continue"))
    )
    assert (second.place, second.options) == ("/proc", frozenset(("ro", "nosuid", "rw")))
    assert (third.place, third.source) == ("/bare", "")


def test_this_machine_has_a_root():
    assert "/" in {mount.place for mount in read_mounts()}
