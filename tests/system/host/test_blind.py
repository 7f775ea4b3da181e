"""A guard that sees no disk, or whose queue does not last, says so first; and it finds the disk in its sandbox."""

from __future__ import annotations

import ctypes
import json
import lzma
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from guard import Guard, run

IMAGE = Path(__file__).parents[2] / "rig/btrfs.img.xz"  # mkfs.btrfs --mixed, 16 MiB, empty
CONFIG = '[turn]\nwrite_bandwidth = "4M"\n[minds.ada]\ncommand = ["/bin/true"]\nuser = "root"\n'
BELOW = Path("/run/below")


def first_lines(guard: Guard) -> list[str]:
    """The lines of the status that are marked; they come before all others, and top has them, too."""
    lines = guard.cli("status").stdout.split("\n\n")[0].splitlines()
    marked = [line for line in lines if line.startswith("!")]
    assert lines[: len(marked)] == marked
    top = guard.cli("top", "--once").stdout.splitlines()
    assert set(marked) <= set(top)
    return marked


def codes(guard: Guard) -> set[str]:
    return {problem["code"] for problem in guard.json("status")["problems"]}


def doctor(guard: Guard) -> dict[str, Any]:
    checks = json.loads(guard.cli("doctor", "--json", check=False).stdout)["checks"]
    return {check["name"]: check for check in checks}


def metric(guard: Guard, code: str) -> bool:
    """Whether the metrics say that there is this problem."""
    text = guard.cli("metrics").stdout
    return f'hostguard_problem{{code="{code}"}} 1.0\n' in text


def test_a_queue_on_a_disk_is_calm(guard: Guard) -> None:
    guard.start(CONFIG)
    assert codes(guard) == set()
    assert first_lines(guard) == ["!  limits   not enforced: write_bandwidth (hostguard doctor)"]
    assert not metric(guard, "no_disk")
    assert not metric(guard, "not_durable")
    found = doctor(guard)
    assert (found["device"]["level"], found["file_system"]["level"]) == ("ok", "ok")


@pytest.mark.parametrize("kind", ["overlay", "tmpfs"])
def test_a_queue_in_memory(guard: Guard, kind: str, tmp_path: Path) -> None:
    """The guest's root is an overlay with a tmpfs as its upper layer, as Raspberry Pi OS has it with overlayroot."""
    state = Path("/root/state") if kind == "overlay" else Path("/run/state")
    state.mkdir()
    guard.start(CONFIG, state=state)
    assert codes(guard) == {"no_disk", "not_durable"}
    disk, queue, *_limits = first_lines(guard)
    assert disk.startswith(
        "!  disk     unknown, so it is not watched and has no limits: /var/lib/hostguard is on"
    )
    assert queue.startswith(
        "!  queue    accepted messages may be lost with the power: /var/lib/hostguard/queue.db is"
    )
    assert f"in memory ({kind} on " in queue
    assert "calm" not in guard.cli("status").stdout
    assert (
        "; the disk is not watched or limited: hostguard status"
        in run("systemctl", "status", "hostguard").stdout
    )
    assert metric(guard, "no_disk")
    assert metric(guard, "not_durable")
    found = doctor(guard)
    assert (found["device"]["level"], found["file_system"]["level"]) == ("problem", "warning")
    assert f"in memory ({kind} on " in found["file_system"]["found"]
    assert found["daemon"]["level"] == "warning", "it does not start at boot in a guest"
    guard.configure(f'{CONFIG}[device]\npath = "none"\n')
    guard.reload()
    assert codes(guard) == {"not_durable"}, "who switches the disk off knows it"
    assert "disk     not watched: switched off" in guard.cli("status").stdout


class Btrfs:
    """A btrfs on a loop device, not mounted yet."""

    def __init__(self, node: Path) -> None:
        self.node = node

    @contextmanager
    def mounted(self, source: Path) -> Iterator[Path]:
        """Mount it from this name of its node, which mount(8) would resolve; the place."""
        place = BELOW / f"mount-{self.node.name}"
        place.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(str(source).encode(), str(place).encode(), b"btrfs", 0, None):
            raise OSError(ctypes.get_errno(), f"mounting {source}")
        try:
            yield place
        finally:
            run("umount", "-l", str(place))


