"""Checks of what memory writes to the disk: dirty pages and swap."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hostguard.cli.doctor.checks import Check, Host, ok, warning
from hostguard.linux.disk import of_number

SPEED = 10_000_000  # bytes/s, the write rate of an SD card of class A1
FLUSH_S = 10  # seconds: how much writing at SPEED may wait in memory
SYSCTL = "/etc/sysctl.d/90-hostguard.conf"


def dirty_pages(host: Host) -> Check:
    """The kernel caches no more unwritten data than a slow disk writes in some seconds."""
    fixed = int(host.text("/proc/sys/vm/dirty_bytes").strip() or 0)
    ratio = int(host.text("/proc/sys/vm/dirty_ratio").strip() or 20)
    memory = re.search(r"^MemTotal:\s+([0-9]+) kB", host.text("/proc/meminfo"), re.MULTILINE)
    limit = fixed or (int(memory[1]) * 1024 * ratio // 100 if memory else 0)
    setting = f"vm.dirty_bytes = {fixed}" if fixed else f"vm.dirty_ratio = {ratio}"
    if not host.slow or limit <= SPEED * FLUSH_S:
        return ok(setting)
    return warning(
        f"{setting} lets {limit // 1_000_000} MB of writes wait in memory: {limit // SPEED} s for a card",
        "A program that calls sync or fsync may wait for all of it, and a power cut loses it. The _bytes"
        " settings override the _ratio ones.",
        f"printf 'vm.dirty_bytes = 33554432\\nvm.dirty_background_bytes = 8388608\\n' >{SYSCTL}",
        "sysctl --system",
    )


def swap(host: Host) -> Check:
    """There is no swap on a slow disk; zram is fine if it does not write back to that disk."""
    name = host.device.name
    entries = (line.split() for line in host.text("/proc/swaps").splitlines()[1:])
    on_disk = [entry for entry in entries if name and _swaps_to_it(host, entry[0], entry[1])]
    if not on_disk:
        return ok(f"none on {name}" if name else "unknown")
    place, _kind, _size, used = on_disk[0][:4]
    back = _backing(host, Path(place).name)
    found = f"swap is on {name} ({place}, {int(used) >> 10} MiB used)"
    if back:
        found = f"swap in memory is written back to {name} ({place}, to {back})"
    if not host.slow:
        return ok(found)
    return warning(
        found,
        "When memory is short, every task waits for the disk that turns use, and swapping is not limited.",
        *(_keep_in_memory(host, place, back) if back else _swap_off(host, place)),
    )


def _swap_off(host: Host, place: str) -> tuple[str, ...]:
    if host.exists("/etc/rpi/swap.conf"):
        return _rpi_swap()
    if host.exists("/etc/dphys-swapfile"):
        return ("systemctl disable --now dphys-swapfile; apt-get install systemd-zram-generator",)
    return (f"swapoff {place}    # and remove it from /etc/fstab; apt-get install systemd-zram-generator",)


def _keep_in_memory(host: Host, place: str, back: str) -> tuple[str, ...]:
    """How to stop a zram device from writing to `back`. Its setup must leave it out."""
    if host.exists("/etc/rpi/swap.conf"):
        return _rpi_swap()
    files = [Path("etc/systemd/zram-generator.conf")]
    files += (
        file.relative_to(host.root) for file in (host.root / "etc/systemd/zram-generator.conf.d").glob("*")
    )
    given = [
        f"/{file}" for file in files if re.search(r"^\s*writeback-device", host.text(str(file)), re.MULTILINE)
    ]
    if given:
        return (f"sed -i '/^[[:space:]]*writeback-device/d' {' '.join(given)}", "reboot")
    return (f"# set {place} up without the backing device {back}, then reboot",)


def _rpi_swap() -> tuple[str, ...]:
    """Swap in memory only, with the package rpi-swap of Raspberry Pi OS, whose default also uses the card."""
    folder = "/etc/rpi/swap.conf.d"
    return (f"mkdir -p {folder}; printf '[Main]\\nMechanism=zram\\n' >{folder}/90-hostguard.conf", "reboot")


def _backing(host: Host, name: str) -> str:
    """The device that zram writes pages to, "" if it keeps all of them in memory."""
    place = host.text(f"/sys/class/block/{name}/backing_dev").strip()
    return "" if place in ("", "none") else place


def _swaps_to_it(host: Host, place: str, kind: str) -> bool:
    return _device_on_disk(host, Path(place).name) if kind == "partition" else host.on_disk(place)


def _device_on_disk(host: Host, name: str) -> bool:
    """Whether the disk is below a device, through zram's backing device and the file of a loop device."""
    if back := _backing(host, name):
        return _device_on_disk(host, Path(back).name)
    number = host.text(f"/sys/class/block/{name}/dev").strip()
    if not number:
        return False
    major, minor = map(int, number.split(":"))
    if of_number(os.makedev(major, minor), "", host.root / "sys").name == host.device.name:
        return True
    file = host.text(f"/sys/class/block/{name}/loop/backing_file").strip()
    return bool(file) and host.on_disk(file)
