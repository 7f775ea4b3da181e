"""What survives a power cut: by the mounts of recorded hosts, and of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import build

from hostguard.linux.durable import doubt

QUEUE = Path("/var/lib/hostguard/queue.db")
CARD = "25 1 179:2 / / rw,noatime shared:1 - ext4 /dev/mmcblk0p2 rw\n"
# Read off Raspberry Pi OS bookworm with "overlay file system" of raspi-config, which uses overlayroot.
OVERLAYROOT = (
    "22 27 179:2 / /media/root-ro ro,relatime shared:1 - ext4 /dev/mmcblk0p2 ro\n"
    "23 27 0:21 / /media/root-rw rw,relatime shared:2 - tmpfs tmpfs-root rw\n"
    "27 1 0:20 / / rw,relatime shared:3 - overlay overlayroot"
    " rw,lowerdir=/media/root-ro,upperdir=/media/root-rw/overlay,workdir=/media/root-rw/overlay-workdir/_\n"
)
ZRAM = {
    "sys/devices/virtual/block/zram1/size": "1\n",
    "sys/dev/block/253:1": Path("../../devices/virtual/block/zram1"),
}


def loop(file: str) -> dict[str, str | Path]:
    return {
        "sys/devices/virtual/block/loop3/loop/backing_file": f"{file}\n",
        "sys/dev/block/7:3": Path("../../devices/virtual/block/loop3"),
    }


@pytest.mark.parametrize(
    ("mounts", "files", "words"),
    [
        (CARD, {}, None),
        (CARD + "30 25 0:40 / /var rw - tmpfs tmpfs rw\n", {}, "is in memory (tmpfs on /var)"),
        (CARD + "30 25 0:40 / /home rw - tmpfs tmpfs rw\n", {}, None),
        (OVERLAYROOT, {"media/root-rw/overlay/x": ""}, "an overlay whose upper layer does not last: /media/root-rw/overlay is in memory (tmpfs on /media/root-rw)"),
        (OVERLAYROOT.replace("0:21", "8:1").replace("tmpfs tmpfs-root", "ext4 /dev/sda1"), {"media/root-rw/overlay/x": ""}, None),
        (OVERLAYROOT.replace("workdir", "volatile,workdir"), {"media/root-rw/overlay/x": ""}, "mounted with volatile"),
        (OVERLAYROOT, {}, None),  # it is hidden: only the kernel could tell
        (CARD + "30 25 253:1 / /var rw - ext4 /dev/zram1 rw\n", ZRAM, "in memory (ext4 on /var, on zram1)"),
        (CARD + "30 25 0:44 / /var rw - nfs4 nas:/export rw\n", {}, "on another machine (nfs4 on /var, from nas:/export)"),
        (CARD.replace("rw\n", "rw,nobarrier\n"), {}, "mounted with nobarrier"),
        (CARD + "30 25 7:3 / /var rw - ext4 /dev/loop3 rw\n", loop("/images/var.img"), None),
        (
            CARD + "29 25 0:40 / /images rw - tmpfs tmpfs rw\n30 25 7:3 / /var rw - ext4 /dev/loop3 rw\n",
            loop("/images/var.img"),
            "/images/var.img is in memory (tmpfs on /images)",
        ),
        (
            CARD + "30 25 0:50 / /var rw - btrfs /dev/zram1 rw\n",
            {**ZRAM, "sys/fs/btrfs/0c2f/devices/zram1": Path("../../../../devices/virtual/block/zram1")},
            "on zram1",
        ),
    ],
)  # fmt: skip
def test_by_the_mounts_of_a_host(
    tmp_path: Path, mounts: str, files: dict[str, str | Path], words: str | None
) -> None:
    build(tmp_path, {"proc/self/mountinfo": mounts, **files})
    found = doubt(QUEUE, tmp_path)
    assert (found is None) == (words is None), found
    assert words is None or words in (found or "")


@pytest.fixture
def hidden_overlay(tmp_path: Path) -> Iterator[Path]:
    """An overlay in memory, whose upper layer is below the overlay itself, as in a live system."""
    place = tmp_path / "place"
    place.mkdir()

    def run(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)

    try:
        run("mount", "-t", "tmpfs", "tmpfs", str(place))
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("may not mount here")
    try:
        for name in ("lower", "upper", "work"):
            (place / name).mkdir()
        options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
        run("mount", "-t", "overlay", "overlay", "-o", options, str(place))
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_an_overlay_in_memory_whose_upper_layer_is_hidden(hidden_overlay: Path) -> None:
    file = hidden_overlay / "queue.db"
    file.write_text("x")
    assert f"{file} is probably in memory (overlay on {hidden_overlay})" in (doubt(file) or "")


def test_what_is_not_there_yet_is_where_its_parent_is(hidden_overlay: Path) -> None:
    assert doubt(Path("/dev/shm/no/such/file")) == "/dev/shm is in memory (tmpfs on /dev/shm)"
