"""Checks of the disk: its identity, its settings, and other writers."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hostguard.cli.doctor.checks import Check, Host, ok, problem, warning
from hostguard.core import paths
from hostguard.linux.disk import mounts_on, of_number
from hostguard.linux.limits import configured

SPEED = 10_000_000  # bytes/s, the write rate of an SD card of class A1
FLUSH_S = 10  # seconds: how much writing at SPEED may wait in memory
SYSCTL = "/etc/sysctl.d/90-hostguard.conf"
SPARE = (64 << 20, 256 << 20)  # free bytes: a problem below the first, a warning below the second


def device(host: Host) -> Check:
    """The disk to guard is known."""
    found = host.device
    if found.node is not None or host.config.device_path == "none":
        return ok(found.reason)
    return problem(
        found.reason,
        "No disk limit can be set, and pressure cannot watch the disk.",
        "lsblk -s    # shows the disks",
        f'# path = "/dev/..." under [device] in {paths.CONFIG}',
        f"{host.systemctl} reload hostguard",
    )


def scheduler(host: Host) -> Check:
    """If weights are configured, the scheduler supports them."""
    kernel, name = host.kernel, host.device.name
    if kernel.weighs is not None or not any(limits.io_weight for limits in configured(host.config)):
        weighs = f", weights applied by {kernel.weighs}" if kernel.weighs else ""
        return ok(f"{kernel.scheduler or 'unknown'}{weighs}")
    if name is None or "io" not in kernel.controllers:
        return ok("irrelevant: weights have no effect")
    why = (
        "io_weight needs the scheduler BFQ, or iocost. BFQ suits SD cards, USB disks and hard disks. On a"
        " fast NVMe disk it costs more than it gains: remove io_weight and use write_bandwidth instead."
    )
    has = f"{name} has {kernel.scheduler or 'none'}"
    found = f"{has}, which does not support weights: io_weight has no effect"
    if not _has_bfq(host, name):
        mend = "# this kernel has no BFQ: use write_bandwidth instead of io_weight"
        return problem(found, why, mend)
    rule = f'ACTION=="add|change", KERNEL=="{name}", ATTR{{queue/scheduler}}="bfq"'
    return problem(
        found, why, f"echo '{rule}' >/etc/udev/rules.d/90-hostguard.rules",
        f"udevadm control --reload; udevadm trigger --action=change /sys/block/{name}",
    )  # fmt: skip


def _has_bfq(host: Host, name: str) -> bool:
    if "bfq" in host.text(f"/sys/block/{name}/queue/scheduler").split():
        return True
    modules = host.root / "lib/modules" / host.text("/proc/sys/kernel/osrelease").strip()
    return any(modules.glob("kernel/block/bfq.ko*"))  # selecting it loads it


def file_system(host: Host) -> Check:
    """The file system of the queue is writable, and no mount option slows the disk down."""
    state = host.mount_of(str(paths.STATE))
    if state is not None and "ro" in state.options:
        return problem(
            f"{state.place}, which holds the queue, is read-only",
            "The kernel makes ext4 read-only after disk errors: the card may be failing.",
            "dmesg -l err,warn | tail -50    # then run fsck at the next boot, or replace the card",
        )
    if state is not None and state.kind in ("tmpfs", "ramfs"):
        return warning(
            f"the queue in {paths.STATE} is in memory ({state.kind} on {state.place})",
            "Accepted messages are lost at power-off.",
            f"# mount a disk at {paths.STATE}",
        )
    reasons = {
        "sync": "every write blocks",
        "dirsync": "every change of a directory blocks",
        "strictatime": "every read also writes",
        "discard": "every removal waits for the disk to erase; use fstrim.timer instead, which runs weekly",
    }
    slowing = [
        (mount, option)
        for mount in mounts_on(host.device, host.root)
        for option in reasons
        if option in mount.options
        and "ro" not in mount.options
        and not (option == "discard" and (mount.kind == "btrfs" or not host.slow))
    ]
    if slowing:
        mount, option = slowing[0]
        return warning(
            ", ".join(f"{mount.place} is mounted with {option}" for mount, option in slowing),
            f"With {option} {reasons[option]}.",
            f"# remove {option} from the line of {mount.place} in /etc/fstab",
            f"mount -o remount {mount.place}",
        )
    return ok(f"{state.kind} on {state.place}" if state else "unknown")


def space(host: Host) -> Check:
    """There is enough space for the queue."""
    free, total = host.free
    text = f"{free >> 20} of {total >> 20} MiB free at {paths.STATE}"
    if free >= SPARE[1] or not total:
        return ok(text)
    report = problem if free < SPARE[0] else warning
    return report(
        text,
        "Without free space no message is accepted. A full card is slow: it reclaims space at each write.",
        "journalctl --vacuum-size=50M; apt-get clean",
        "du -xh / | sort -h | tail -20    # the largest directories",
    )


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
    """There is no swap on a slow disk; zram is fine."""
    name = host.device.name
    entries = (line.split() for line in host.text("/proc/swaps").splitlines()[1:])
    on_disk = [entry for entry in entries if name and _disk_of_swap(host, entry[0], entry[1]) == name]
    if not on_disk:
        return ok(f"none on {name}" if name else "unknown")
    place, _kind, _size, used = on_disk[0][:4]
    found = f"swap is on {name} ({place}, {int(used) >> 10} MiB used)"
    if not host.slow:
        return ok(found)
    mend = f"swapoff {place}    # and remove it from /etc/fstab; apt-get install systemd-zram-generator"
    if host.exists("/etc/dphys-swapfile"):
        mend = "systemctl disable --now dphys-swapfile; apt-get install systemd-zram-generator"
    return warning(
        found,
        "When memory is short, every task waits for the disk that turns use, and swapping is not limited.",
        mend,
    )


def _disk_of_swap(host: Host, place: str, kind: str) -> str | None:
    if kind == "partition":
        number = host.text(f"/sys/class/block/{Path(place).name}/dev").strip()
    else:
        number = mount.number if (mount := host.mount_of(place)) else ""
    if not number or number.startswith("0:"):
        return None
    major, minor = map(int, number.split(":"))
    return of_number(os.makedev(major, minor), "", host.root / "sys").name


def journal(host: Host) -> Check:
    """journald does not write to a slow disk."""
    settings = _journald(host)
    storage = settings.get("Storage", "auto").lower()
    kept = storage == "persistent" or (storage == "auto" and host.exists("/var/log/journal"))
    mount = host.mount_of("/var/log/journal")
    on_disk = mount is not None and mount.place in [one.place for one in mounts_on(host.device, host.root)]
    if not (kept and on_disk and host.slow):
        return ok("on the disk" if kept else "in memory")
    drop_in = "/etc/systemd/journald.conf.d/90-hostguard.conf"  # sorts after that of Raspberry Pi OS, 40-
    return warning(
        f"the journal is written to {host.device.name}",
        "When the card stalls, journald and every program that logs stall too. A journal in memory costs no"
        " writes, but a reboot loses it, including the messages before a crash.",
        f"mkdir -p {Path(drop_in).parent}; printf '[Journal]\\nStorage=volatile\\n' >{drop_in}",
        "systemctl restart systemd-journald",
    )


def _journald(host: Host) -> dict[str, str]:
    """The settings of journald: drop-ins override the file, in order of their names (journald.conf(5))."""
    drop_ins: dict[str, str] = {}
    for folder in ("usr/lib", "usr/local/lib", "run", "etc"):  # the last one of a name counts
        for file in (host.root / folder / "systemd/journald.conf.d").glob("*.conf"):
            drop_ins[file.name] = f"/{folder}/systemd/journald.conf.d/{file.name}"
    found: dict[str, str] = {}
    for path in ("/etc/systemd/journald.conf", *(drop_ins[name] for name in sorted(drop_ins))):
        for line in host.text(path).splitlines():
            key, equals, value = line.partition("=")
            if equals and not key.lstrip().startswith(("#", ";")):
                found[key.strip()] = value.strip()
    return found
