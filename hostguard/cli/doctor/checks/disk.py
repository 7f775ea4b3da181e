"""Checks of the disk: its identity, its settings, and other writers."""

from __future__ import annotations

from pathlib import Path

from hostguard.cli.doctor.checks import Check, Host, ok, problem, warning
from hostguard.core import paths
from hostguard.linux.disk import mounts_on
from hostguard.linux.durable import REMOTE, doubt
from hostguard.linux.limits import configured

SPARE = (64 << 20, 256 << 20)  # free bytes: a problem below the first, a warning below the second


def device(host: Host) -> Check:
    """The disk to guard is known, and the daemon, in its sandbox, has found it."""
    found, node = host.device.reason, host.device.node
    by_daemon = host.daemon.get("device") if host.daemon is not None else None
    if host.daemon is not None and by_daemon is not None:
        if by_daemon["path"] == host.config.device_path and by_daemon["node"] != node:
            return problem(
                f"the daemon found {by_daemon['node'] or 'no disk'}: {by_daemon['reason']};"
                f" this command found {node or 'no disk'}: {found}",
                "The daemon limits and watches only the disk that it has found.",
                f"{host.systemctl} restart hostguard    # if a disk has come since it was started",
                f'# or path = "{node or "/dev/..."}" under [device] in {paths.CONFIG}',
            )
        found, node = by_daemon["reason"], by_daemon["node"]
        unread = [one["text"] for one in host.daemon["problems"] if one["code"] == "no_disk"]
        if node is not None and unread:
            return problem(unread[0], "Pressure cannot watch the disk.", "dmesg -l err,warn | tail -50")
    if node is not None or host.config.device_path == "none":
        return ok(found)
    state = host.mount_of(str(paths.STATE))
    if state is not None and state.kind in REMOTE and host.config.device_path == "auto":
        drop_in = f"{paths.CONFIG}.d/90-device.toml"
        return problem(
            f"the queue in {paths.STATE} is on another machine ({state.kind}, {state.source})",
            "There is no local disk to guard. If the server or the network is slow, the guard is slow too.",
            f"# mount a local disk at {paths.STATE}; or, to work without a disk to guard:",
            f"mkdir -p {paths.CONFIG}.d; printf '[device]\\npath = \"none\"\\n' >{drop_in}",
            f"{host.systemctl} reload hostguard",
        )
    return problem(
        found,
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
    if lost := doubt(paths.DATABASE, host.root):
        return warning(
            lost,
            "Their senders were told that they are safe.",
            f"# mount a file system on a disk at {paths.STATE}, and restart hostguard",
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
    inodes, all_inodes = host.inodes
    text = f"{free >> 20} of {total >> 20} MiB free at {paths.STATE}"
    if all_inodes and inodes == 0:
        return problem(
            f"{text}, but no free inode: the file system has {all_inodes} files, as many as it can",
            "Without a free inode no file can be created, so no message is accepted. Delete many files, not"
            " large ones.",
            "journalctl --vacuum-files=2",
            f"du --inodes -xS {_mounted(host)} | sort -n | tail -20    # the directories with the most files",
        )
    if free >= SPARE[1] or not total:
        return ok(text)
    report = problem if free < SPARE[0] else warning
    return report(
        text,
        "Without free space no message is accepted. A full card is slow: it reclaims space at each write.",
        "journalctl --vacuum-size=50M; apt-get clean",
        f"du -xh {_mounted(host)} | sort -h | tail -20    # the largest directories",
    )


def _mounted(host: Host) -> str:
    """Where the file system of the queue is mounted."""
    state = host.mount_of(str(paths.STATE))
    return state.place if state else "/"


def journal(host: Host) -> Check:
    """journald does not write to a slow disk."""
    settings = _journald(host)
    storage = settings.get("Storage", "auto").lower()
    kept = storage == "persistent" or (storage == "auto" and host.exists("/var/log/journal"))
    mount = host.mount_of("/var/log/journal")
    if kept and mount is not None and (mount.kind == "tmpfs" or mount.source.startswith("/dev/zram")):
        copied = "; log2ram copies it to the disk once a day" if host.exists("/etc/log2ram.conf") else ""
        return ok(f"in memory, on {mount.place}{copied}")
    if not (kept and host.slow and host.on_disk("/var/log/journal")):
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