@contextmanager
def made(name: str) -> Iterator[Btrfs]:
    BELOW.mkdir(exist_ok=True)
    image = BELOW / name
    image.write_bytes(with_new_id(lzma.decompress(IMAGE.read_bytes())))
    with ExitStack() as undo:
        undo.callback(image.unlink)
        node = run("losetup", "--find", "--show", str(image)).stdout.strip()
        undo.callback(run, "losetup", "--detach", node)
        yield Btrfs(Path(node))


def with_new_id(image: bytes) -> bytes:
    """The image with another id of its own: no kernel mounts two file systems of one id, in two guests either."""
    block = bytearray(image[65_536:69_632])  # the superblock, struct btrfs_super_block
    block[0x23B:0x24B] = block[0x20:0x30]  # the id in all other blocks is this one from now on, metadata_uuid
    block[0x20:0x30] = os.urandom(16)
    block[0xBD] |= 0x04  # BTRFS_FEATURE_INCOMPAT_METADATA_UUID
    checksum = 0xFFFF_FFFF  # CRC-32C
    for byte in block[0x20:]:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F6_3B78 if checksum & 1 else 0)
    block[:4] = (checksum ^ 0xFFFF_FFFF).to_bytes(4, "little")
    return image[:65_536] + bytes(block) + image[69_632:]


@pytest.fixture
def btrfs() -> Iterator[Btrfs]:
    with made("image") as btrfs:
        yield btrfs


@pytest.fixture
def other_btrfs() -> Iterator[None]:
    """Another one that is mounted, as on a host with several."""
    with made("other") as other, other.mounted(other.node):
        yield


@pytest.mark.parametrize("name", ["/dev/mapper/luks-1", "/dev/root"])
@pytest.mark.parametrize("kind", ["link", "node"])
@pytest.mark.usefixtures("other_btrfs")
def test_btrfs_by_a_name_that_the_sandbox_does_not_have(
    guard: Guard, btrfs: Btrfs, name: str, kind: str
) -> None:
    """refind-btrfs#2, udisks#1544: the guard's own /dev has neither; the kernel knows the file system's devices."""
    named = Path(name)
    named.parent.mkdir(exist_ok=True)
    if kind == "link":
        named.symlink_to(os.path.relpath(btrfs.node, named.parent))
    else:
        os.mknod(named, 0o060600, btrfs.node.stat().st_rdev)
    try:
        with btrfs.mounted(named) as place:
            state = place / "state"
            state.mkdir()
            mounts = Path("/proc/self/mountinfo").read_text()
            assert f"btrfs {name} " in mounts, mounts
            guard.start(CONFIG, state=state)
            try:
                inside = Path(f"/proc/{guard.pid}/root{name}")
                assert not inside.exists(), "the sandbox has a /dev of its own"
                device = guard.json("status")["device"]
                assert (device["node"], device["name"]) == (str(btrfs.node), btrfs.node.name), device
                assert "no_disk" not in codes(guard)
                found = doctor(guard)["device"]
                assert (found["level"], found["found"]) == ("ok", device["reason"])
            finally:
                guard.close()
    finally:
        named.unlink()


def test_the_doctor_compares_with_what_the_daemon_found(guard: Guard, btrfs: Btrfs) -> None:
    """A disk that came after the daemon was started."""
    guard.start(f'{CONFIG}[device]\npath = "/dev/later"\n')
    assert "no_disk" in codes(guard)
    os.mknod("/dev/later", 0o060600, btrfs.node.stat().st_rdev)
    try:
        found = doctor(guard)["device"]
        assert found["level"] == "problem"
        assert found["found"].startswith("the daemon found no disk: there is no /dev/later;")
        assert (
            f"; this command found {btrfs.node}: /dev/later is the disk {btrfs.node.name}" in found["found"]
        )
        assert found["mend"][0].startswith("systemctl restart hostguard")
        run("sh", "-c", found["mend"][0])
        assert doctor(guard)["device"]["level"] == "ok"
    finally:
        Path("/dev/later").unlink()


def test_an_absolute_link_to_the_disk_is_followed_outside_of_the_sandbox(guard: Guard, btrfs: Btrfs) -> None:
    link = Path("/dev/card")
    link.symlink_to(btrfs.node)
    try:
        guard.start(f'{CONFIG}[device]\npath = "{link}"\n')
        assert guard.json("status")["device"]["node"] == str(btrfs.node)
    finally:
        link.unlink()
